package read

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
	// short is set where elements of sets are missing, as they are too many.
	short bool
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

const (
	// maxFollowed bounds how many rules are looked at beyond the first time at a hook.
	maxFollowed = 1 << 17
	// maxElements bounds how many elements of sets and maps are read, and how many steps
	// they make of rules.
	maxElements = 1 << 16
)

// budget is for all tables of a namespace: ways multiply with every chain that several
// rules jump to, rules with every element, and whoever makes them is not always a friend.
type budget struct {
	left, elements int
	// seen are the chains that were walked from a hook, with what it costs to do so again.
	seen map[visit]int
	// short is set where elements were left out, lost has the base chains of which not
	// all ways were followed, or elements were left out.
	short bool
	lost  map[lostBase]bool
}

type visit struct {
	chain *ruleChain
	hook  int
}

type lostBase struct{ family, table, chain string }

func newBudget() *budget {
	return &budget{left: maxFollowed, elements: maxElements, seen: map[visit]int{}, lost: map[lostBase]bool{}}
}

// spent reports whether there was more than is followed.
func (b *budget) spent() bool { return b.short || len(b.lost) > 0 }

// pays reports whether a chain can be walked under these conditions. To walk it once for each
// hook costs nothing, but for the conditions that are then told with each of its rules.
func (b *budget) pays(v visit, outer snapshot.NATRule) bool {
	again := b.seen[v]
	cost := again + len(v.chain.steps)*(len(outer.Unless)/maxUnless)
	if cost > b.left {
		return false
	}
	b.left -= cost
	if again == 0 {
		b.seen[v] = 1 + v.chain.size()
	}
	return true
}

// size is how much is told of the chain's rules.
func (c *ruleChain) size() (n int) {
	for i := range c.steps {
		n += 1 + len(c.steps[i].rule.Unless)/maxUnless
	}
	return n
}

// takes reports whether so many elements can be read, or steps be made of them.
func (b *budget) takes(elements int) bool {
	if elements > b.elements {
		b.short = true
		return false
	}
	b.elements -= elements
	return true
}

// rules are those that translate, from every base chain in the order in which a
// packet meets them; where the budget is spent, those that were met until then.
func (t *ruleTable) rules(ways *budget) []found {
	var all []found
	leads, ends := map[*ruleChain]bool{}, map[string]bool{}
	for _, c := range t.order {
		for _, b := range c.bases {
			w := walker{table: t, base: b, ways: ways, at: map[*step]int{}, leads: leads, ends: ends, within: map[*ruleChain]bool{}}
			w.walk(c, snapshot.NATRule{})
			all = append(all, w.found()...)
			if w.lost || t.short {
				ways.lost[lostBase{t.family, t.name, c.name}] = true
			}
		}
	}
	return all
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
	// met are the rules that translate, at has their places there.
	met []met
	at  map[*step]int
	// leads tells of chains whether they lead to such rules: of the others, which may only
	// set marks, nothing is to be told.
	leads map[*ruleChain]bool
	// ends tells of chains whether packets may end there.
	ends map[string]bool
	// within are the chains that are being walked.
	within map[*ruleChain]bool
	ways   *budget
	// lost is set where a chain was not walked once more.
	lost bool
}

// met is a rule with the conditions of each way that leads to it.
type met struct {
	chain *ruleChain
	step  *step
	ways  []snapshot.NATRule
}

// walk goes through a chain. outer has the conditions under which packets come here.
func (w *walker) walk(c *ruleChain, outer snapshot.NATRule) {
	if c == nil || w.within[c] || !w.table.translates(c, w.leads) { // no chain leads to itself (nft_chain_validate); what was read may
		return
	}
	if !w.ways.pays(visit{c, w.base.hook}, outer) {
		w.lost = true
		return
	}
	w.within[c] = true
	defer delete(w.within, c)
	for i := range c.steps {
		s := &c.steps[i]
		if s.translates {
			w.meet(c, s, outer)
		}
		if inner, never := within(conditions(s.rule), outer); !never {
			for _, to := range s.to {
				w.walk(w.table.chains[to], inner)
			}
		}
		outer = w.after(s, outer)
	}
}

// translates reports whether a chain has rules that translate, or leads to some.
func (t *ruleTable) translates(c *ruleChain, known map[*ruleChain]bool) bool {
	if does, asked := known[c]; asked || c == nil {
		return does
	}
	known[c] = false
	known[c] = slices.ContainsFunc(c.steps, func(s step) bool {
		return s.translates || slices.ContainsFunc(s.to, func(name string) bool { return t.translates(t.chains[name], known) })
	})
	return known[c]
}

func (w *walker) meet(c *ruleChain, s *step, outer snapshot.NATRule) {
	way, never := w.place(c, s, outer)
	if never {
		return
	}
	i, known := w.at[s]
	if !known {
		i = len(w.met)
		w.met, w.at[s] = append(w.met, met{chain: c, step: s}), i
	}
	w.met[i].ways = append(w.met[i].ways, way)
}

// found are the rules, those to which several ways lead with the conditions of all ways
// alone.
func (w *walker) found() (all []found) {
	for _, m := range w.met {
		r := m.ways[0]
		if len(m.ways) > 1 || w.lost {
			r, _ = w.place(m.chain, m.step, snapshot.NATRule{Partial: true})
		}
		if len(m.ways) > 1 && !w.lost {
			r.Ways = m.ways
		}
		all = append(all, found{r, w.base})
	}
	return all
}

// maxUnless bounds how many rules before one are told with it: there are chains of
// thousands.
const maxUnless = 16

