package lab

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
)

// routes gives a node with one router beside it a default route of each family,
// another node one route for each subnet that it has no address in.
func (p *planner) routes(node string) {
	for _, everything := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		bits := everything.BitLen()
		hops := p.firstHops(node, bits)
		if via := p.onlyRouter(node, bits); via.IsValid() {
			p.add(AddRoute{node, netip.PrefixFrom(everything, 0), via})
			continue
		}
		subnets := slices.SortedFunc(maps.Keys(hops), func(a, b netip.Prefix) int {
			return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
		})
		for _, subnet := range subnets {
			p.add(AddRoute{node, subnet, hops[subnet]})
		}
	}
}

// onlyRouter is the one neighbour of a node in a family, where that leads further; not
// valid where there are several, or none.
func (p *planner) onlyRouter(node string, bits int) (via netip.Addr) {
	router := ""
	for _, l := range p.s.Topology.Links {
		own, peer := l[0], l[1]
		if peer.Node == node {
			own, peer = peer, own
		}
		if own.Node != node || own.Address.Addr().BitLen() != bits {
			continue
		}
		if router != "" {
			return netip.Addr{}
		}
		router, via = peer.Node, peer.Address.Addr()
	}
	if !p.forwards(router) || len(p.s.Addresses(router)) < 2 {
		return netip.Addr{}
	}
	return via
}

// firstHops finds, breadth first through nodes that forward, which neighbour
// leads to each subnet of a family that the node is not in itself.
func (p *planner) firstHops(node string, bits int) map[netip.Prefix]netip.Addr {
	type visit struct {
		node string
		via  netip.Addr // the neighbour of the start that leads here
	}
	own := map[netip.Prefix]bool{}
	hops := map[netip.Prefix]netip.Addr{}
	seen := map[string]bool{node: true}
	queue := []visit{{node: node}}
	for len(queue) > 0 {
		v := queue[0]
		queue = queue[1:]
		for _, l := range p.s.Topology.Links {
			here, there := l[0], l[1]
			if there.Node == v.node {
				here, there = there, here
			}
			if here.Node != v.node || here.Address.Addr().BitLen() != bits {
				continue
			}
			subnet := here.Address.Masked()
			if v.node == node {
				own[subnet] = true
				delete(hops, subnet)
			} else if _, known := hops[subnet]; !known && !own[subnet] {
				hops[subnet] = v.via
			}
			if !seen[there.Node] && p.forwards(there.Node) {
				seen[there.Node] = true
				via := v.via
				if v.node == node {
					via = there.Address.Addr()
				}
				queue = append(queue, visit{there.Node, via})
			}
		}
	}
	return hops
}

func (p *planner) forwards(node string) bool {
	return slices.ContainsFunc(p.s.Topology.Nodes, func(n NodeSpec) bool { return n.Name == node && n.Forward })
}
