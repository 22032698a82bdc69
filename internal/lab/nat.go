package lab

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/nat"
	"golang.org/x/sys/unix"
)

// NAT is one rule in a node. Exactly one kind of rule is set.
type NAT struct {
	Node       string      `yaml:"node"`
	DNAT       *DNAT       `yaml:"dnat"`
	Masquerade *Masquerade `yaml:"masquerade"`
	SNAT       *SourceNAT  `yaml:"snat"`
	Drop       *Drop       `yaml:"drop"`
}

// DNAT sends what arrives for one of the node's own addresses at Port to To.
type DNAT struct {
	Port Port     `yaml:"port"`
	To   AddrPort `yaml:"to"`
}

// Masquerade gives what leaves toward a neighbour the address of the interface.
type Masquerade struct {
	Toward string `yaml:"toward"`
	// FullyRandom is NF_NAT_RANGE_PROTO_RANDOM_FULLY.
	FullyRandom bool `yaml:"fully_random"`
}

// SourceNAT gives what leaves toward a neighbour one of the addresses To: with several
// of them the kernel takes, for each pair of source and destination, always the same
// (find_best_ips_proto in net/netfilter/nf_nat_core.c). Where the node has them not, the
// interface gets them.
type SourceNAT struct {
	Toward string    `yaml:"toward"`
	To     Addresses `yaml:"to"`
	// Ports bound what TCP and UDP get; the zero value leaves it to the kernel.
	Ports Ports `yaml:"ports"`
	// FullyRandom is as in Masquerade.
	FullyRandom bool `yaml:"fully_random"`
}

