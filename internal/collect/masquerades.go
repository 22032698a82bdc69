package collect

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/unix"
)

// masquerades finds the addresses that rules give to what leaves by an interface.
type masquerades struct {
	world
	links     []*link
	addresses []ownAddress
	// gateways are those of routes of IPv4, the default ones first; nil until they are asked for.
	gateways []mainRoute
	asked    bool
}

func newMasquerades(w world) (m *masquerades, err error) {
	m = &masquerades{world: w}
	if m.links, err = w.interfaces(); err != nil {
		return nil, err
	}
	m.addresses, err = w.addresses()
	return m, err
}

// given are the addresses that a rule gives: one of each version of IP that it is for, for each interface that is up and that it
// lets packets leave by.
func (m *masquerades) given(r *snapshot.NATRule) (all []netip.Addr) {
	for _, l := range m.links {
		out := func(c snapshot.NATCondition) bool { return onlyOut(c) && nat.InName(c.OutInterface, l.name) }
		if l.flags&unix.IFF_UP == 0 || r.OutInterface != "" && !nat.InName(r.OutInterface, l.name) && !isGroup(r.OutInterface) || slices.ContainsFunc(r.Unless, out) {
			continue
		}
		for _, v6 := range []bool{false, true} {
			if !mayTranslate(r, v6) {
				continue
			}
			if a := m.source(l, v6, r.ToDestination); a.IsValid() && !slices.Contains(all, a) {
				all = append(all, a)
			}
		}
	}
	return all
}

// isGroup reports whether a name stands for a link group: which interfaces are in it is not read, and any may be.
func isGroup(name string) bool {
	_, is := nat.LinkGroup(name)
	return is
}

// onlyOut reports whether a condition asks for the interface that packets leave by, and nothing else.
func onlyOut(c snapshot.NATCondition) bool {
	return c.OutInterface != "" && c == snapshot.NATCondition{OutInterface: c.OutInterface}
}

// mayTranslate reports whether a rule is for a version of IP.
func mayTranslate(r *snapshot.NATRule, v6 bool) bool {
	for _, p := range []netip.Prefix{r.FromSource, r.ToDestination} {
		if p.IsValid() && p.Addr().Is6() != v6 {
			return false
		}
	}
	return r.Family == "inet" || (r.Family == "ip6") == v6
}

// source is the address that the kernel gives to what leaves by an interface for a destination, or for any where that is not
// valid; not valid where there is none. An interface without an address lends that of another one.
func (m *masquerades) source(l *link, v6 bool, to netip.Prefix) netip.Addr {
	own, others := m.usable(l, v6)
	switch all := append(own, others...); {
	case len(all) == 0:
		return netip.Addr{}
	case v6:
		return m.source6(l, all, to)
	case len(own) == 0:
		return all[0].prefix.Addr()
	}
	return m.source4(l, own)
}

// usable are the addresses of an interface, and of the others, in the kernel's order, that it may give at all.
func (m *masquerades) usable(l *link, v6 bool) (own, others []ownAddress) {
	for _, a := range m.addresses {
		switch {
		case a.prefix.Addr().Is6() != v6 || a.unused != "" || !v6 && (a.secondary || !a.universe):
		case a.link == l.index:
			own = append(own, a)
		default:
			others = append(others, a)
		}
	}
	return own, others
}

// source4 is what nf_nat_masquerade_ipv4 gives by inet_select_addr (net/ipv4/devinet.c): the first primary address whose network
// has the next hop, else the first one. The next hop is assumed to be the gateway of a route of the main table by that interface,
// of the default route where there is one: hosts on another network of the interface see that network's address, which is not
// found here, nor is that of a gateway in another table.
func (m *masquerades) source4(l *link, own []ownAddress) netip.Addr {
	if len(own) > 1 {
		for _, g := range m.nextHops() {
			if i := slices.IndexFunc(own, func(a ownAddress) bool { return a.prefix.Contains(g.via) }); i >= 0 && g.device == l.name {
				return own[i].prefix.Addr()
			}
		}
	}
	return own[0].prefix.Addr()
}

// nextHops are the gateways of IPv4, those of default routes first.
func (m *masquerades) nextHops() []mainRoute {
	if m.asked {
		return m.gateways
	}
	m.asked = true
	routes, _ := m.mainRoutes(mostRoutes)
	for _, byDefault := range []bool{true, false} {
		for _, r := range routes {
			if r.via.IsValid() && (r.to.Bits() == 0) == byDefault {
				m.gateways = append(m.gateways, r)
			}
		}
	}
	return m.gateways
}

// source6 is what nf_nat_masquerade_ipv6 gives by ipv6_dev_get_saddr (net/ipv6/addrconf.c, RFC 6724, section 5): of the rules those
// about deprecated addresses, the interface, labels and temporary addresses, in this order, and the longest common prefix where
// the destination is known. Without one it is assumed to be a public address; which of several public addresses of an interface
// has the longest prefix then depends on it, and the first is taken. Labels are assumed to be the kernel's (ip addrlabel changes
// them).
func (m *masquerades) source6(l *link, all []ownAddress, to netip.Prefix) netip.Addr {
	destination := public(true)
	if to.IsValid() {
		destination = to.Addr()
	}
	temporary := m.prefersTemporary(l)
	rules := []func(ownAddress) bool{
		func(a ownAddress) bool { return a.prefix.Addr() == destination },
		func(a ownAddress) bool { return !a.deprecated },
		func(a ownAddress) bool { return a.link == l.index },
		func(a ownAddress) bool { return label(a.prefix.Addr()) == label(destination) },
		func(a ownAddress) bool { return a.secondary == temporary },
	}
	best := all[0]
	for _, a := range all[1:] { // at a tie the first one stays
		i := slices.IndexFunc(rules, func(is func(ownAddress) bool) bool { return is(a) != is(best) })
		if i >= 0 && rules[i](a) || i < 0 && to.IsValid() && commonBits(a.prefix, destination) > commonBits(best.prefix, destination) {
			best = a
		}
	}
	return best.prefix.Addr()
}

// prefersTemporary reports whether temporary addresses (RFC 8981) of an interface are given first (use_tempaddr, 2).
func (m *masquerades) prefersTemporary(l *link) bool {
	text, err := m.file("/proc/sys/net/ipv6/conf/" + l.name + "/use_tempaddr")
	value, errNumber := strconv.Atoi(strings.TrimSpace(string(text)))
	return err == nil && errNumber == nil && value > 1
}

// labels are those of the kernel (net/ipv6/addrlabel.c) that addresses of hosts may have, by prefixes of which none is in another.
var labels = []netip.Prefix{netip.MustParsePrefix("fc00::/7"), netip.MustParsePrefix("2002::/16"), netip.MustParsePrefix("2001::/32"),
	netip.MustParsePrefix("2001:10::/28"), netip.MustParsePrefix("fec0::/10")}

// label is which of labels an address has, -1 for that of all others.
func label(a netip.Addr) int {
	return slices.IndexFunc(labels, func(p netip.Prefix) bool { return p.Contains(a) })
}

// commonBits is how many bits an address has in common with another one, those of its network at most.
func commonBits(a netip.Prefix, to netip.Addr) (n int) {
	for n < a.Bits() {
		if p, err := a.Addr().Prefix(n + 1); err != nil || !p.Contains(to) {
			break
		}
		n++
	}
	return n
}
