package natrules

import (
	"cmp"
	"slices"

	"github.com/natkit/natkit/internal/snapshot"
)

// ruleTable is a table of any source, made for following a packet through it.
type ruleTable struct {
	family, name string
	chains       map[string]*ruleChain
	order        []*ruleChain
}

type ruleChain struct {
	name string
	// bases are the hooks that the chain is at; none where others jump to it.
	bases []base
	steps []step
}

type base struct {
	hook     int
	priority int32
}

func newTable(family, name string) *ruleTable {
	return &ruleTable{family: family, name: name, chains: map[string]*ruleChain{}}
}

func (t *ruleTable) chain(name string) *ruleChain {
	c := t.chains[name]
	if c == nil {
		c = &ruleChain{name: name}
		t.chains[name] = c
		t.order = append(t.order, c)
	}
	return c
}

// found is a rule and where packets meet it.
type found struct {
	rule snapshot.NATRule
	base base
}

// rules are those that translate, from every base chain in the order in which a
// packet meets them.
func (t *ruleTable) rules() []found {
	var all []found
	for _, c := range t.order {
		for _, b := range c.bases {
			w := walker{table: t, base: b, callers: t.callers(c), seen: map[*ruleChain]bool{}}
			w.walk(c, snapshot.NATRule{})
			all = append(all, w.out...)
		}
	}
	return all
}

// callers counts the rules that lead to each chain for packets that begin in one.
func (t *ruleTable) callers(first *ruleChain) map[*ruleChain]int {
	count := map[*ruleChain]int{}
	for todo := []*ruleChain{first}; len(todo) > 0; todo = todo[1:] {
		for _, s := range todo[0].steps {
			for _, to := range s.to {
				next := t.chains[to]
				if next == nil {
					continue
				}
				if count[next]++; count[next] == 1 && next != first {
					todo = append(todo, next)
				}
			}
		}
	}
	return count
}

// inHookOrder puts rules of several tables in the order in which packets meet
// them; of the same hook and priority, in the order in which they were read.
func inHookOrder(all []found) []snapshot.NATRule {
	slices.SortStableFunc(all, func(a, b found) int {
		return cmp.Or(cmp.Compare(a.base.hook, b.base.hook), cmp.Compare(a.base.priority, b.base.priority))
	})
	rules := make([]snapshot.NATRule, len(all))
	for i, f := range all {
		rules[i] = f.rule
	}
	return rules
}

type walker struct {
	table *ruleTable
	base  base
	// callers counts the rules that lead to a chain.
	callers map[*ruleChain]int
	seen    map[*ruleChain]bool
	out     []found
}

// walk goes through a chain once, however many rules lead to it. outer has the
// conditions under which packets come here.
func (w *walker) walk(c *ruleChain, outer snapshot.NATRule) {
	if c == nil || w.seen[c] {
		return
	}
	w.seen[c] = true
	if w.callers[c] > 1 { // reached under conditions that differ
		outer = snapshot.NATRule{Partial: true}
	}
	for _, s := range c.steps {
		if s.translates {
			w.out = append(w.out, found{w.place(c, s, outer), w.base})
		}
		for _, to := range s.to {
			w.walk(w.table.chains[to], within(conditions(s.rule), outer))
		}
		outer = w.after(s, outer)
	}
}

// maxUnless bounds how many rules before one are told with it: there are chains of
// thousands.
const maxUnless = 16

// after are the conditions for what follows a rule: it does not get the packets that
// left.
func (w *walker) after(s step, outer snapshot.NATRule) snapshot.NATRule {
	switch exact := !s.rule.Partial && len(s.rule.Unless) == 0; {
	case s.leaves && exact && len(outer.Unless) < maxUnless:
		outer.Unless = append(slices.Clip(outer.Unless), s.rule.Condition())
	case s.leaves, w.table.endIn(s.to, map[string]bool{}):
		outer.Partial = true
	}
	return outer
}

// endIn tells whether packets that a rule sends to these chains may end there.
func (t *ruleTable) endIn(chains []string, seen map[string]bool) bool {
	for _, name := range chains {
		c := t.chains[name]
		if c == nil || seen[name] {
			continue
		}
		seen[name] = true
		if slices.ContainsFunc(c.steps, func(s step) bool { return s.ends || t.endIn(s.to, seen) }) {
			return true
		}
	}
	return false
}

// conditions are a rule's without its translation.
func conditions(r snapshot.NATRule) snapshot.NATRule {
	return snapshot.NATRule{
		Protocol: r.Protocol, DestinationPort: r.DestinationPort,
		FromSource: r.FromSource, ToDestination: r.ToDestination,
		OutInterface: r.OutInterface, InInterface: r.InInterface,
		LocalDestination: r.LocalDestination, Unless: r.Unless, Partial: r.Partial,
	}
}

// place completes what a rule says by where it is.
func (w *walker) place(c *ruleChain, s step, outer snapshot.NATRule) snapshot.NATRule {
	r := within(s.rule, outer)
	if hook := hookNames[w.base.hook]; s.netmap && (hook == "postrouting" || hook == "input") { // netmap_tg4
		r.Kind = snapshot.NATSource
		r.Text = words(&r, w.table.family, true, "")
	}
	r.Family, r.Table, r.Chain = w.table.family, w.table.name, c.name
	r.Hook, r.Priority = hookNames[w.base.hook], w.base.priority
	return r
}
