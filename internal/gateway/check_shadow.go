package gateway

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"sort"
	"strings"

	"github.com/natkit/natkit/internal/nat"
)

// shadowed finds rules that can never match, since others match all their packets
// first.
func (c *checker) shadowed(plan *Plan, pins *pins) {
	winners := map[Ref]map[Ref]bool{}
	alive := map[Ref]bool{}
	entry := func(r Ref, by []Ref) {
		if len(by) == 0 {
			alive[r] = true
			return
		}
		if winners[r] == nil {
			winners[r] = map[Ref]bool{}
		}
		for _, w := range by {
			winners[r][w] = true
		}
	}
	s := shadows{plan: plan, pins: pins}
	s.index()
	for i := range plan.Sources {
		switch e := &plan.Sources[i]; {
		case e.hasEmptySet():
			alive[e.Rule] = true // it will have something one day
		case !e.IsHairpin():
			entry(e.Rule, s.overSource(i))
		}
	}
	lost := map[Ref][]Ref{}
	for i := range plan.Destinations {
		d := &plan.Destinations[i]
		if d.hasEmptySet() {
			alive[d.Rule] = true
			continue
		}
		by := s.overDestination(i)
		entry(d.Rule, by)
		lost[d.Rule] = append(lost[d.Rule], by...)
	}
	c.never(winners, alive)
	c.halfNever(lost, winners, alive)
}

// never refuses rules of which no entry is left.
func (c *checker) never(winners map[Ref]map[Ref]bool, alive map[Ref]bool) {
	for r, by := range winners {
		if alive[r] {
			continue
		}
		o := c.ruleOf(r)
		o.refuse("rule-never-matches", "it can never match: "+c.first(slices.Collect(maps.Keys(by)))+" first whatever it is for",
			"leave it out, or make it more specific", o.subject(inside)...)
	}
}

// halfNever refuses rules for both directions of which one is left.
func (c *checker) halfNever(lost map[Ref][]Ref, winners map[Ref]map[Ref]bool, alive map[Ref]bool) {
	for r := range winners {
		o := c.ruleOf(r)
		if !alive[r] || o.Static == nil && o.Netmap == nil {
			continue
		}
		by, direction, key := lost[r], "in", outside
		if len(by) == 0 {
			by, direction, key = slices.Collect(maps.Keys(winners[r])), "out", inside
		}
		o.refuse("rule-never-matches", fmt.Sprintf("on the way %s it can never match: %s first whatever it is for", direction, c.first(by)),
			"leave one of them out", o.subject(key)...)
	}
}

// first names rules as the subject of a sentence, with its verb.
func (c *checker) first(rules []Ref) string {
	slices.SortFunc(rules, Ref.Compare)
	rules = slices.Compact(rules)
	const most = 3
	var names []string
	for _, r := range rules[:min(len(rules), most)] {
		names = append(names, c.named(r))
	}
	switch more := len(rules) - most; {
	case more > 0:
		return fmt.Sprintf("%s and %d more match", strings.Join(names, ", "), more)
	case len(rules) == 1:
		return names[0] + " matches"
	}
	return strings.Join(names[:len(names)-1], ", ") + " and " + names[len(names)-1] + " match"
}

// shadows finds what comes before an entry.
type shadows struct {
	plan         *Plan
	pins         *pins
	sources      entryIndex
	destinations entryIndex
	// ports are the entries for ports of one address, by their pins, in their order, clients those for
	// an address by From, as far as they were asked for: thousands may be on one.
	ports     map[pinnedTo][]int
	clients   map[netip.Prefix]*entryIndex
	untracked entryIndex
	outside   entryIndex
	inside    entryIndex
	// tables are the destinations of pairs: each may be on any address.
	tables []int
}

// pinnedTo are an address and a pin.
type pinnedTo struct {
	on netip.Prefix
	pin
}

