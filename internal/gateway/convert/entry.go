// Package convert translates rules of netfilter into a gateway file. It translates what a
// gateway file expresses exactly, and gives the reason for everything else.
package convert

import (
	"math"
	"net/netip"
	"reflect"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/ruleset"
	"github.com/natkit/natkit/internal/snapshot"
)

// entry is a rule on one path, for one version of IP.
type entry struct {
	*ruleset.Entry
	side
	// also are the rules that it stands for beside its own, such as those for a share of its packets each.
	also []*ruleset.Rule
}

// side is what the order of entries matters in.
type side struct {
	version int
	hook    string
	// filter is true if the base chain is not of type nat.
	filter bool
	// translates is true of rules after which no other is asked.
	translates bool
}

var versionsOf = map[string][]int{"ip": {4}, "ip6": {6}, "inet": {4, 6}}

// ofInterest keeps the rules that do not only lead on.
func ofInterest(_ *ruleset.Chain, r *ruleset.Rule) bool {
	switch r.Target.Kind {
	case ruleset.Accept, ruleset.Return, ruleset.Jump, ruleset.Goto:
		return r.Target.Outside()
	}
	return true
}

// flatten follows packets through all tables, in the order in which they reach rules.
// full is true if not all of it was followed: filters come last.
func flatten(set *ruleset.Ruleset, budget *ruleset.Budget) (all []*entry, full bool) {
	var found []*ruleset.Entry
	version := map[*ruleset.Entry]int{}
	for _, filter := range []bool{false, true} {
		for _, t := range set.Tables {
			for _, v := range versionsOf[t.Family] {
				for _, c := range t.Chains {
					if c.Hook == "" || filter != (c.Type != "nat") {
						continue
					}
					some, more := t.Flatten(c, ruleset.Query{Version: v, Keep: ofInterest}, budget)
					for _, e := range some {
						version[e] = v
					}
					found, full = append(found, some...), full || more
				}
			}
		}
	}
	ruleset.InHookOrder(found)
	for i := 0; i < len(found); {
		e, n := shared(found[i:], version)
		for _, x := range e.Except {
			x.Match.Plain(e.Base.Hook == "output")
		}
		e.Match.Plain(e.Base.Hook == "output")
		one := &entry{Entry: e, side: side{version[found[i]], e.Base.Hook, e.Base.Type != "nat", e.Rule.Target.Translates()}}
		for _, x := range found[i : i+n] {
			if x.Rule != e.Rule {
				one.also = append(one.also, x.Rule)
			}
		}
		all, i = append(all, one.perPort()...), i+n
	}
	return all, full
}

// shared is an entry for the first ones, as many as it says, of which each has a share of the packets and the last one
// those that are left, each for another destination; else it is the first one.
func shared(list []*ruleset.Entry, version map[*ruleset.Entry]int) (*ruleset.Entry, int) {
	first := list[0]
	if first.Match.Share == 0 || first.Owner != "" || !isOneHost(&first.Rule.Target) {
		return first, 1
	}
	all, left := first.Match.WithoutShare(), 1.0
	var shares []float64
	for i, e := range list {
		m := e.Match.WithoutShare()
		if e.Chain != first.Chain || version[e] != version[first] || !isOneHost(&e.Rule.Target) || !reflect.DeepEqual(m, all) ||
			(e.Rule.Target.Ports == nat.Ports{}) != (first.Rule.Target.Ports == nat.Ports{}) {
			break
		}
		share := left
		if e.Match.Share > 0 {
			share *= float64(e.Match.Share) / (1 << 31)
		}
		left, shares = left-share, append(shares, share)
		if e.Match.Share > 0 {
			continue
		}
		one, rule := *e, *e.Rule
		for at, n := range numbersOf(shares) {
			t := &list[at].Rule.Target
			rule.Target.Drawn = append(rule.Target.Drawn, snapshot.Drawn{Address: t.First, Port: t.Ports.First, Numbers: n})
		}
		rule.Target.First, rule.Target.Last, rule.Target.Ports = netip.Addr{}, netip.Addr{}, nat.Ports{}
		one.Rule, one.Match = &rule, all
		return &one, i + 1
	}
	return first, 1
}

// isOneHost reports whether a target is one destination.
func isOneHost(t *ruleset.Target) bool {
	return t.Kind == ruleset.DNAT && t.First.IsValid() && t.First == t.Last && t.Ports.First == t.Ports.Last && t.Base == 0 && len(t.Unknown) == 0 && t.Besides == "" && !t.Random && !t.FullyRandom
}

// numbersOf are shares as numbers: the least that are nearly so.
func numbersOf(shares []float64) []uint32 {
	const most, near = 1000, 0.02
	numbers := make([]uint32, len(shares))
	for of := len(shares); of <= most; of++ {
		good := true
		for i, s := range shares {
			n := math.Round(s * float64(of))
			numbers[i], good = uint32(max(n, 1)), good && n > 0 && math.Abs(n-s*float64(of)) < near
		}
		if good {
			break
		}
	}
	return numbers
}
