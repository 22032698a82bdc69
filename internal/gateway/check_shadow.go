package gateway

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sort"
	"strings"
)

// shadowed finds rules that can never match, since others match all their packets
// first.
func (c *checker) shadowed() {
	plan := c.asWritten()
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
	s := shadows{plan: plan}
	s.index()
	for i := range plan.Sources {
		if s := &plan.Sources[i]; s.Hairpin.Prefix.IsValid() {
			continue
		}
		entry(plan.Sources[i].Rule, s.overSource(i))
	}
	lost := map[Ref][]Ref{}
	for i := range plan.Destinations {
		d := &plan.Destinations[i]
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
			"leave one of them out", key)
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
	sources      entryIndex
	destinations entryIndex
	// ports are the entries for ports of one address, in their order, clients those for
	// an address by From: thousands may be on one.
	ports     map[netip.Prefix][]int
	clients   map[netip.Prefix]*entryIndex
	untracked map[netip.Addr][]Untracked
	outside   entryIndex
	inside    entryIndex
}

func (s *shadows) index() {
	for i, e := range s.plan.Sources {
		for _, p := range fromOf(&e) {
			s.sources.add(p, i)
		}
	}
	s.ports, s.clients = map[netip.Prefix][]int{}, map[netip.Prefix]*entryIndex{}
	for i, e := range s.plan.Destinations {
		if e.Port.First != 0 {
			s.ports[e.On] = append(s.ports[e.On], i)
		}
		s.destinations.add(e.On, i)
		s.addClients(&e, i)
	}
	for _, entries := range s.ports {
		slices.SortFunc(entries, func(i, j int) int { return orderPorts(s.plan.Destinations[i].Port, s.plan.Destinations[j].Port) })
	}
	for _, of := range s.clients {
		of.sort()
	}
	for i, e := range s.plan.Stateless {
		s.outside.add(e.Outside, i)
		s.inside.add(e.Inside, i)
	}
	s.untracked = map[netip.Addr][]Untracked{}
	for _, u := range s.plan.Untracked {
		s.untracked[u.On] = append(s.untracked[u.On], u)
	}
	s.sources.sort()
	s.destinations.sort()
	s.outside.sort()
	s.inside.sort()
}

func (s *shadows) addClients(e *Destination, i int) {
	if s.clients[e.On] == nil {
		s.clients[e.On] = &entryIndex{}
	}
	from := e.From
	if len(from) == 0 {
		from = []netip.Prefix{anywhere(e.On.Addr().BitLen())}
	}
	for _, p := range from {
		s.clients[e.On].add(p, i)
	}
}

// fromOf are the prefixes of a source entry; those of its family where it has none.
func fromOf(s *Source) []netip.Prefix {
	if len(s.From) > 0 {
		return s.From
	}
	return []netip.Prefix{anywhere(s.Rule.BitLen())}
}

// overSource are the rules that together match all of Sources[i] before it.
func (s *shadows) overSource(i int) (by []Ref) {
	e := &s.plan.Sources[i]
	for _, from := range fromOf(e) {
		var covered []Range
		var rules []Ref
		s.inside.meeting(from, func(j int) {
			if p := &s.plan.Stateless[j]; without(p.Out, e.Out) {
				covered, rules = append(covered, RangeOf(p.Inside)), append(rules, p.Rule)
			}
		})
		s.sources.meeting(from, func(j int) {
			if o := &s.plan.Sources[j]; j < i && o.Rule != e.Rule && o.before(e) {
				for _, p := range fromOf(o) {
					covered = append(covered, RangeOf(p))
				}
				rules = append(rules, o.Rule)
			}
		})
		if !coverAll(covered, RangeOf(from)) {
			return nil
		}
		by = append(by, rules...)
	}
	return by
}

// before reports whether a matches whatever e does, prefixes of From apart.
func (a *Source) before(e *Source) bool {
	return !a.Hairpin.Prefix.IsValid() && without(a.Out, e.Out) &&
		!slices.ContainsFunc(a.NotTo, func(p netip.Prefix) bool { return !slices.Contains(e.NotTo, p) })
}

// without reports whether packets by any of b also match the condition a: nothing, or
// all of b.
func without(a, b []string) bool {
	return len(a) == 0 || len(b) > 0 && !slices.ContainsFunc(b, func(n string) bool { return !slices.Contains(a, n) })
}

// overDestination are the rules that together match all of Destinations[i] before it.
func (s *shadows) overDestination(i int) (by []Ref) {
	e := &s.plan.Destinations[i]
	u := union{of: e}
	if e.On.IsSingleIP() {
		for _, t := range s.untracked[e.On.Addr()] {
			u.add(e.On, t.Port, nil, t.Rule)
		}
	}
	s.outside.meeting(e.On, func(j int) {
		p := &s.plan.Stateless[j]
		u.add(p.Outside, Port{}, nil, p.Rule)
	})
	before := func(j int) {
		if d := &s.plan.Destinations[j]; j < i && d.Rule != e.Rule {
			u.add(d.On, d.Port, d.From, d.Rule)
		}
	}
	switch near := s.nearPorts(e); { // what comes before an entry on one address is on that address
	case !e.On.IsSingleIP() || e.Port.First == 0 && len(e.From) == 0:
		s.destinations.meeting(e.On, before)
	case e.Port.First != 0 && (len(near) <= fewNear || len(e.From) == 0):
		for _, j := range near {
			before(j)
		}
	default:
		for _, p := range e.From {
			s.clients[e.On].meeting(p, before)
		}
	}
	return u.covering()
}