func (s *shadows) index() {
	for i := range s.plan.Sources {
		for _, p := range s.plan.Sources[i].From {
			s.sources.add(p, s.pins.of(&s.plan.Sources[i]), i)
		}
		s.sources.addTable(s.plan.Sources[i].sideOfPairs(nat.From))
	}
	s.ports, s.clients = map[pinnedTo][]int{}, map[netip.Prefix]*entryIndex{}
	for i := range s.plan.Destinations {
		e := &s.plan.Destinations[i]
		if e.Action.Pairs != "" {
			s.tables = append(s.tables, i)
		}
		s.destinations.addTable(e.sideOfPairs(nat.To))
		at := pinnedTo{e.On(), s.pins.of(e)}
		if len(e.Ports) > 0 {
			s.ports[at] = append(s.ports[at], i)
		}
		s.destinations.add(at.on, at.pin, i)
	}
	for _, entries := range s.ports {
		slices.SortFunc(entries, func(i, j int) int {
			a, b := &s.plan.Destinations[i], &s.plan.Destinations[j]
			return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), orderPorts(a.Ports[0], b.Ports[0]))
		})
	}
	for i := range s.plan.Stateless {
		s.outside.add(s.plan.Stateless[i].Outside(), pin{}, i)
		s.inside.add(s.plan.Stateless[i].Inside(), pin{}, i)
		if pairs := s.plan.Stateless[i].Pairs(); pairs != nil {
			s.outside.addTable(pairs.Side(nat.To))
			s.inside.addTable(pairs.Side(nat.From))
		}
	}
	for i := range s.plan.Untracked {
		s.untracked.add(s.plan.Untracked[i].On(), pin{}, i)
	}
	for _, x := range []*entryIndex{&s.sources, &s.destinations, &s.untracked, &s.outside, &s.inside} {
		x.sort()
	}
}

// clients are the prefixes of From; all of the family where there are none.
func (e *Entry) clients() []netip.Prefix {
	if len(e.From) > 0 {
		return e.From
	}
	return []netip.Prefix{nat.Anywhere(e.Rule.BitLen())}
}

// overSource are the rules that together match all of Sources[i] before it.
func (s *shadows) overSource(i int) []Ref {
	u := union{of: &s.plan.Sources[i], dimensions: sourceDimensions}
	by := s.coverers(u.of)
	stateless := func(j int) { u.add(&s.plan.Stateless[j]) }
	before := func(j int) {
		if o := &s.plan.Sources[j]; j < i && o.Rule != u.of.Rule && o.mayCover(u.of) {
			u.add(o)
		}
	}
	for _, from := range u.of.clients() {
		s.statelessOn(&s.inside, u.of, from, by, stateless)
		s.sources.meeting(from, by, before)
	}
	return u.covering()
}

// statelessOn calls look for the Stateless pairs that may be for packets of an entry: any of them for some of a set of
// pairs, of which each is compared.
func (s *shadows) statelessOn(x *entryIndex, e *Entry, on netip.Prefix, by []pin, look func(int)) {
	if e.Action.Pairs == "" {
		x.meeting(on, by, look)
		return
	}
	for i := range s.plan.Stateless {
		look(i)
	}
}

// mayCover is false where a source asks for something that another does not: of thousands on one network most differ
// so, and comparing them in full takes longer.
func (e *Entry) mayCover(o *Entry) bool {
	return (e.Protocol == 0 || e.Protocol == o.Protocol) && o.further() >= min(e.further(), 1) && (len(e.To) == 0 || len(o.To) > 0) &&
		(len(e.Users) == 0 || len(o.Users) > 0 && (len(e.Users) > 1 || e.Users[0].First <= o.Users[0].First)) &&
		(e.Mark.Mask == 0 || o.Mark.Mask != 0) && (len(e.Ports) != 1 || len(o.Ports) > 0 && e.Ports[0].Contains(o.Ports[0].First))
}

