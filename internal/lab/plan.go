package lab

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/nat"
)

// Plan is how a topology is made, in order. A step's text is the command of
// ip(8), bridge(8) or sysctl(8) that does the same.
type Plan []Step

// Plan returns how the scenario's topology is made.
func (s *Scenario) Plan() Plan {
	p := &planner{s: s, given: map[netip.Addr]bool{}}
	for _, n := range s.Topology.Nodes {
		p.add(Step{Kind: AddNode, Interface: Interface{Node: n.Name}})
		p.quiet(n)
	}
	for i, l := range s.Topology.Links {
		p.link(i, l)
	}
	p.sources()
	for _, n := range s.Topology.Nodes {
		p.routes(n.Name)
		p.sysctls(n)
	}
	return p.plan
}

type planner struct {
	s    *Scenario
	plan Plan
	// links are the interfaces that carry the addresses of each link.
	links [][2]Interface
	given map[netip.Addr]bool
}

func (p *planner) add(steps ...Step) { p.plan = append(p.plan, steps...) }

func (p *planner) set(node, key, value string) {
	p.add(Step{Kind: SetSysctl, Interface: Interface{Node: node}, Sysctl: Sysctl{Key: key, Value: value}})
}

// give gives an interface an address, which the interface beyond the link learns.
func (p *planner) give(own, peer Interface, address netip.Prefix) {
	p.add(Step{Kind: AddAddress, Interface: own, Address: address},
		Step{Kind: AddNeighbour, Interface: peer, Peer: own, Address: nat.Host(address.Addr())})
}

// quiet must come before the links: IPv6 would send duplicate address detection
// and router solicitations as soon as an interface is up. rp_filter and
// ip_forward are inherited from the host (net.core.devconf_inherit_init_net),
// so they are always set.
func (p *planner) quiet(n NodeSpec) {
	forward := "0"
	if n.Forward {
		forward = "1"
	}
	p.ipv6(n.Name, forward)
	p.set(n.Name, "net.ipv4.conf.all.rp_filter", "0")
	p.set(n.Name, "net.ipv4.conf.default.rp_filter", "0")
	p.set(n.Name, "net.ipv4.ip_forward", forward)
	if cpus, given := n.Sysctls[rpsMask]; given {
		p.set(n.Name, rpsMask, cpus)
	}
}

// rpsMask spreads what interfaces receive over CPUs; each takes it when it is made
// (Linux 6.3 and later).
const rpsMask = "net.core.rps_default_mask"

// ipv6 turns it off, but in nodes with such an address. There interfaces get neither
// link-local addresses nor routes automatically, and addresses are of use at once.
func (p *planner) ipv6(node, forward string) {
	if !slices.ContainsFunc(p.s.Addresses(node), netip.Addr.Is6) {
		for _, name := range []string{"all", "default"} {
			p.set(node, "net.ipv6.conf."+name+".disable_ipv6", "1")
			p.plan[len(p.plan)-1].Optional = true
		}
		return
	}
	for _, name := range []string{"all", "default"} {
		for _, key := range []string{"disable_ipv6=0", "accept_dad=0", "accept_ra=0", "addr_gen_mode=1", "forwarding=" + forward} {
			key, value, _ := strings.Cut(key, "=")
			p.set(node, "net.ipv6.conf."+name+"."+key, value)
		}
	}
}

func (p *planner) link(i int, l Link) {
	var ends, carry [2]Interface // carry has the address: the veth, or the bridge above it
	for j, e := range l {
		f := p.s.faceOf(i, j)
		ends[j] = Interface{Node: e.Node, Name: f.veth, MAC: mac(i, j)}
		if carry[j] = ends[j]; f.name != f.veth {
			carry[j] = Interface{Node: e.Node, Name: f.name, MAC: mac(i, 2)}
		}
	}
	p.add(Step{Kind: AddVeth, Interface: ends[0], Peer: ends[1]})
	redirecting := p.s.redirecting()
	for j, e := range l {
		if e.MTU > 0 {
			p.add(Step{Kind: SetMTU, Interface: ends[j], MTU: e.MTU})
		}
		if slices.Contains(redirecting, l[1-j].Node) {
			p.add(Step{Kind: SetWire, Interface: ends[j]})
		}
		if carry[j].Name != ends[j].Name {
			p.add(Step{Kind: AddBridge, Interface: carry[j], Peer: ends[j]})
			p.set(carry[j].Node, BridgeSysctl, "1")
		}
	}
	for j, e := range l {
		p.give(carry[j], carry[1-j], e.Address)
	}
	p.links = append(p.links, carry)
}

// BridgeSysctl is br_netfilter's switch for the bridges of a namespace (Linux 5.3).
const BridgeSysctl = "net.bridge.bridge-nf-call-iptables"

// sources gives the nodes the addresses that loads come from and that NAT gives. The
// first address of a node stays the one that its other programs use.
func (p *planner) sources() {
	for i := range p.s.Stages {
		for _, addr := range p.s.StageSources(i) {
			p.another(p.s.loadNode(), "", addr)
		}
		for _, l := range p.s.LoadsOf(&p.s.Stages[i]) {
			if l.Is(LoadPackets) {
				continue
			}
			for _, addr := range l.Sources {
				p.another(l.From, "", addr)
			}
		}
	}
	for _, addr := range p.s.Topology.Server.Addresses {
		p.another(p.s.Topology.Server.Node, "", addr)
	}
	for _, a := range p.s.natAddresses() {
		p.another(a.node, a.toward, a.addr)
	}
}