// Drop drops packets to Port, those without one where it is not set, or, where
// Invalid is set, those of which the tracker makes nothing (ct state invalid). The
// latter makes the node track connections.
type Drop struct {
	// At is one of dropHooks; forward where empty.
	At      string `yaml:"at"`
	Port    Port   `yaml:"port"`
	Invalid bool   `yaml:"invalid"`
	// Rules is how many of the same there are, one after the other; one where it is 0. A
	// packet that is not dropped passes all of them.
	Rules int `yaml:"rules"`
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

// mostDropRules bounds Drop.Rules: a packet takes about 0.1 ms for so many, and more.
const mostDropRules = 10_000

func (n NAT) String() string {
	switch {
	case n.DNAT != nil:
		return fmt.Sprintf("%s: DNAT %s to %s", n.Node, n.DNAT.Port, n.DNAT.To)
	case n.Masquerade != nil:
		return fmt.Sprintf("%s: masquerade toward %s%s", n.Node, n.Masquerade.Toward, portWords(Ports{}, n.Masquerade.FullyRandom))
	case n.SNAT != nil:
		return fmt.Sprintf("%s: SNAT toward %s to %s%s", n.Node, n.SNAT.Toward, addressWords(n.SNAT.To), portWords(n.SNAT.Ports, n.SNAT.FullyRandom))
	}
	return fmt.Sprintf("%s: %s", n.Node, n.Drop)
}

// addressWords is one address, or the first and the last of a range.
func addressWords(a []netip.Addr) string {
	if len(a) < 2 {
		return fmt.Sprint(append(a, netip.Addr{})[0])
	}
	return fmt.Sprintf("%s-%s", a[0], a[len(a)-1])
}

func portWords(ports Ports, fullyRandom bool) string {
	text := ""
	if ports != (Ports{}) {
		text = " ports " + ports.String()
	}
	if fullyRandom {
		text += " fully-random"
	}
	return text
}

func (d *Drop) String() string {
	if d.Invalid {
		return "drop packets of no connection"
	}
	return "drop " + d.Port.String()
}

// Translates reports whether the rule is NAT.
func (n NAT) Translates() bool { return n.Drop == nil }

// toward is the neighbour that a rule about sources is for, empty for other rules.
func (n NAT) toward() string {
	switch {
	case n.Masquerade != nil:
		return n.Masquerade.Toward
	case n.SNAT != nil:
		return n.SNAT.Toward
	}
	return ""
}

// IPv6 tells the family of a rule's packets.
func (s *Scenario) IPv6(n NAT) bool {
	if n.DNAT != nil {
		return n.DNAT.To.Addr().Is6()
	}
	if end, ok := s.endToward(n.Node, n.toward()); ok {
		return end.Address.Addr().Is6()
	}
	own := s.Addresses(n.Node)
	return len(own) > 0 && own[0].Is6()
}

// endToward is the node's end of its first link to a neighbour.
func (s *Scenario) endToward(node, neighbour string) (End, bool) {
	for _, l := range s.Topology.Links {
		for j, e := range l {
			if e.Node == node && l[1-j].Node == neighbour {
				return e, true
			}
		}
	}
	return End{}, false
}

// InterfaceToward is the interface of a node whose link leads to a neighbour, the
// bridge where there is one; empty where no link does.
func (s *Scenario) InterfaceToward(node, neighbour string) string {
	n := 0
	for _, l := range s.Topology.Links {
		for j, e := range l {
			if e.Node != node {
				continue
			}
			if l[1-j].Node == neighbour {
				if b := s.Topology.Bridge; s.UseBridge && s.bridged(l) && b.Node == node {
					return bridgeName
				}
				return ethernet(n)
			}
			n++
		}
	}
	return ""
}

const bridgeName = "br0"

func ethernet(n int) string { return fmt.Sprintf("eth%d", n) }

// natAddresses are those that rules of any stage give and no link has, with the
// node and the neighbour.
func (s *Scenario) natAddresses() (all []natAddress) {
	for _, st := range s.Stages {
		if st.Gateway != nil {
			all = append(all, s.gatewayAddresses(st.Gateway)...)
		}
		for _, rule := range st.NAT {
			if rule.SNAT == nil {
				continue
			}
			for _, to := range rule.SNAT.To {
				a := natAddress{rule.Node, rule.SNAT.Toward, to}
				if !slices.Contains(s.Addresses(rule.Node), to) && !slices.Contains(all, a) {
					all = append(all, a)
				}
			}
		}
	}
	return all
}

type natAddress struct {
	node, toward string
	addr         netip.Addr
}

func (c *checker) nat(path []any, rule NAT) {
	c.node(append(path, "node"), rule.Node)
	kinds := 0
	for _, set := range []bool{rule.DNAT != nil, rule.Masquerade != nil, rule.SNAT != nil, rule.Drop != nil} {
		if set {
			kinds++
		}
	}
	if kinds != 1 {
		c.fail(path, "expected a rule with one of: dnat: {port: tcp/8080, to: 198.19.0.2:80}, masquerade: {toward: NODE}, snat: {toward: NODE, to: ADDRESS}, drop: {port: tcp/80}")
		return
	}
	switch {
	case rule.DNAT != nil:
		c.dnat(append(path, "dnat"), rule.DNAT)
	case rule.Masquerade != nil:
		c.toward(append(path, "masquerade", "toward"), rule.Node, rule.Masquerade.Toward)
	case rule.SNAT != nil:
		c.snat(append(path, "snat"), rule)
	default:
		c.drop(append(path, "drop"), rule.Drop)
	}
}

func (c *checker) dnat(path []any, d *DNAT) {
	switch {
	case d.Port.Number == 0:
		c.fail(append(path, "port"), "expected dnat.port: such as tcp/8080")
	case !d.To.IsValid() || !inLabs(d.To.Addr()):
		c.fail(append(path, "to"), "expected dnat.to: an address in %s and a port", networks())
	}
}

func (c *checker) toward(path []any, node, neighbour string) {
	c.node(path, neighbour)
	if _, linked := c.s.endToward(node, neighbour); !linked {
		c.fail(path, "no link between %s and %s", node, neighbour)
	}
}

func (c *checker) snat(path []any, rule NAT) {
	c.toward(append(path, "toward"), rule.Node, rule.SNAT.Toward)
	end, _ := c.s.endToward(rule.Node, rule.SNAT.Toward)
	if c.first != nil {
		return
	}
	outside := func(a netip.Addr) bool { return !end.Address.Contains(a) }
	switch to := rule.SNAT.To; {
	case len(to) == 0 || slices.ContainsFunc(to, outside):
		c.fail(append(path, "to"), "expected snat.to: an address of %s, or several, so that answers come back to %s", end.Address.Masked(), rule.Node)
	case len(to) > maxSources:
		c.fail(append(path, "to"), "expected at most %d addresses in snat.to, found %d", maxSources, len(to))
	}
}

func (c *checker) drop(path []any, d *Drop) {
	switch {
	case d.At != "" && !slices.Contains(dropHooks, d.At):
		c.fail(append(path, "at"), "at %q: expected one of: %s", d.At, strings.Join(dropHooks, ", "))
	case d.Invalid == (d.Port.Number != 0):
		c.fail(path, "expected drop with port: such as tcp/80, or invalid: true")
	case d.Rules < 0 || d.Rules > mostDropRules:
		c.fail(append(path, "rules"), "expected drop.rules: 1 to 10,000")
	}
}

// Gateway is a gateway file, in the words of `natkit gateway`, in force in a node
// while the stage lasts.
type Gateway struct {
	Node           string `yaml:"node"`
	gateway.Config `yaml:",inline"`
}

// gateway finds what `natkit gateway check` would refuse, by what the topology says of
// the node.
func (c *checker) gateway(path []any, g *Gateway) {
	c.node(append(path, "node"), g.Node)
	if c.first != nil {
		return
	}
	if n := len(c.s.gatewayAddresses(g)); n > maxSources {
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

// facts are what a host would tell of the node.
func (s *Scenario) facts(g *Gateway) gateway.Facts {
	f := gateway.Facts{Known: true, Flowtable: gateway.Support{OK: true}}
	for _, l := range s.Topology.Links {
		for j, e := range l {
			if e.Node != g.Node {
				continue
			}
			f.Interfaces = append(f.Interfaces, gateway.Interface{
				Name: s.InterfaceToward(g.Node, l[1-j].Node), Index: len(f.Interfaces) + 2, Up: true, MTU: 1500,
				Addresses: []netip.Prefix{e.Address.Prefix}})
		}
	}
	for i := range f.Interfaces {
		f.Interfaces[i].Name = ethernet(i)
	}
	for _, a := range s.gatewayAddresses(g) {
		for i := range f.Interfaces {
			if own := f.Interfaces[i].Addresses; own[0].Contains(a.addr) {
				f.Interfaces[i].Addresses = append(own, netip.PrefixFrom(a.addr, own[0].Bits()))
			}
		}
	}
	return f
}

// gatewayAddresses are the addresses outside of a gateway's rules that lie in the
// subnet of one of its links: the interface there gets them. Others are routed to it
// by its neighbours.
func (s *Scenario) gatewayAddresses(g *Gateway) (all []natAddress) {
	for _, r := range slices.Concat(g.NAT, g.IPv6) {
		for _, outside := range outsideOf(&r) {
			all = append(all, s.inLinks(g.Node, outside)...)
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

// inLinks are the addresses of a range that hosts of a link's subnet can have, up to
// one more than a node may get.
func (s *Scenario) inLinks(node string, r nat.AddrRange) (all []natAddress) {
	for _, l := range s.Topology.Links {
		for j, e := range l {
			if e.Node != node || !e.Address.Contains(r.First) || !e.Address.Contains(r.Last) {
				continue
			}
			for a := r.First; a.Compare(r.Last) <= 0 && len(all) <= maxSources; a = a.Next() {
				if hostIn(e.Address.Prefix, a) && a != e.Address.Addr() {
					all = append(all, natAddress{node, l[1-j].Node, a})
				}
			}
		}
	}
	return all
}

// seen is the part's status, or what such connections usually have.
func (p *Part) seen() string {
	switch {
	case p.Status != "":
		return p.Status
	case p.Protocol.Number != unix.IPPROTO_TCP, p.State.TCPState == conntrack.TCPSynRecv:
		return Replied
	case p.State.TCPState == conntrack.TCPSynSent, p.State.TCPState == conntrack.TCPSynSent2:
		return Unreplied
	}
	return Assured
}

func statusBits(seen string) conntrack.Status {
	switch seen {
	case Unreplied:
		return conntrack.Confirmed
	case Replied:
		return conntrack.Confirmed | conntrack.SeenReply
	}
	return conntrack.Confirmed | conntrack.SeenReply | conntrack.Assured
}

// tcpTimeouts are the kernel's defaults, in seconds (tcp_timeouts,
// net/netfilter/nf_conntrack_proto_tcp.c).
var tcpTimeouts = map[conntrack.TCPState]uint32{
	conntrack.TCPSynSent: 120, conntrack.TCPSynRecv: 60, conntrack.TCPEstablished: 432000,
	conntrack.TCPFinWait: 120, conntrack.TCPCloseWait: 60, conntrack.TCPLastAck: 30,
	conntrack.TCPTimeWait: 120, conntrack.TCPClose: 10, conntrack.TCPSynSent2: 120,
}

// usualTimeout is what the kernel gives to such connections by default
// (nf_conntrack_proto_udp.c, _gre.c, _icmp.c, _sctp.c).
func (p *Part) usualTimeout() Span {
	seconds := uint32(30) // ICMP; UDP and GRE before they are assured
	switch assured := p.seen() == Assured; {
	case p.Protocol.Number == unix.IPPROTO_TCP:
		seconds = tcpTimeouts[p.State.TCPState]
	case p.Protocol.Number == unix.IPPROTO_SCTP:
		seconds = 210
	case p.Protocol.Number == unix.IPPROTO_UDP && assured:
		seconds = 120
	case p.Protocol.Number == unix.IPPROTO_GRE && assured:
		seconds = 180
	}
	return Span{seconds, seconds}
}

// Kind says in a few words what the part's entries are, as conntrack(8) shows
// them.
func (p *Part) Kind() string {
	kind := p.Protocol.String()
	if p.State.TCPState != conntrack.TCPNone {
		kind += " " + p.State.String()
	}
	switch p.seen() {
	case Unreplied:
		kind += " [UNREPLIED]"
	case Assured:
		kind += " [ASSURED]"
	}
	if p.NAT != nil && len(p.NAT.DNAT) > 0 {
		kind += " DNAT"
	}
	if p.NAT != nil && p.NAT.SNAT != nil {
		kind += " SNAT"
	}
	return kind
}