// overDestination are the rules that together match all of Destinations[i] before it.
func (s *shadows) overDestination(i int) []Ref {
	e := &s.plan.Destinations[i]
	u, by := union{of: e, dimensions: destinationDimensions}, s.coverers(e)
	if e.On().IsSingleIP() {
		s.untracked.meeting(e.On(), by, func(j int) { u.add(&s.plan.Untracked[j]) })
	}
	stateless := func(j int) {
		p := &s.plan.Stateless[j]
		u.add(&Entry{Rule: p.Rule, Match: p.comesFor()})
	}
	before := func(j int) {
		if d := &s.plan.Destinations[j]; j < i && d.Rule != e.Rule && !d.apart(e) {
			u.add(d)
		}
	}
	s.statelessOn(&s.outside, e, e.On(), by, stateless)
	for _, j := range s.tables {
		before(j)
	}
	switch near := s.nearPorts(e, by); { // what comes before an entry on one address is on that address
	case !e.On().IsSingleIP() || by == nil || len(e.Ports) == 0 && len(e.From) == 0:
		s.destinations.meeting(e.On(), by, before)
	case len(e.Ports) > 0 && (len(near) <= fewNear || len(e.From) == 0):
		for _, j := range near {
			before(j)
		}
	default:
		for _, p := range e.From {
			s.clientsOf(e.On()).meeting(p, by, before)
		}
	}
	return u.covering()
}

// comesFor is what a Stateless pair is for on the way in.
func (e *Entry) comesFor() nat.Match {
	m := nat.Match{To: []netip.Prefix{e.Outside()}, Members: e.ofPairs()}
	for i := range m.Members {
		m.Members[i].Of = nat.To
	}
	return m
}

// clientsOf are the entries on an address, by From.
func (s *shadows) clientsOf(on netip.Prefix) *entryIndex {
	if s.clients[on] == nil {
		x := &entryIndex{}
		s.destinations.at(on, nil, func(i int) {
			for _, p := range s.plan.Destinations[i].clients() {
				x.add(p, s.pins.of(&s.plan.Destinations[i]), i)
			}
		})
		x.sort()
		s.clients[on] = x
	}
	return s.clients[on]
}

// fewNear are so few entries that it is not worth while to ask for their clients.
const fewNear = 64

// nearPorts are the entries on e's address that may come before it and have one of its
// ports: what comes before has no more ports than e, and so begins less than that
// before it.
func (s *shadows) nearPorts(e *Entry, by []pin) (near []int) {
	if len(e.Ports) == 0 {
		return nil
	}
	for _, p := range by {
		all := s.ports[pinnedTo{e.On(), p}]
		from := func(first int) int { // the first entry that begins there or later
			return sort.Search(len(all), func(i int) bool {
				d := &s.plan.Destinations[all[i]]
				return cmp.Or(cmp.Compare(d.Protocol, e.Protocol), cmp.Compare(int(d.Ports[0].First), first)) >= 0
			})
		}
		near = append(near, all[from(int(e.Ports[0].First)-e.span()):from(int(e.Ports[len(e.Ports)-1].Last)+1)]...)
	}
	return near
}

// coverers are the pins that what matches all of an entry may have; nil for any.
func (s *shadows) coverers(e *Entry) []pin {
	if by, few := s.pins.covering(e); few {
		return by
	}
	return nil
}

// union is what comes before an entry. It covers the entry where it does so in one
// dimension, all that counts there matching whatever the entry does in the others.
type union struct {
	of         *Entry
	dimensions []dimension
	// along are the entries that cover this one but for one of dimensions, by its index.
	along [3][]*Entry
}

// dimension is what a union can be made along: the conditions that are not asked of each
// entry, and whether several together meet them.
type dimension struct {
	without func(nat.Match) nat.Match
	cover   func(all []*Entry, e *Entry) bool
}