// another gives a node one more address at its first link, or at the first one
// toward a neighbour.
func (p *planner) another(node, neighbour string, addr netip.Addr) {
	if slices.Contains(p.s.Addresses(node), addr) || p.given[addr] {
		return
	}
	p.given[addr] = true
	for _, f := range p.s.faces(node) {
		if neighbour != "" && f.peer.Node != neighbour || f.own.Address.Addr().BitLen() != addr.BitLen() {
			continue
		}
		own, peer := p.links[f.link][f.end], p.links[f.link][1-f.end]
		p.give(own, peer, netip.PrefixFrom(addr, f.own.Address.Bits()))
		return
	}
}

// mac is locally administered and the same in every run: "NK", link, end.
func mac(link, end int) net.HardwareAddr {
	return net.HardwareAddr{0x02, 'N', 'K', 0, byte(link), byte(end)}
}

// sysctls of the scenario come last, so that they win. The server's queues must
// not be what a load finds: their defaults are 4096.
func (p *planner) sysctls(n NodeSpec) {
	if n.Name == p.s.Topology.Server.Node {
		p.set(n.Name, "net.core.somaxconn", "65535")
		p.set(n.Name, "net.ipv4.tcp_max_syn_backlog", "65535")
	}
	for _, name := range sortedKeys(n.Sysctls) {
		if name != rpsMask { // which was set before the interfaces were made
			p.set(n.Name, name, n.Sysctls[name])
		}
	}
}

// routes gives a node with one router beside it a default route of each family,
// another node one route for each subnet that it has no address in.
func (p *planner) routes(node string) {
	for _, bits := range []int{32, 128} {
		hops := p.firstHops(node, bits)
		if via := p.onlyRouter(node, bits); via.IsValid() {
			hops = map[netip.Prefix]netip.Addr{nat.Anywhere(bits): via}
		}
		subnets := slices.SortedFunc(maps.Keys(hops), func(a, b netip.Prefix) int {
			return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
		})
		for _, subnet := range subnets {
			p.add(Step{Kind: AddRoute, Interface: Interface{Node: node}, Address: subnet, Via: hops[subnet]})
		}
	}
}

// facesOf are a node's with addresses of that length in bits.
func (p *planner) facesOf(node string, bits int) []face {
	return slices.DeleteFunc(p.s.faces(node), func(f face) bool { return f.own.Address.Addr().BitLen() != bits })
}

// onlyRouter is the one neighbour of a node in a family, where that leads further; not
// valid where there are several, or none.
func (p *planner) onlyRouter(node string, bits int) netip.Addr {
	faces := p.facesOf(node, bits)
	if len(faces) != 1 || !p.forwards(faces[0].peer.Node) || len(p.s.Addresses(faces[0].peer.Node)) < 2 {
		return netip.Addr{}
	}
	return faces[0].peer.Address.Addr()
}

// firstHops returns, breadth first through nodes that forward, which neighbour leads to
// each subnet of a family that the node has no address in.
func (p *planner) firstHops(node string, bits int) map[netip.Prefix]netip.Addr {
	type visit struct {
		node string
		via  netip.Addr // the neighbour of the start that leads here
	}
	own := map[netip.Prefix]bool{}
	for _, f := range p.facesOf(node, bits) {
		own[f.own.Address.Masked()] = true
	}
	hops := map[netip.Prefix]netip.Addr{}
	seen := map[string]bool{node: true}
	for queue := []visit{{node: node}}; len(queue) > 0; queue = queue[1:] {
		v := queue[0]
		for _, f := range p.facesOf(v.node, bits) {
			subnet, via := f.own.Address.Masked(), v.via
			if v.node == node {
				via = f.peer.Address.Addr()
			}
			if _, known := hops[subnet]; !known && !own[subnet] {
				hops[subnet] = via
			}
			if peer := f.peer.Node; !seen[peer] && p.forwards(peer) {
				seen[peer] = true
				queue = append(queue, visit{peer, via})
			}
		}
	}
	return hops
}

func (p *planner) forwards(node string) bool {
	return slices.ContainsFunc(p.s.Topology.Nodes, func(n NodeSpec) bool { return n.Name == node && n.Forward })
}

// Network is where all IPv4 addresses of labs come from: RFC 2544 sets it aside for
// benchmarks, so that it collides with nothing real. Network6 is that of IPv6, set
// aside for documentation (RFC 3849).
var (
	Network  = netip.MustParsePrefix("198.18.0.0/15")
	Network6 = netip.MustParsePrefix("2001:db8::/32")
)

func networks() string { return fmt.Sprintf("%s or %s", Network, Network6) }

func inLabs(a netip.Addr) bool { return Network.Contains(a) || Network6.Contains(a) }

// hostIn reports whether a host of the subnet can have the address.
func hostIn(subnet netip.Prefix, a netip.Addr) bool {
	return subnet.Contains(a) && a != subnet.Masked().Addr() && a != nat.LastAddr(subnet)
}