// fewNear are so few entries that it is not worth while to ask for their clients.
const fewNear = 64

// nearPorts are the entries on e's address that may come before it and have one of its
// ports: what comes before has no more ports than e, and so begins less than that
// before it.
func (s *shadows) nearPorts(e *Destination) []int {
	all := s.ports[e.On]
	from := func(first int) int { // the first entry that begins there or later
		return sort.Search(len(all), func(i int) bool {
			p := s.plan.Destinations[all[i]].Port
			return cmp.Or(strings.Compare(p.Protocol, e.Port.Protocol), cmp.Compare(int(p.First), first)) >= 0
		})
	}
	return all[from(int(e.Port.First)-e.Port.span()):from(int(e.Port.last())+1)]
}

// union is what comes before a destination entry. It covers the entry where it does so
// in one dimension, all that it counts there matching whatever the entry does in the
// others: addresses, ports, or clients.
type union struct {
	of                       *Destination
	on, from                 []Range
	ports                    []Port
	byOn, byPorts, byClients []Ref
}

func (u *union) add(on netip.Prefix, port Port, from []netip.Prefix, rule Ref) {
	if !portsMeet(port, u.of.Port) {
		return
	}
	coversOn := RangeOf(on).covers(RangeOf(u.of.On))
	coversPort := coversPorts([]Port{port}, u.of.Port)
	coversFrom := len(from) == 0 || len(u.of.From) > 0 && coversEach(from, u.of.From)
	if coversPort && coversFrom {
		u.on, u.byOn = append(u.on, RangeOf(on)), append(u.byOn, rule)
	}
	if coversOn && coversFrom {
		u.ports, u.byPorts = append(u.ports, port), append(u.byPorts, rule)
	}
	if coversOn && coversPort {
		for _, p := range from {
			u.from = append(u.from, RangeOf(p))
		}
		u.byClients = append(u.byClients, rule)
	}
}

// covering are the rules that cover the entry; none where something is left to it.
func (u *union) covering() []Ref {
	switch {
	case coverAll(u.on, RangeOf(u.of.On)):
		return u.byOn
	case coversPorts(u.ports, u.of.Port):
		return u.byPorts
	case len(u.byClients) > 0 && u.clients():
		return u.byClients
	}
	return nil
}

func (u *union) clients() bool {
	of := u.of.From
	if len(of) == 0 {
		of = []netip.Prefix{anywhere(u.of.On.Addr().BitLen())}
	}
	return !slices.ContainsFunc(of, func(p netip.Prefix) bool { return !coverAll(u.from, RangeOf(p)) })
}

// coversEach reports whether each of b lies in one of a.
func coversEach(a, b []netip.Prefix) bool {
	return !slices.ContainsFunc(b, func(p netip.Prefix) bool {
		return !slices.ContainsFunc(a, func(q netip.Prefix) bool { return RangeOf(q).covers(RangeOf(p)) })
	})
}

// coverAll reports whether ranges together cover r.
func coverAll(ranges []Range, r Range) bool {
	return slices.ContainsFunc(JoinRanges(ranges), func(joined Range) bool { return joined.covers(r) })
}

// coversPorts reports whether ports together cover p.
func coversPorts(ports []Port, p Port) bool {
	if p.First == 0 {
		return slices.ContainsFunc(ports, func(o Port) bool { return o.Protocol == "" || o.Protocol == p.Protocol && o.First == 0 })
	}
	ports = slices.Clone(ports)
	slices.SortFunc(ports, orderPorts)
	next := int(p.First)
	for _, o := range ports {
		switch {
		case o.Protocol == "" || o.Protocol == p.Protocol && o.First == 0:
			return true
		case o.Protocol == p.Protocol && int(o.First) <= next:
			next = max(next, int(o.last())+1)
		}
	}
	return next > int(p.last())
}

// entryIndex finds entries by a prefix that they have.
type entryIndex struct {
	of     map[netip.Prefix][]int
	sorted []netip.Prefix
}

func (x *entryIndex) add(p netip.Prefix, entry int) {
	if x.of == nil {
		x.of = map[netip.Prefix][]int{}
	}
	if _, known := x.of[p]; !known {
		x.sorted = append(x.sorted, p)
	}
	x.of[p] = append(x.of[p], entry)
}

func (x *entryIndex) sort() {
	slices.SortFunc(x.sorted, func(a, b netip.Prefix) int {
		if c := a.Addr().Compare(b.Addr()); c != 0 {
			return c
		}
		return a.Bits() - b.Bits()
	})
}

// meeting calls look for every entry whose prefix contains p or lies in it: those
// above p by their names, those within from where p begins to where it ends.
func (x *entryIndex) meeting(p netip.Prefix, look func(entry int)) {
	for bits := 0; bits < p.Bits(); bits++ {
		for _, e := range x.of[netip.PrefixFrom(p.Addr(), bits).Masked()] {
			look(e)
		}
	}
	last := RangeOf(p).Last
	at := sort.Search(len(x.sorted), func(i int) bool { return !x.sorted[i].Addr().Less(p.Addr()) })
	for ; at < len(x.sorted) && x.sorted[at].Addr().Compare(last) <= 0; at++ {
		if x.sorted[at].Bits() < p.Bits() {
			continue // above, begins at the same address
		}
		for _, e := range x.of[x.sorted[at]] {
			look(e)
		}
	}
}
