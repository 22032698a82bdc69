package gateway

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
)

// traffic is packets that an entry of the plan is for; what is empty is any.
type traffic struct {
	from, to []netip.Prefix
	in, out  []string
	port     Port
}

// meets reports whether a rule of others can be for some of these packets, and no
// exception of it takes them all.
func (c *checker) meets(n *snapshot.NATRule, t traffic) bool {
	return c.overlap(n.Condition(), t) &&
		!slices.ContainsFunc(n.Unless, func(u snapshot.NATCondition) bool { return c.contains(u, t) })
}

// overlap reports whether a condition can hold for some of these packets.
func (c *checker) overlap(n snapshot.NATCondition, t traffic) bool {
	return meetOne(n.FromSource, t.from) && meetOne(n.ToDestination, t.to) &&
		meetName(n.InInterface, t.in) && meetName(n.OutInterface, t.out) &&
		portsMeet(portOf(n), t.port) &&
		(!n.LocalDestination || len(t.to) == 0 || slices.ContainsFunc(t.to, c.hasAddressIn))
}

// contains reports whether a condition holds for all of these packets.
func (c *checker) contains(n snapshot.NATCondition, t traffic) bool {
	lies := func(p netip.Prefix, list []netip.Prefix) bool {
		return !p.IsValid() || len(list) > 0 && !slices.ContainsFunc(list, func(one netip.Prefix) bool {
			return one.Bits() < p.Bits() || !p.Contains(one.Addr())
		})
	}
	named := func(name string, list []string) bool {
		return name == "" || len(list) > 0 && !slices.ContainsFunc(list, func(one string) bool { return !meetName(name, []string{one}) })
	}
	p := portOf(n)
	return lies(n.FromSource, t.from) && lies(n.ToDestination, t.to) &&
		named(n.InInterface, t.in) && named(n.OutInterface, t.out) &&
		(p == Port{} || p.Protocol == t.port.Protocol && (p.First == 0 || t.port.First != 0 && p.has(t.port.First) && p.has(t.port.last()))) &&
		(!n.LocalDestination || len(t.to) > 0 && !slices.ContainsFunc(t.to, func(p netip.Prefix) bool {
			return !p.IsSingleIP() || !c.hasAddressIn(p)
		}))
}

func portOf(n snapshot.NATCondition) Port {
	return Port{n.Protocol, n.DestinationPort, max(n.DestinationPort, n.LastDestinationPort)}
}

// hasAddressIn reports whether an interface has an address in the prefix.
func (c *checker) hasAddressIn(p netip.Prefix) bool {
	return slices.ContainsFunc(c.facts.Interfaces, func(i Interface) bool {
		return slices.ContainsFunc(i.Addresses, func(a netip.Prefix) bool { return p.Contains(a.Addr()) })
	})
}

// meetOne reports whether a prefix, where it is valid, has a part in one of a list, where
// that has any.
func meetOne(p netip.Prefix, list []netip.Prefix) bool {
	return !p.IsValid() || len(list) == 0 || slices.ContainsFunc(list, p.Overlaps)
}

// meetName is meetOne of interfaces; a foreign name may end in + or *.
func meetName(name string, list []string) bool {
	if name == "" || len(list) == 0 {
		return true
	}
	stem := strings.TrimRight(name, "+*")
	return slices.ContainsFunc(list, func(n string) bool { return n == name || stem != name && strings.HasPrefix(n, stem) })
}
