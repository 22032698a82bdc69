package gateway

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
)

// overlaps finds rules that are equally specific and match the same packets: which of
// them would win nobody wrote.
func (c *checker) overlaps() {
	plan := c.asWritten()
	seen := map[Ref]bool{}
	found := func(a, b Ref, side, what string) {
		if b.before(a) {
			a, b = b, a
		}
		if a == b || seen[b] {
			return
		}
		seen[b] = true
		o := c.ruleOf(b)
		o.refuse("rules-overlap", fmt.Sprintf("%s %s too, and nothing tells which of the two is meant", c.named(a), what),
			"make one of them more specific, or leave one out", o.subject(side)...)
	}
	overlappingSources(plan.Sources, found)
	overlappingDestinations(plan.Destinations, found)
	overlappingPairs(plan.Stateless, found)
	overlappingUntracked(plan.Untracked, found)
}

func (r Ref) before(s Ref) bool { return r.Compare(s) < 0 }

// The sides that a rule can be about something of.
const (
	inside  = "inside"
	outside = "outside"
)

// subject is the path to what a rule is about; of a rule with two sides, that one.
func (o one) subject(side string) []any {
	switch {
	case o.Masquerade != nil && len(o.Masquerade.From) > 0, o.SNAT != nil && len(o.SNAT.From) > 0:
		return []any{"from"}
	case o.DNAT != nil, o.Notrack != nil:
		return []any{"on"}
	case o.Static != nil, o.Netmap != nil:
		return []any{side}
	}
	return nil
}

// asWritten is abstract, made once.
func (c *checker) asWritten() *Plan {
	if c.asFile == nil {
		c.asFile = c.abstract()
	}
	return c.asFile
}

// abstract is the plan as the file is written: a name stands for one address that it
// does not share with another, where the host does not tell which it has, and the
// interfaces by which packets come in, which nobody wrote, are left out.
func (c *checker) abstract() *Plan {
	facts := *c.facts
	facts.Interfaces = slices.Clone(facts.Interfaces)
	places := map[string]int{}
	for at, f := range facts.Interfaces {
		places[f.Name] = at
	}
	for i, name := range c.interfaceNames() {
		stand := []netip.Prefix{host(standIn(0, i)), host(standIn(1, i))}
		at, known := places[name]
		if !known {
			facts.Interfaces = append(facts.Interfaces, Interface{Name: name, Addresses: stand})
			continue
		}
		for _, s := range stand {
			if f := &facts.Interfaces[at]; !slices.ContainsFunc(f.Addresses, func(p netip.Prefix) bool { return p.Addr().Is4() == s.Addr().Is4() }) {
				f.Addresses = append(slices.Clone(f.Addresses), s)
			}
		}
	}
	plan, err := Compile(c.config, facts)
	if err != nil { // not with other addresses either
		return c.plan
	}
	for i := range plan.Destinations {
		plan.Destinations[i].In = nil
	}
	return plan
}

// standIn is an address that no file has: of 0.0.0.0/8, or of 100::/64 (RFC 6666).
func standIn(first byte, i int) netip.Addr {
	high, low := byte(i>>8), byte(i)
	if first == 0 {
		return netip.AddrFrom4([4]byte{0, 1, high, low})
	}
	return netip.AddrFrom16([16]byte{0: first, 14: high, 15: low})
}

func isStandIn(a netip.Addr) bool {
	b := a.AsSlice()
	return a.Is4() && b[0] == 0 && b[1] == 1 || a.Is6() && b[0] == 1
}

// interfaceNames are the interfaces that the file names, roles apart.
func (c *checker) interfaceNames() (names []string) {
	seen := map[string]bool{}
	for _, m := range c.names() {
		if !m.isRole() && !seen[m.name] {
			names, seen[m.name] = append(names, m.name), true
		}
	}
	return names
}

// report takes two rules that both do what the words say, to what is on one side.
type report func(a, b Ref, side, what string)

func overlappingSources(all []Source, found report) {
	byFrom := map[netip.Prefix][]*Source{}
	for i := range all {
		s := &all[i]
		if s.Hairpin.Prefix.IsValid() { // their rules' destinations overlap as well
			continue
		}
		for _, p := range anyOf(s.From) {
			overlapping := func(other *Source) bool {
				return other.Rule != s.Rule && compareSources(s, other) == 0 && s.Rule.BitLen() == other.Rule.BitLen() && meet(s.Out, other.Out)
			}
			if at := slices.IndexFunc(byFrom[p], overlapping); at >= 0 {
				found(byFrom[p][at].Rule, s.Rule, inside, "translates the source of "+fromWords(p))
				continue // one is enough
			}
			byFrom[p] = append(byFrom[p], s)
		}
	}
}

