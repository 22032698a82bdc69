package lab

import (
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/gateway"
)

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
func outsideOf(r *gateway.Rule) []gateway.Range {
	host := func(a netip.Addr) []gateway.Range { return []gateway.Range{{First: a, Last: a}} }
	switch {
	case r.SNAT != nil:
		return r.SNAT.To
	case r.DNAT != nil && r.DNAT.On.Address.IsValid():
		return host(r.DNAT.On.Address)
	case r.Static != nil:
		return host(r.Static.Outside.Addr)
	case r.Netmap != nil:
		return []gateway.Range{gateway.RangeOf(r.Netmap.Outside.Prefix)}
	}
	return nil
}

// inLinks are the addresses of a range that hosts of a link's subnet can have, up to
// one more than a node may get.
func (s *Scenario) inLinks(node string, r gateway.Range) (all []natAddress) {
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
