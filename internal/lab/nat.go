package lab

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/document"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/nat"
)

// NAT is one rule in a node. Exactly one kind of rule is set. All but Drop and Notrack are short forms
// of rules of a gateway file; Scenario.Translations returns that file.
type NAT struct {
	Node       string      `yaml:"node" check:"required node"`
	DNAT       *DNAT       `yaml:"dnat"`
	Masquerade *Masquerade `yaml:"masquerade"`
	SNAT       *SourceNAT  `yaml:"snat"`
	Drop       *Drop       `yaml:"drop"`
	Notrack    *Notrack    `yaml:"notrack"`
}

// DNAT sends what arrives for one of the node's own addresses at Port to To.
type DNAT struct {
	Port gateway.Port   `yaml:"port" check:"required port"`
	To   netip.AddrPort `yaml:"to" check:"required lab"`
	// Counted gives the rule a counter, as rules of iptables have.
	Counted bool `yaml:"counted"`
}

// Masquerade gives what leaves toward a neighbour the address of the interface.
type Masquerade struct {
	Toward string `yaml:"toward" check:"required node"`
	// FullyRandom is NF_NAT_RANGE_PROTO_RANDOM_FULLY.
	FullyRandom bool `yaml:"fully_random"`
}

// SourceNAT gives what leaves toward a neighbour one of the addresses To. Out of several
// the kernel chooses by source and destination, always the same for a pair
// (find_best_ips_proto in net/netfilter/nf_nat_core.c). The interface gets those that the
// node lacks.
type SourceNAT struct {
	Toward string    `yaml:"toward" check:"required node"`
	To     Addresses `yaml:"to" check:"len=1..256"`
	// Ports bound the ports of TCP and UDP; the zero value leaves them to the kernel.
	Ports Ports `yaml:"ports"`
	// FullyRandom is as in Masquerade.
	FullyRandom bool `yaml:"fully_random"`
	// Elsewhere leaves the node without the addresses.
	Elsewhere bool `yaml:"elsewhere"`
}

// Drop drops packets to Port, with ICMP those of ICMP, or, with Invalid, those that the tracker
// cannot assign to a connection (ct state invalid), which makes the node track connections. A
// gateway file has no such rule: it filters nothing.
type Drop struct {
	// At is one of dropHooks; forward where empty.
	At      string       `yaml:"at" check:"hook"`
	Port    gateway.Port `yaml:"port" check:"port"`
	Invalid bool         `yaml:"invalid"`
	ICMP    bool         `yaml:"icmp"`
	// Damage lets packets to a port of UDP pass, with another checksum.
	Damage bool `yaml:"damage"`
	// Rules is the number of identical rules in a row, 1 where it is 0. A packet that is
	// not dropped passes all of them; 10,000 take about 0.1 ms.
	Rules int `yaml:"rules" check:"1..10000"`
	// Above, where not 0, lets so many new connections a second pass, and counts those that it
	// drops.
	Above int `yaml:"above" check:"1..10000"`
	// Reject answers by ICMP, and counts; Comment is the rule's.
	Reject  bool   `yaml:"reject"`
	Comment string `yaml:"comment" check:"label"`
}

// Notrack exempts from tracking what comes from FromPort of a server.
type Notrack struct {
	FromPort gateway.Port `yaml:"from_port" check:"required port"`
}

// The hooks of netfilter that Drop.At may name.
const (
	HookForward = "forward"
	HookInput   = "input"
	HookOutput  = "output"
	// HookPostrouting is behind the translation of sources.
	HookPostrouting = "postrouting"
)

var dropHooks = []string{HookForward, HookInput, HookOutput, HookPostrouting}

func (n NAT) String() string {
	switch {
	case n.DNAT != nil:
		return fmt.Sprintf("%s: DNAT %s to %s", n.Node, n.DNAT.Port, n.DNAT.To)
	case n.Masquerade != nil:
		return fmt.Sprintf("%s: masquerade toward %s", n.Node, n.Masquerade.Toward)
	case n.SNAT != nil:
		return fmt.Sprintf("%s: SNAT toward %s to %s", n.Node, n.SNAT.Toward, n.SNAT.To)
	}
	if n.Notrack != nil {
		return fmt.Sprintf("%s: no tracking from %s", n.Node, n.Notrack.FromPort)
	}
	other := "packets without a connection"
	if n.Drop.ICMP {
		other = "ICMP"
	}
	if n.Drop.Damage {
		return fmt.Sprintf("%s: damage %s", n.Node, n.Drop.Port)
	}
	return fmt.Sprintf("%s: drop %s", n.Node, cmp.Or(n.Drop.Port.String(), other))
}