func fromWords(p netip.Prefix) string {
	if !p.IsValid() || p.Bits() == 0 {
		return "everybody"
	}
	return Prefix{p}.String()
}

// anyOf are the prefixes, or the zero one where there are none.
func anyOf(prefixes []netip.Prefix) []netip.Prefix {
	if len(prefixes) == 0 {
		return []netip.Prefix{{}}
	}
	return prefixes
}

// meet reports whether two lists of interfaces have one in common; none means any.
func meet(a, b []string) bool {
	return len(a) == 0 || len(b) == 0 || slices.ContainsFunc(a, func(n string) bool { return slices.Contains(b, n) })
}

func overlappingDestinations(all []Destination, found report) {
	type ends struct{ on, from netip.Prefix } // those equally specific meet where these are equal
	var groups groups[ends, *Destination]
	for i := range all {
		for _, from := range anyOf(all[i].From) {
			groups.add(ends{all[i].On, from}, &all[i])
		}
	}
	for _, group := range groups.all {
		sweepPorts(group, func(d *Destination) Port { return d.Port }, func(a, b *Destination) bool {
			overlap := a.Rule != b.Rule && compareDestinations(a, b) == 0
			if overlap {
				found(a.Rule, b.Rule, outside, "translates "+onWordsOf(a.On, a.Port, b.Port))
			}
			return overlap
		})
	}
}

func onWordsOf(on netip.Prefix, a, b Port) string {
	where := Prefix{on}.String()
	if isStandIn(on.Addr()) {
		where = "the interface's address"
	}
	if a.Protocol == "" || b.Protocol == "" {
		return where
	}
	a.First, a.Last = max(a.First, b.First), min(a.last(), b.last())
	return a.String() + " of " + where
}

// groups are those of one key, in the order in which keys came.
type groups[K comparable, T any] struct {
	all [][]T
	of  map[K]int
}

func (g *groups[K, T]) add(key K, t T) {
	at, known := g.of[key]
	if !known {
		if g.of == nil {
			g.of = map[K]int{}
		}
		at = len(g.all)
		g.of[key] = at
		g.all = append(g.all, nil)
	}
	g.all[at] = append(g.all[at], t)
}

// sweepPorts calls overlap for pairs whose ports meet. One that overlaps another is
// not compared with more.
func sweepPorts[T any](all []T, port func(T) Port, overlap func(a, b T) bool) {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b T) int { return orderPorts(port(a), port(b)) })
	var open []T
	for _, next := range all {
		open = slices.DeleteFunc(open, func(t T) bool { return !portsMeet(port(t), port(next)) && !later(port(t), port(next)) })
		if !slices.ContainsFunc(open, func(t T) bool { return portsMeet(port(t), port(next)) && overlap(t, next) }) {
			open = append(open, next)
		}
	}
}

// later reports whether ports that follow p in the order may yet meet a.
func later(a, p Port) bool { return a.Protocol == "" || a.Protocol == p.Protocol && a.First == 0 }

// portsMeet reports whether two have a packet in common.
func portsMeet(a, b Port) bool {
	switch {
	case a.Protocol == "" || b.Protocol == "":
		return true
	case a.Protocol != b.Protocol:
		return false
	case a.First == 0 || b.First == 0:
		return true
	}
	return a.First <= b.last() && b.First <= a.last()
}

// overlappingPairs finds two stateless rules for one address inside or outside.
func overlappingPairs(all []Pair, found report) {
	in, out := map[netip.Prefix]Ref{}, map[netip.Prefix]Ref{}
	for _, p := range all {
		if before, taken := in[p.Inside]; taken {
			found(before, p.Rule, inside, "translates the source of "+Prefix{p.Inside}.String())
		}
		if before, taken := out[p.Outside]; taken {
			found(before, p.Rule, outside, "translates "+Prefix{p.Outside}.String())
		}
		in[p.Inside], out[p.Outside] = p.Rule, p.Rule
	}
}

func overlappingUntracked(all []Untracked, found report) {
	var groups groups[netip.Addr, Untracked]
	for _, u := range all {
		groups.add(u.On, u)
	}
	for _, group := range groups.all {
		sweepPorts(group, func(u Untracked) Port { return u.Port }, func(a, b Untracked) bool {
			overlap := comparePorts(a.Port, b.Port) == 0
			if overlap {
				found(a.Rule, b.Rule, outside, "leaves "+onWordsOf(host(a.On), a.Port, b.Port)+" untracked")
			}
			return overlap
		})
	}
}

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
