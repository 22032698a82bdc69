package gateway

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"cmp"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
)

// overlaps reports rules that are equally specific and match the same packets: the file
// does not define which of them wins. It returns those that it refuses.
func (c *checker) overlaps(plan *Plan) map[Ref]bool {
	seen := map[Ref]bool{}
	for e := range plan.Entries() {
		if o := c.ruleOf(e.Rule); !seen[e.Rule] && !e.Overlaps(&e.Match) && !e.hasEmptySet() {
			seen[e.Rule] = true
			o.refuse("rule-never-matches", "it can never match: what it excepts is all that it asks for", "leave out one of them", o.subject(inside)...)
		}
	}
	found := func(a, b Ref, side, what string) {
		if b.before(a) {
			a, b = b, a
		}
		if a == b || seen[b] {
			return
		}
		seen[b] = true
		o := c.ruleOf(b)
		o.refuse("rules-overlap", fmt.Sprintf("%s %s too, and neither takes precedence", c.named(a), what),
			"make one of them more specific, give one of them prefer: 1, or leave one out", o.subject(side)...)
	}
	for _, list := range [][]Entry{plan.Sources, plan.Destinations, plan.Untracked} {
		c.pins.overlapping(list, found)
		overlappingTables(list, found)
	}
	overlappingPairs(plan.Stateless, found)
	return seen
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
	case o.Static != nil && o.Static.Pairs != "":
		return []any{"pairs"}
	case o.Static != nil, o.Netmap != nil:
		return []any{side}
	}
	return nil
}

// asWritten returns the plan as the file is written: a name stands for one address, which it
// shares with no other name where the host's addresses are unknown, and the interfaces by
// which packets come in are left out where the rule does not name them.
func (c *checker) asWritten() *Plan {
	plan := *c.plan
	if c.onNames() {
		plan = *c.withStandIns()
	}
	plan.Destinations = slices.Clone(plan.Destinations)
	for i := range plan.Destinations {
		if d := &plan.Destinations[i]; !d.Asked {
			d.In = nil
		}
	}
	return &plan
}

// onNames reports whether a rule is on the addresses of an interface.
func (c *checker) onNames() (is bool) {
	c.config.each(func(r Rule, _ Ref) { is = is || r.DNAT != nil && r.DNAT.On.Name != "" && r.DNAT.On.Name != OnAny })
	return is
}