// Translations returns the gateway file that the rules mean in a node.
func (s *Scenario) Translations(node string, rules []NAT) *gateway.Config {
	c := &gateway.Config{}
	add := func(a netip.Addr, r gateway.Rule) {
		if a.Is6() {
			c.IPv6 = append(c.IPv6, r)
		} else {
			c.NAT = append(c.NAT, r)
		}
	}
	for _, r := range rules {
		if r.Node != node {
			continue
		}
		switch {
		case r.DNAT != nil:
			to := nat.Backend{Address: r.DNAT.To.Addr(), Port: r.DNAT.To.Port()}
			for _, own := range s.Addresses(node) {
				if own.BitLen() == to.Address.BitLen() {
					add(own, gateway.Rule{DNAT: &gateway.DNAT{On: gateway.On{Address: own}, Port: gateway.Services{r.DNAT.Port}, To: gateway.Backends{to}}})
				}
			}
		case r.Masquerade != nil:
			f, _ := s.faceToward(node, r.Masquerade.Toward)
			add(f.own.Address.Addr(), gateway.Rule{Masquerade: &gateway.Masquerade{Sources: leavingBy(f), Choice: choice(Ports{}, r.Masquerade.FullyRandom)}})
		case r.SNAT != nil:
			f, _ := s.faceToward(node, r.SNAT.Toward)
			to, off := r.SNAT.To, gateway.Switch(false)
			add(to[0], gateway.Rule{SNAT: &gateway.SNAT{Sources: leavingBy(f), To: gateway.Ranges{{First: to[0], Last: to[len(to)-1]}},
				Choice: choice(r.SNAT.Ports, r.SNAT.FullyRandom), Persistent: &off}})
		}
	}
	return c
}

func leavingBy(f face) gateway.Sources { return gateway.Sources{Out: gateway.Names{f.name}} }

func choice(ports Ports, fully bool) (c gateway.Choice) {
	c.Ports = gateway.Ports{First: ports.First, Last: ports.Last}
	if fully {
		c.Random = gateway.RandomFully
	}
	return c
}

// face is an interface that carries an address of a node: one end of a link.
type face struct {
	// link is the number of the link, end that of its end, veth and name are the interface
	// of the veth pair and the one with the address: the bridge where there is one.
	link, end  int
	veth, name string
	own, peer  End
}

const bridgeName = "br0"

func ethernet(n int) string { return fmt.Sprintf("eth%d", n) }

// faces returns those of a node in the order of the links, eth0 first.
func (s *Scenario) faces(node string) (all []face) {
	for i, l := range s.Topology.Links {
		for j, e := range l {
			if e.Node != node {
				continue
			}
			f := face{link: i, end: j, veth: ethernet(len(all)), own: e, peer: l[1-j]}
			f.name = f.veth
			if s.UseBridge && s.bridged(l) && s.Topology.Bridge.Node == node {
				f.name = bridgeName
			}
			all = append(all, f)
		}
	}
	return all
}

// faceOf returns the one at an end of a link.
func (s *Scenario) faceOf(link, end int) face {
	all := s.faces(s.Topology.Links[link][end].Node)
	return all[slices.IndexFunc(all, func(f face) bool { return f.link == link })]
}

// faceToward returns the first one whose link leads to a neighbour.
func (s *Scenario) faceToward(node, neighbour string) (face, bool) {
	for _, f := range s.faces(node) {
		if f.peer.Node == neighbour {
			return f, true
		}
	}
	return face{}, false
}

// natAddress is an address that rules give and no link has.
type natAddress struct {
	node, toward string
	addr         netip.Addr
}

// natAddresses are those of all stages. Those that lie in no link's subnet are routed to
// the node by its neighbours.
func (s *Scenario) natAddresses() (all []natAddress) {
	for _, st := range s.Stages {
		if st.Gateway != nil {
			all = append(all, s.gatewayAddresses(st.Gateway.Node, &st.Gateway.Config)...)
		}
		for _, n := range s.Topology.Nodes {
			here := slices.DeleteFunc(slices.Clone(st.NAT), func(r NAT) bool { return r.SNAT != nil && r.SNAT.Elsewhere })
			all = append(all, s.gatewayAddresses(n.Name, s.Translations(n.Name, here))...)
		}
	}
	return all
}

// gatewayAddresses are the outside addresses of a gateway's rules that lie in the subnet
// of one of its links: the interface there gets them.
func (s *Scenario) gatewayAddresses(node string, c *gateway.Config) (all []natAddress) {
	for _, r := range slices.Concat(c.NAT, c.IPv6) {
		for _, outside := range outsideOf(&r) {
			all = append(all, s.inLinks(node, outside)...)
		}
	}
	return all
}

// outsideOf are the addresses by which the outside knows what a rule translates.
func outsideOf(r *gateway.Rule) []nat.AddrRange {
	host := func(a netip.Addr) []nat.AddrRange { return []nat.AddrRange{{First: a, Last: a}} }
	switch {
	case r.SNAT != nil:
		return r.SNAT.To
	case r.DNAT != nil && r.DNAT.On.Address.IsValid():
		return host(r.DNAT.On.Address)
	case r.Static != nil:
		return host(r.Static.Outside.Addr)
	case r.Netmap != nil:
		return []nat.AddrRange{nat.RangeOf(r.Netmap.Outside.Prefix)}
	}
	return nil
}