var (
	alongClients = dimension{func(m nat.Match) nat.Match { m.From, m.Members = nil, withoutPairs(m.Members, nat.From); return m }, func(all []*Entry, e *Entry) bool {
		return coverPrefixes(all, e, nat.From)
	}}
	sourceDimensions      = []dimension{alongClients}
	destinationDimensions = []dimension{
		{func(m nat.Match) nat.Match { m.To, m.Members = nil, withoutPairs(m.Members, nat.To); return m }, func(all []*Entry, e *Entry) bool {
			return coverPrefixes(all, e, nat.To)
		}},
		{func(m nat.Match) nat.Match { m.Protocol, m.Ports = 0, nil; return m }, coverPorts},
		alongClients,
	}
)

func (u *union) add(before *Entry) {
	if before.Rule.BitLen() != u.of.Rule.BitLen() {
		return // a set of pairs may have addresses of both families
	}
	for i, d := range u.dimensions {
		if without := d.without(before.Match); without.Covers(&u.of.Match) {
			u.along[i] = append(u.along[i], before)
		}
	}
}

// covering are the rules that cover the entry; none where something is left to it.
func (u *union) covering() (rules []Ref) {
	for i, d := range u.dimensions {
		if len(u.along[i]) > 0 && d.cover(u.along[i], u.of) {
			for _, e := range u.along[i] {
				rules = append(rules, e.Rule)
			}
			return rules
		}
	}
	return nil
}

// coverPrefixes reports whether the addresses that entries ask for on one side, which are all where
// they ask for none, together cover those of an entry.
func coverPrefixes(all []*Entry, e *Entry, side nat.Condition) bool {
	own := e.rangesOn(side)
	var ranges nat.AddrRanges
	for _, one := range all {
		if pairs := one.sideOfPairs(side); pairs != nil {
			for _, r := range own {
				ranges = append(ranges, pairs.Of(r.First.BitLen()).Within(r)...)
			}
			continue
		}
		asked := one.From
		if side == nat.To {
			asked = one.To
		}
		if len(asked) == 0 {
			return true
		}
		for _, p := range asked {
			ranges = append(ranges, nat.RangeOf(p))
		}
	}
	ranges = ranges.Join()
	return len(own) > 0 && !slices.ContainsFunc(own, func(r nat.AddrRange) bool {
		in := ranges.Within(r)
		return len(in) != 1 || !in[0].Covers(r)
	})
}

// rangesOn are the addresses that an entry asks for on one side: of clients that it names none of all of the family.
func (e *Entry) rangesOn(side nat.Condition) (all nat.AddrRanges) {
	if pairs := e.sideOfPairs(side); pairs != nil {
		return pairs.Of(e.Rule.BitLen())
	}
	prefixes := e.To
	if side == nat.From {
		prefixes = e.clients()
	}
	for _, p := range prefixes {
		all = append(all, nat.RangeOf(p))
	}
	return all
}

// coverPorts reports whether entries together have the protocol and the ports of an entry.
func coverPorts(all []*Entry, e *Entry) bool {
	together := nat.Match{Protocol: e.Protocol}
	for _, m := range all {
		switch {
		case m.Protocol == 0, m.Protocol == e.Protocol && len(m.Ports) == 0:
			return true
		case m.Protocol == e.Protocol:
			together.Ports = append(together.Ports, m.Ports...)
		}
	}
	return len(together.Ports) > 0 && e.Protocol != 0 && together.Covers(&nat.Match{Protocol: e.Protocol, Ports: e.Ports})
}

// entryIndex finds entries by a prefix that they have, and a pin.
type entryIndex struct {
	of     map[netip.Prefix]*byPin
	sorted []netip.Prefix
	// has are the lengths of prefixes that there are.
	has [129]bool
	// tables are sets of single addresses that entries for all addresses ask for.
	tables []*nat.Set
	// within are those whose prefix lies within one that was asked for, where they may cover it.
	within map[netip.Prefix][]netip.Prefix
}

// byPin are entries of one prefix.
type byPin struct {
	// free have no pin.
	free   []int
	pinned map[pin][]int
}

