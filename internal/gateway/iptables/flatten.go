package iptables

import (
	"cmp"
	"slices"
)

// entry is a rule with all the conditions under which packets come to it.
type entry struct {
	rule *Rule
	side
	table string
	// priority is the base chain's, base which one it is of all.
	priority int32
	base     int
	match    Match
	// except are those that leave the chain, or the hook, before it.
	except []*exception
	// owner is the program that keeps it, where that is another's.
	owner string
}

// side is what the order of entries matters in.
type side struct {
	version int
	hook    string
	// filter is true where the base chain is not one of NAT.
	filter bool
	// translates is true of rules after which no other is asked.
	translates bool
}

type exception struct {
	match Match
	rule  *Rule
	// drops is true where the packets go no further at all.
	drops bool
}

// hookOrder is that of NF_INET_*.
var hookOrder = []string{"prerouting", "input", "forward", "output", "postrouting"}

// deepest bounds jumps within jumps; the kernel refuses loops, texts do not.
const deepest = 64

type flattener struct {
	table *Table
	base  *Chain
	index int
	out   []*entry
	work  *budget
	// full is true where it had to stop.
	full bool
}

// flatten follows packets through all tables: entries by hook and priority, in the
// order in which packets meet them. full tells that there are more: filters come last.
func flatten(set *Ruleset, work *budget) (all []*entry, full bool) {
	var bases []*flattener
	for _, t := range set.Tables {
		for _, c := range t.Chains {
			if c.Hook != "" {
				bases = append(bases, &flattener{table: t, base: c, index: len(bases), work: work})
			}
		}
	}
	for _, filter := range []bool{false, true} {
		for _, f := range bases {
			if f.base.Filter == filter {
				f.walk(f.base, Match{}, nil, f.table.Owner, 0)
				full = full || f.full
			}
		}
	}
	for _, f := range bases {
		all = append(all, f.out...)
	}
	slices.SortStableFunc(all, func(a, b *entry) int {
		return cmp.Or(cmp.Compare(slices.Index(hookOrder, a.hook), slices.Index(hookOrder, b.hook)), cmp.Compare(a.priority, b.priority))
	})
	return all, full
}

// walk goes through a chain for packets that meet outer, and returns who of them
// leaves the base chain there.
func (f *flattener) walk(c *Chain, outer Match, except []*exception, owner string, depth int) (left []*exception) {
	if depth > deepest {
		f.full = true
		return nil
	}
	owner = cmp.Or(owner, ownerOfChain(c.Name))
	for _, r := range c.Rules {
		// To copy 64 exceptions takes as long as one rule.
		if !f.work.makes(1+len(except)/64+outer.size()/8) || !f.work.takes(r.Match.size()*(outer.size()+sizeOf(except))) {
			f.full = true
			return left
		}
		m, possible := and(outer, r.Match)
		if !possible {
			continue
		}
		f.add(r, m, except, cmp.Or(owner, f.table.ownerOfRule(r)))
		switch r.Target.Kind {
		case Accept, Drop:
			e := &exception{m, r, r.Target.Kind == Drop}
			left, except = append(left, e), append(slices.Clip(except), e)
		case Return:
			except = append(slices.Clip(except), &exception{match: m, rule: r})
			if depth == 0 {
				left = append(left, &exception{match: m, rule: r})
			}
		case Jump, Goto:
			gone := f.jump(r, m, except, owner, depth)
			left, except = append(left, gone...), append(slices.Clip(except), gone...)
			if r.Target.Kind == Goto {
				except = append(slices.Clip(except), &exception{match: m, rule: r})
			}
		}
	}
	return left
}

func (f *flattener) jump(r *Rule, m Match, except []*exception, owner string, depth int) (left []*exception) {
	for _, name := range r.Target.Chains {
		next := f.table.find(name)
		if next == nil {
			// Where it leads is not in the text: it may translate what it gets.
			missing := *r
			missing.Target = Target{Kind: Ends, Name: name, Chains: r.Target.Chains}
			f.add(&missing, m, except, cmp.Or(owner, ownerOfChain(name)))
			continue
		}
		left = append(left, f.walk(next, m, except, cmp.Or(owner, f.table.ownerOfRule(r)), depth+1)...)
	}
	return left
}

// add notes a rule that is of interest itself: not one that only leads on.
func (f *flattener) add(r *Rule, m Match, except []*exception, owner string) {
	switch r.Target.Kind {
	case Accept, Return, Jump, Goto:
		return
	}
	e := &entry{rule: r, side: side{f.table.Version, f.base.Hook, f.base.Filter, r.Target.translates()}, table: f.table.Name,
		priority: f.base.Priority, base: f.index, match: m, owner: owner}
	for _, x := range except {
		if !disjoint(&x.match, &m) {
			e.except = append(e.except, x)
		}
	}
	f.out = append(f.out, e.perPort()...)
}