// inLinks are the addresses of a range that hosts of a link's subnet can have, at most
// one more than a node may get.
func (s *Scenario) inLinks(node string, r nat.AddrRange) (all []natAddress) {
	for _, f := range s.faces(node) {
		subnet := f.own.Address
		if !subnet.Contains(r.First) || !subnet.Contains(r.Last) {
			continue
		}
		for a := r.First; a.Compare(r.Last) <= 0 && len(all) <= maxSources; a = a.Next() {
			if hostIn(subnet, a) && a != subnet.Addr() {
				all = append(all, natAddress{node, f.peer.Node, a})
			}
		}
	}
	return all
}

// nat checks what concerns a rule as a whole.
func (c *checker) nat(path []any, rule NAT) {
	if kinds := document.Given(rule); len(kinds) != 2 {
		c.fail(path, "expected a rule with one of: dnat: {port: tcp/8080, to: 198.19.0.2:80}, masquerade: {toward: NODE}, snat: {toward: NODE, to: ADDRESS}, drop: {port: tcp/80}, notrack: {from_port: tcp/80}")
		return
	}
	if d := rule.Drop; d != nil {
		given := []bool{d.Port.Protocol != "", d.Invalid, d.ICMP}
		if slices.Index(given, true) < 0 || slices.Contains(given[slices.Index(given, true)+1:], true) {
			c.fail(append(path, "drop"), "expected drop with port: such as tcp/80, or invalid: true, or icmp: true")
		} else if d.Damage && d.Port.Protocol != "udp" {
			c.fail(append(path, "drop", "damage"), "expected damage with a port of UDP")
		}
	}
	if rule.Masquerade != nil {
		c.toward(append(path, "masquerade", "toward"), rule.Node, rule.Masquerade.Toward)
	}
	if rule.SNAT == nil {
		return
	}
	subnet := c.toward(append(path, "snat", "toward"), rule.Node, rule.SNAT.Toward)
	if slices.ContainsFunc(rule.SNAT.To, func(a netip.Addr) bool { return !subnet.Contains(a) }) {
		c.fail(append(path, "snat", "to"), "expected snat.to: an address of %s, or several, so that answers come back to %s", subnet.Masked(), rule.Node)
	}
}

// toward returns the subnet of the link to a neighbour.
func (c *checker) toward(path []any, node, neighbour string) netip.Prefix {
	f, linked := c.s.faceToward(node, neighbour)
	if !linked {
		c.fail(path, "no link between %s and %s", node, neighbour)
	}
	return f.own.Address
}

// Gateway is a gateway file in force in a node while the stage lasts.
type Gateway struct {
	Node string `yaml:"node" check:"required node"`
	// Detach are interfaces that lose the eBPF programs at their way in again.
	Detach         []string `yaml:"detach"`
	gateway.Config `yaml:",inline"`
}

// by is the file with another engine. What engine ebpf bypasses is nothing that a lab has.
func (g *Gateway) by(engine gateway.Engine) *Gateway {
	if g == nil || engine == "" {
		return g
	}
	c := *g
	c.Engine, c.AcknowledgeBypass = engine, engine == gateway.EngineEBPF
	return &c
}

// gateway reports what `natkit gateway check` refuses, by the topology's facts about
// the node.
func (c *checker) gateway(path []any, g *Gateway) {
	if len(g.Detach) > 0 && g.Engine != gateway.EngineEBPF {
		c.fail(path, "detach requires engine: ebpf")
	}
	if n := len(c.s.gatewayAddresses(g.Node, &g.Config)); n > maxSources {
		c.fail(path, "expected rules with at most %d addresses of the node's links, found %d", maxSources, n)
		return
	}
	facts := c.s.facts(g)
	for _, f := range gateway.Check(&gateway.File{Config: g.Config}, facts) {
		if f.Severity != gateway.Refuse {
			continue
		}
		where := path
		if f.Rule != nil {
			where = append(path[:len(path):len(path)], f.Rule.List, f.Rule.Index)
		}
		c.fail(where, "%s", f.Message)
	}
	if _, err := gateway.Compile(&g.Config, facts); err != nil {
		c.fail(path, "%s", err)
	}
}

// facts returns the facts that would be read from the node.
func (s *Scenario) facts(g *Gateway) gateway.Facts {
	f := gateway.Facts{Known: true, Flowtable: gateway.Support{OK: true}}
	given := s.gatewayAddresses(g.Node, &g.Config)
	for i, own := range s.faces(g.Node) {
		subnet := own.own.Address
		one := gateway.Interface{Name: own.veth, Index: i + 2, Up: true, MTU: 1500, Addresses: []netip.Prefix{subnet}}
		for _, a := range given {
			if subnet.Contains(a.addr) {
				one.Addresses = append(one.Addresses, netip.PrefixFrom(a.addr, subnet.Bits()))
			}
		}
		f.Interfaces = append(f.Interfaces, one)
	}
	return f
}
