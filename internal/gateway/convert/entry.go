// Package convert translates rules of netfilter into a gateway file. It translates what a
// gateway file expresses exactly, and gives the reason for everything else.
package convert

import (
	"github.com/natkit/natkit/internal/ruleset"
)

// entry is a rule on one path, for one version of IP.
type entry struct {
	*ruleset.Entry
	side
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
		return false
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
	for _, e := range found {
		e.Match.Plain(e.Base.Hook == "output")
		for _, x := range e.Except {
			x.Match.Plain(e.Base.Hook == "output")
		}
		one := &entry{Entry: e, side: side{version[e], e.Base.Hook, e.Base.Type != "nat", e.Rule.Target.Translates()}}
		all = append(all, one.perPort()...)
	}
	return all, full
}