// withStandIns is the plan for a host where each interface that the file names has an
// address of each family.
func (c *checker) withStandIns() *Plan {
	facts := *c.facts
	facts.Interfaces = slices.Clone(facts.Interfaces)
	places := map[string]int{}
	for at, f := range facts.Interfaces {
		places[f.Name] = at
	}
	for i, name := range c.interfaceNames() {
		stand := []netip.Prefix{nat.Host(standIn(0, i)), nat.Host(standIn(1, i))}
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

// apart reports whether no packet comes to both of two destinations: one is for the gateway's own programs, the other
// for none of theirs.
func (e *Entry) apart(o *Entry) bool {
	return !e.Action.Kind.TranslatesSource() && (e.IsOwn() && !o.Local || o.IsOwn() && !e.Local)
}

// overlapping finds entries of one list that are equally specific and match some packet
// both. Those of hairpins are left out, as their rules' destinations overlap as well.
func (x *pins) overlapping(list []Entry, found report) {
	type ends struct{ on, from netip.Prefix } // those equally specific meet where these are equal
	groups, order := map[ends][]*Entry{}, []ends(nil)
	for i := range list {
		e := &list[i]
		if e.IsHairpin() || e.Action.Pairs != "" {
			continue
		}
		for _, on := range anyOf(e.To) {
			for _, from := range anyOf(e.From) {
				key := ends{on, from}
				if groups[key] == nil {
					order = append(order, key)
				}
				groups[key] = append(groups[key], e)
			}
		}
	}
	for _, key := range order {
		overlap := func(a, b *Entry) bool {
			overlap := a.Rule != b.Rule && !a.apart(b) && compareEntries(a, b) == 0 && a.Overlaps(&b.Match)
			if overlap {
				side, what := inside, "translates the source of "+fromWords(key.from, a)
				switch a.Action.Kind {
				case nat.DNAT, nat.Redirect:
					side, what = outside, "translates "+commonWords(key.on, a, b)
				case nat.Notrack:
					side, what = outside, "leaves "+commonWords(key.on, a, b)+" untracked"
				}
				found(a.Rule, b.Rule, side, what)
			}
			return overlap
		}
		for _, part := range x.split(groups[key]) {
			sweepPorts(part, overlap)
		}
	}
}

// overlappingTables is overlapping of entries that have a set of pairs: each is compared with all others.
func overlappingTables(list []Entry, found report) {
	for i := range list {
		e := &list[i]
		if e.IsHairpin() || e.Action.Pairs == "" {
			continue
		}
		for j := range list {
			o := &list[j]
			if o.IsHairpin() || o.Rule == e.Rule || o.Action.Pairs != "" && j < i || compareEntries(e, o) != 0 || e.apart(o) || !e.Overlaps(&o.Match) {
				continue
			}
			side, what := outside, "translates some addresses of $"+e.Action.Pairs
			if e.Action.Kind.TranslatesSource() {
				side, what = inside, "translates the source of some addresses of $"+e.Action.Pairs
			}
			found(e.Rule, o.Rule, side, what)
		}
	}
}

// hasEmptySet reports whether an entry asks for a set that has nothing, as that of a feed may at times.
func (e *Entry) hasEmptySet() bool {
	return slices.ContainsFunc(e.Members, func(x nat.Member) bool {
		return !x.Not && x.Set.LenOf(e.Rule.BitLen()) == 0
	})
}

func fromWords(p netip.Prefix, e *Entry) string {
	if i := slices.IndexFunc(e.Members, func(x nat.Member) bool { return x.Of == nat.From && !x.Not }); i >= 0 {
		return "$" + e.Members[i].Name
	}
	if !p.IsValid() || p.Bits() == 0 {
		return "everybody"
	}
	return nat.PrefixString(p)
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
	m, o := nat.Match{Out: a}, nat.Match{Out: b}
	return m.Overlaps(&o)
}

// commonWords are what two entries on an address have in common.
func commonWords(on netip.Prefix, a, b *Entry) string {
	where := nat.PrefixString(on)
	if isStandIn(on.Addr()) {
		where = "the interface's address"
	}
	if both := common(&a.Match, &b.Match); both != "" {
		return both + " of " + where
	}
	return where
}

// service is the protocol and one range of ports of an entry.
type service struct {
	e     *Entry
	ports nat.Ports
}

// meets reports whether two have a packet in common.
func (s service) meets(o service) bool {
	p, q := s.e.Protocol, o.e.Protocol
	_, common := s.ports.Common(o.ports)
	return p == 0 || q == 0 || p == q && common
}

// sweepPorts calls overlap for pairs whose ports meet. One that overlaps another is
// not compared with more.
func sweepPorts(entries []*Entry, overlap func(a, b *Entry) bool) {
	var all, open []service
	for _, e := range entries {
		for _, p := range e.Ports {
			all = append(all, service{e, p})
		}
		if len(e.Ports) == 0 {
			all = append(all, service{e, nat.AllPorts})
		}
	}
	slices.SortStableFunc(all, func(a, b service) int {
		return cmp.Or(cmp.Compare(a.e.Protocol, b.e.Protocol), orderPorts(a.ports, b.ports))
	})
	for _, next := range all {
		open = slices.DeleteFunc(open, func(s service) bool { return !s.meets(next) })
		if !slices.ContainsFunc(open, func(s service) bool { return overlap(s.e, next.e) }) {
			open = append(open, next)
		}
	}
}

// overlappingPairs finds two stateless rules for one address inside or outside, and an interface.
func overlappingPairs(all []Entry, found report) {
	in, out := map[netip.Prefix][]*Entry{}, map[netip.Prefix][]*Entry{}
	taken := func(by map[netip.Prefix][]*Entry, of netip.Prefix, p *Entry, side, what string) {
		for _, before := range by[of] {
			if meet(before.Out, p.Out) {
				found(before.Rule, p.Rule, side, what+nat.PrefixString(of))
				break
			}
		}
		by[of] = append(by[of], p)
	}
	var tables []*Entry
	for i := range all {
		p := &all[i]
		if p.Action.Pairs != "" {
			tables = append(tables, p)
			continue
		}
		taken(in, p.Inside(), p, inside, "translates the source of ")
		taken(out, p.Outside(), p, outside, "translates ")
	}
	for i, t := range tables {
		var others []*Entry
		for j := range all {
			if all[j].Action.Pairs == "" {
				others = append(others, &all[j])
			}
		}
		for _, o := range append(others, tables[i+1:]...) {
			in, out := t.comesFor(), o.comesFor()
			sources := nat.Match{From: t.From, Members: t.Members}
			switch {
			case t.Rule == o.Rule || !meet(t.Out, o.Out) || o.length(nat.From) != t.length(nat.From):
			case in.Overlaps(&out):
				found(t.Rule, o.Rule, outside, "translates some addresses of $"+t.Action.Pairs)
			case sources.Overlaps(&nat.Match{From: o.From, Members: o.Members}):
				found(t.Rule, o.Rule, inside, "translates the source of some addresses of $"+t.Action.Pairs)
			}
		}
	}
}

// MatchOf is what a condition of another program's rule asks for.
func MatchOf(c snapshot.NATCondition) (m nat.Match) {
	if c.FromSource.IsValid() {
		m.From = []netip.Prefix{c.FromSource}
	}
	if c.ToDestination.IsValid() {
		m.To = []netip.Prefix{c.ToDestination}
	}
	if c.DestinationPort != 0 {
		m.Ports = []nat.Ports{{First: c.DestinationPort, Last: max(c.DestinationPort, c.LastDestinationPort)}}
	}
	m.Protocol, _ = Port{Protocol: c.Protocol}.Number()
	m.In, m.Out = pattern(c.InInterface), pattern(c.OutInterface)
	m.ToLocal = c.LocalDestination
	return m
}

// pattern is a name as rules have it: iptables writes eth+ for all that begin so, nft eth*.
func pattern(name string) []string {
	if name == "" {
		return nil
	}
	if stem, is := strings.CutSuffix(name, "+"); is {
		name = stem + "*"
	}
	return []string{name}
}

// meets reports whether a rule of others can be for some of these packets, and no
// exception of it takes them all.
func (c *checker) meets(n *snapshot.NATRule, t *nat.Match) bool {
	m := MatchOf(n.NATCondition)
	local := !m.ToLocal || len(t.To) == 0 || slices.ContainsFunc(t.To, c.hasAddressIn)
	m.ToLocal = false
	return local && m.Overlaps(t) &&
		!slices.ContainsFunc(n.Unless, func(u snapshot.NATCondition) bool { return c.contains(u, t) })
}

// contains reports whether a condition holds for all of these packets.
func (c *checker) contains(n snapshot.NATCondition, t *nat.Match) bool {
	m := MatchOf(n)
	local := !m.ToLocal || len(t.To) > 0 && !slices.ContainsFunc(t.To, func(p netip.Prefix) bool {
		return !p.IsSingleIP() || !c.hasAddressIn(p)
	})
	m.ToLocal = false
	return local && m.Covers(t)
}

// hasAddressIn reports whether an interface has an address in the prefix.
func (c *checker) hasAddressIn(p netip.Prefix) bool {
	return slices.ContainsFunc(c.facts.Interfaces, func(i Interface) bool {
		return slices.ContainsFunc(i.Addresses, func(a netip.Prefix) bool { return p.Contains(a.Addr()) })
	})
}