func (x *entryIndex) add(p netip.Prefix, by pin, entry int) {
	if x.of == nil {
		x.of = map[netip.Prefix]*byPin{}
	}
	here := x.of[p]
	if here == nil {
		here = &byPin{}
		x.sorted, x.of[p], x.has[p.Bits()] = append(x.sorted, p), here, true
	}
	if by == (pin{}) {
		here.free = append(here.free, entry)
		return
	}
	if here.pinned == nil {
		here.pinned = map[pin][]int{}
	}
	here.pinned[by] = append(here.pinned[by], entry)
}

// withoutPairs are conditions but for those on pairs on one side.
func withoutPairs(all []nat.Member, side nat.Condition) []nat.Member {
	if !slices.ContainsFunc(all, func(x nat.Member) bool { return x.Pairs && x.Of == side }) {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), func(x nat.Member) bool { return x.Pairs && x.Of == side })
}

func (x *entryIndex) addTable(side *nat.Set) {
	if side != nil {
		x.tables = append(x.tables, side)
	}
}

// sideOfPairs are the addresses of the pairs that an entry asks for on one side; nil where it asks for none.
func (e *Entry) sideOfPairs(side nat.Condition) *nat.Set {
	for i := range e.Members {
		if m := &e.Members[i]; m.Pairs && m.Of == side {
			return m.Set.Side(side)
		}
	}
	return nil
}

// at calls look for the entries of a prefix that have none or one of some pins (nil: for all of them).
func (x *entryIndex) at(p netip.Prefix, by []pin, look func(entry int)) {
	here := x.of[p]
	if here == nil {
		return
	}
	each := func(entries []int) {
		for _, e := range entries {
			look(e)
		}
	}
	each(here.free)
	if by == nil {
		for _, entries := range here.pinned {
			each(entries)
		}
	}
	for _, one := range by {
		each(here.pinned[one])
	}
}

func (x *entryIndex) sort() {
	slices.SortFunc(x.sorted, func(a, b netip.Prefix) int {
		if c := a.Addr().Compare(b.Addr()); c != 0 {
			return c
		}
		return a.Bits() - b.Bits()
	})
}

// meeting calls look for every entry of one of some pins (nil: of any) whose prefix contains p, and for those whose
// prefix lies within it where these could cover p together, as they have as many addresses.
func (x *entryIndex) meeting(p netip.Prefix, by []pin, look func(entry int)) {
	for bits := 0; bits <= p.Bits(); bits++ {
		if x.has[bits] {
			x.at(netip.PrefixFrom(p.Addr(), bits).Masked(), by, look)
		}
	}
	for _, q := range x.filling(p) {
		x.at(q, by, look)
	}
}

// filling are the prefixes within p; none where they have fewer addresses than it.
func (x *entryIndex) filling(p netip.Prefix) []netip.Prefix {
	within, known := x.within[p]
	if known {
		return within
	}
	after := func(a netip.Addr, bits int) int { // those after a, and longer ones that begin there
		return sort.Search(len(x.sorted), func(i int) bool {
			q := x.sorted[i]
			return a.Less(q.Addr()) || q.Addr() == a && q.Bits() > bits
		})
	}
	within = x.sorted[after(p.Addr(), p.Bits()):after(nat.RangeOf(p).Last, p.Addr().BitLen())]
	share := 0.0
	for _, q := range within {
		share += math.Ldexp(1, p.Bits()-q.Bits())
	}
	for _, t := range x.tables {
		for _, r := range t.Of(p.Addr().BitLen()).Within(nat.RangeOf(p)) {
			share += math.Ldexp(float64(r.Size()), p.Bits()-p.Addr().BitLen())
		}
	}
	if share < 1-1e-9 { // rounding
		within = nil
	}
	if x.within == nil {
		x.within = map[netip.Prefix][]netip.Prefix{}
	}
	x.within[p] = within
	return within
}
