package lab

import (
	"net"
	"net/netip"
	"slices"
)

// Plan is how a topology is made, in order. A step's text is the command of
// ip(8), bridge(8) or sysctl(8) that does the same.
type Plan []Step

// Plan is how the scenario's topology is made.
func (s *Scenario) Plan() Plan {
	p := &planner{s: s, next: map[string]int{}, given: map[netip.Addr]bool{}}
	for _, n := range s.Topology.Nodes {
		p.add(AddNode{n.Name})
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

// planner numbers a node's interfaces eth0, eth1, … in the order of the links.
type planner struct {
	s    *Scenario
	plan Plan
	next map[string]int
	// links are the interfaces that carry the addresses of each link.
	links [][2]Interface
	given map[netip.Addr]bool
}

func (p *planner) add(steps ...Step) { p.plan = append(p.plan, steps...) }

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
	p.add(
		SetSysctl{Node: n.Name, Name: "net.ipv4.conf.all.rp_filter", Value: "0"},
		SetSysctl{Node: n.Name, Name: "net.ipv4.conf.default.rp_filter", Value: "0"},
		SetSysctl{Node: n.Name, Name: "net.ipv4.ip_forward", Value: forward},
	)
	if cpus, given := n.Sysctls[rpsMask]; given {
		p.add(SetSysctl{Node: n.Name, Name: rpsMask, Value: cpus})
	}
}

// rpsMask spreads what interfaces receive over CPUs; each takes it when it is made
// (Linux 6.3 and later).
const rpsMask = "net.core.rps_default_mask"

// ipv6 turns it off, but in nodes with such an address. There interfaces get neither
// link-local addresses nor routes by themselves, and addresses are of use at once.
func (p *planner) ipv6(node, forward string) {
	if !slices.ContainsFunc(p.s.Addresses(node), netip.Addr.Is6) {
		p.add(
			SetSysctl{Node: node, Name: "net.ipv6.conf.all.disable_ipv6", Value: "1", Optional: true},
			SetSysctl{Node: node, Name: "net.ipv6.conf.default.disable_ipv6", Value: "1", Optional: true},
		)
		return
	}
	for _, name := range []string{"all", "default"} {
		conf := func(key, value string) {
			p.add(SetSysctl{Node: node, Name: "net.ipv6.conf." + name + "." + key, Value: value})
		}
		conf("disable_ipv6", "0")
		conf("accept_dad", "0")
		conf("accept_ra", "0")
		conf("addr_gen_mode", "1")
		conf("forwarding", forward)
	}
}

func (p *planner) link(i int, l Link) {
	var ends AddVeth
	var inner [2]Interface // what carries the address: the veth, or the bridge above it
	for j, e := range l {
		ends[j] = Interface{Node: e.Node, Name: ethernet(p.next[e.Node]), MAC: mac(i, j)}
		p.next[e.Node]++
	}
	p.add(ends)
	inner = ends
	if b := p.s.Topology.Bridge; p.s.UseBridge && p.s.bridged(l) {
		j := slices.IndexFunc(l[:], func(e End) bool { return e.Node == b.Node })
		inner[j] = Interface{Node: b.Node, Name: bridgeName, MAC: mac(i, 2)}
		p.add(AddBridge{Interface: inner[j], Port: ends[j].Name})
	}
	for j, e := range l {
		peer := 1 - j
		p.add(
			AddAddress{e.Node, inner[j].Name, e.Address.Prefix},
			AddNeighbour{e.Node, inner[j].Name, l[peer].Address.Addr(), inner[peer].MAC},
		)
	}
	p.links = append(p.links, inner)
}

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
	for i, l := range p.s.Topology.Links {
		for j, e := range l {
			if e.Node != node || neighbour != "" && l[1-j].Node != neighbour || e.Address.Addr().BitLen() != addr.BitLen() {
				continue
			}
			own, peer := p.links[i][j], p.links[i][1-j]
			p.add(
				AddAddress{own.Node, own.Name, netip.PrefixFrom(addr, e.Address.Bits())},
				AddNeighbour{peer.Node, peer.Name, addr, own.MAC},
			)
			return
		}
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
		p.add(
			SetSysctl{Node: n.Name, Name: "net.core.somaxconn", Value: "65535"},
			SetSysctl{Node: n.Name, Name: "net.ipv4.tcp_max_syn_backlog", Value: "65535"},
		)
	}
	for _, name := range sortedKeys(n.Sysctls) {
		if name != rpsMask { // which was set before the interfaces were made
			p.add(SetSysctl{Node: n.Name, Name: name, Value: n.Sysctls[name]})
		}
	}
}