// after are the conditions for what follows a rule: it does not get the packets that
// left.
func (w *walker) after(s *step, outer snapshot.NATRule) snapshot.NATRule {
	switch exact := !s.rule.Partial && len(s.rule.Unless) == 0; {
	case s.leaves && exact && len(outer.Unless) < maxUnless:
		outer.Unless = append(slices.Clip(outer.Unless), s.rule.Condition())
	case s.leaves, w.endsIn(s.to):
		outer.Partial = true
		outer.Marked = outer.Marked || s.rule.Marked
	}
	return outer
}

func (w *walker) endsIn(chains []string) bool {
	return slices.ContainsFunc(chains, func(name string) bool {
		ends, asked := w.ends[name]
		if !asked {
			ends = w.table.endIn([]string{name}, map[string]bool{})
			w.ends[name] = ends
		}
		return ends
	})
}

// endIn reports whether packets that a rule sends to these chains may end there.
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
		Protocol: r.Protocol, DestinationPort: r.DestinationPort, LastDestinationPort: r.LastDestinationPort,
		FromSource: r.FromSource, ToDestination: r.ToDestination,
		OutInterface: r.OutInterface, InInterface: r.InInterface,
		LocalDestination: r.LocalDestination, Unless: r.Unless, Marked: r.Marked, Partial: r.Partial,
	}
}

// place completes what a rule says by where it is; never is true where no packet meets it.
func (w *walker) place(c *ruleChain, s *step, outer snapshot.NATRule) (_ snapshot.NATRule, never bool) {
	r, never := within(s.rule, outer)
	if hook := hookNames[w.base.hook]; s.netmap && (hook == "postrouting" || hook == "input") { // netmap_tg4
		r.Kind = snapshot.NATSource
		r.Text = words(&r, w.table.family, true, "")
	}
	r.Family, r.Table, r.Chain = w.table.family, w.table.name, c.name
	r.Hook, r.Priority = hookNames[w.base.hook], w.base.priority
	return r, never
}

// graph is which chains of a table lead where.
type graph struct {
	steps map[string][]step
	// xt: the table is one of iptables-nft, by its names or by its expressions.
	xt bool
}

func (c conn) graph(key tableKey) (*graph, error) {
	t := kernelTable{key: key, verdicts: map[string][]string{}}
	var err error
	if t.rules, err = c.rules(key); err != nil {
		return nil, err
	}
	if err := c.verdictMaps(&t); err != nil {
		return nil, err
	}
	return t.graph(), nil
}

func (t *kernelTable) graph() *graph {
	g := &graph{steps: map[string][]step{}, xt: iptablesTable(t.key)}
	m := machine{family: familyNames[t.key.family], verdicts: func(set string) []string { return t.verdicts[set] }}
	for _, r := range t.rules {
		g.steps[r.chain] = append(g.steps[r.chain], m.readStep(r))
		g.xt = g.xt || slices.ContainsFunc(r.exprs, func(x kernelExpr) bool { return x.name == "match" || x.name == "target" })
	}
	return g
}

// iptablesTable tells tables that iptables-nft keeps: nobody else is to use the names.
func iptablesTable(key tableKey) bool {
	return key.family != familyInet && slices.Contains(iptablesTables, key.name)
}

var iptablesTables = []string{"raw", "mangle", "nat", "filter", "security"}

// reach counts the rules of a chain and of all that it leads to, and names those.
func (g *graph) reach(first string) (rules int, chains []string) {
	seen := map[string]bool{first: true}
	for todo := []string{first}; len(todo) > 0; todo = todo[1:] {
		rules += len(g.steps[todo[0]])
		for _, s := range g.steps[todo[0]] {
			for _, to := range s.to {
				if !seen[to] {
					seen[to] = true
					todo, chains = append(todo, to), append(chains, to)
				}
			}
		}
	}
	return rules, chains
}

// decides tells what a chain does to packets that none of its rules with conditions is
// for; empty where it lets them go back, or on to the policy, as chains that were asked
// before have done.
func (g *graph) decides(chain string, asked map[string]bool) string {
	if asked[chain] {
		return ""
	}
	asked[chain] = true
	for i := range g.steps[chain] {
		s := &g.steps[chain][i]
		if !s.forAll() {
			continue
		}
		decision := s.refuses
		if s.ends && decision == "" {
			decision = "accept"
		}
		for _, to := range s.to {
			decision = g.decides(to, asked)
		}
		if decision != "" || s.leaves {
			return decision
		}
	}
	return ""
}

// maxAccepts bounds what is told of a chain that leads to thousands of rules.
const maxAccepts = 1000

// accepts are the conditions of rules that accept, by all ways that lead to them.
func (g *graph) accepts(chain string) []snapshot.NATRule {
	var all []snapshot.NATRule
	steps := 100 * maxAccepts // ways through chains can be many more than there are rules
	var walk func(chain string, outer snapshot.NATRule, depth int)
	walk = func(chain string, outer snapshot.NATRule, depth int) {
		for i := range g.steps[chain] {
			if steps--; steps < 0 || depth > maxDepth || len(all) == maxAccepts {
				return
			}
			s := &g.steps[chain][i]
			r, never := within(conditions(s.rule), outer)
			if never {
				continue
			}
			if s.ends && s.refuses == "" {
				all = append(all, r)
			}
			for _, to := range s.to {
				walk(to, r, depth+1)
			}
		}
	}
	walk(chain, snapshot.NATRule{}, 0)
	return all
}

// maxDepth is how far the kernel lets chains lead to chains (NFT_JUMP_STACK_SIZE).
const maxDepth = 16
