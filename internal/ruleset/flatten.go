package ruleset

import (
	"cmp"
	"errors"
	"slices"
)

// Entry is a rule with all the conditions under which packets reach it from a base chain.
type Entry struct {
	Rule  *Rule
	Match Match
	// Except are those that leave the chain, or the hook, before it. Doubt is true if
	// there are more.
	Except []*Exception
	Doubt  bool
	Table  *Table
	// Base is the base chain, Chain the one that has the rule.
	Base, Chain *Chain
	// Owner is the program that keeps it, if that is another's.
	Owner Owner
}

// Exception is packets that do not reach the rules behind it.
type Exception struct {
	Match Match
	Rule  *Rule
	// Drops is true if the packets go no further at all.
	Drops bool
	// jumped is true if the rule is in a chain that was left since: rules before it there
	// may have returned some of the packets.
	jumped bool
}

// ErrTooMany is the error of what exceeds a Budget.
var ErrTooMany = errors.New("too many rules, exceptions, ports and elements of sets to follow: import a part of them, such as one chain")

// A text of some kB, or a hostile rule set, may have more paths through its chains,
// elements of sets and pairs of rules than can be followed.
const (
	// mostRules bounds what lists and sets of addresses in a text become that many rules use.
	mostRules = 300_000
	// mostSteps bounds comparisons of rules with each other: 10,000 rules of one hook take
	// more than a third of it.
	mostSteps = 1 << 28
	// mostAgain bounds how many rules are met again after the first time in a base chain.
	mostAgain = 1 << 17
	// mostElements bounds how many elements of sets and maps are read, and how many rules
	// they make.
	mostElements = 1 << 16
	// mostExcept bounds the exceptions that a rule has in Coarse: there are chains of
	// thousands.
	mostExcept = 16
	// deepest bounds jumps within jumps. The kernel's limit is 16 (NFT_JUMP_STACK_SIZE).
	deepest = 64
)

// Budget is what was used of these limits.
type Budget struct {
	rules, steps, again, elements int
	// short is true if elements were left out.
	short bool
}

// Makes reports whether n more rules may be made of a text's.
func (b *Budget) Makes(n int) bool { return take(&b.rules, n, mostRules) }

// Takes reports whether n more comparisons may be made.
func (b *Budget) Takes(n int) bool { return take(&b.steps, n, mostSteps) }

// Elements reports whether n more elements may be read, or rules be made of them.
func (b *Budget) Elements(n int) bool {
	if take(&b.elements, n, mostElements) {
		return true
	}
	b.short = true
	return false
}

func take(used *int, more, most int) bool {
	if more > most-*used {
		return false
	}
	*used += more
	return true
}

// Query is what Flatten looks for.
type Query struct {
	// Version is the version of IP of the packets; 0 is any.
	Version int
	// Keep selects the rules to return.
	Keep func(*Chain, *Rule) bool
	// Coarse limits the exceptions of an entry, and does not follow chains for them.
	Coarse bool
}

// Translations keeps the rules that give a new address.
func Translations(c *Chain, r *Rule) bool { return r.Target.Translates() && r.Target.Kind != Ends }

// Flatten follows packets from a base chain and returns the rules that are kept, in the
// order in which packets reach them: once for each path. full is true if not all paths
// were followed.
func (t *Table) Flatten(base *Chain, q Query, budget *Budget) (all []*Entry, full bool) {
	w := walker{Query: q, table: t, base: base, budget: budget, seen: map[*Chain]bool{}, within: map[*Chain]bool{}, leads: map[*Chain]bool{}, ends: map[*Chain]bool{}}
	w.walk(base, path{owner: t.owner()})
	return w.out, w.full
}

// walker is the state of one Flatten.
type walker struct {
	Query
	table  *Table
	base   *Chain
	budget *Budget
	out    []*Entry
	full   bool
	// seen are the chains that were walked, within those that are being walked.
	seen, within map[*Chain]bool
	// leads has whether a chain leads to rules that are kept, ends whether packets may end there.
	leads, ends map[*Chain]bool
}

// path is how packets reach a chain.
type path struct {
	match  Match
	except []*Exception
	doubt  bool
	owner  Owner
}

// walk goes through a chain and returns the packets that leave the base chain there.
func (w *walker) walk(c *Chain, p path) (left []*Exception) {
	again := w.seen[c]
	if w.within[c] || len(w.within) > deepest || again && !take(&w.budget.again, 1, mostAgain) {
		w.full = true
		return nil
	}
	w.within[c], w.seen[c] = true, true
	defer delete(w.within, c)
	p.owner, p.except = cmp.Or(p.owner, ofChain(c.Name)), slices.Clip(p.except)
	for _, r := range c.Rules {
		if !w.pays(r, &p, again) {
			w.full = true
			return left
		}
		m, possible := p.match.And(&r.Match)
		if !possible || !r.Match.isOf(w.Version) {
			continue
		}
		w.add(c, r, m, &p, "")
		leaves, here := w.gone(c, r, m, &p)
		left = append(left, leaves...)
		p.excepts(append(here, leaves...), w.Coarse)
	}
	return left
}

// pays reports whether a rule can be looked at. The first time from a base chain is free,
// except for the conditions that each of its entries repeats.
func (w *walker) pays(r *Rule, p *path, again bool) bool {
	cost := len(p.except)/64 + p.match.Size()/8
	if again {
		cost += 1 + r.Match.Size()/8
	}
	return take(&w.budget.again, cost, mostAgain) && w.budget.Takes(r.Match.Size()*(p.match.Size()+sizeOf(p.except)))
}

// gone are the packets that leave the base chain by a rule, and those that leave its chain.
func (w *walker) gone(c *Chain, r *Rule, m Match, p *path) (left, here []*Exception) {
	switch r.Target.Kind {
	case Accept, Drop:
		return []*Exception{{Match: m, Rule: r, Drops: r.Target.Kind == Drop}}, nil
	case Return:
		return nil, []*Exception{{Match: m, Rule: r}}
	case Jump:
		return w.jump(c, r, m, p), nil
	case Goto, Ends:
		if r.Target.Kind == Goto || w.Coarse {
			here = []*Exception{{Match: m, Rule: r}}
		}
		return w.jump(c, r, m, p), here
	}
	return nil, nil
}

// jump follows a rule to its chains.
func (w *walker) jump(c *Chain, r *Rule, m Match, p *path) (left []*Exception) {
	next := path{match: m, except: p.except, doubt: p.doubt, owner: cmp.Or(p.owner, w.table.ownerOfRule(r))}
	for _, name := range r.Target.Chains {
		to := w.table.Find(name)
		switch {
		case to == nil && r.Target.Kind != Ends:
			// Where it leads is not in the text: it may translate what it gets.
			missing := *r
			missing.Target = Target{Kind: Ends, Name: name, Chains: r.Target.Chains}
			w.add(c, &missing, m, p, name)
		case to == nil:
		case w.Coarse && !w.reaches(to, w.leads, w.Keep):
			if w.reaches(to, w.ends, ends) {
				left = append(left, &Exception{Match: m, Rule: r, jumped: true})
			}
		default:
			for _, e := range w.walk(to, next) {
				one := *e
				one.jumped = true
				left = append(left, &one)
			}
		}
	}
	return left
}

// ends keeps the rules that end the way of packets.
func ends(_ *Chain, r *Rule) bool {
	return r.Target.Kind == Accept || r.Target.Kind == Drop || r.Target.Kind == Ends
}

// reaches reports whether a chain has such a rule, or leads to one. known are the answers
// so far.
func (w *walker) reaches(c *Chain, known map[*Chain]bool, such func(*Chain, *Rule) bool) bool {
	if is, asked := known[c]; asked || c == nil {
		return is
	}
	known[c] = false
	known[c] = slices.ContainsFunc(c.Rules, func(r *Rule) bool {
		return such(c, r) || slices.ContainsFunc(r.Target.Chains, func(name string) bool { return w.reaches(w.table.Find(name), known, such) })
	})
	return known[c]
}

// excepts notes packets that are gone.
func (p *path) excepts(gone []*Exception, coarse bool) {
	for _, e := range gone {
		if coarse && len(p.except) >= mostExcept {
			p.doubt = true
			p.match.Marked = p.match.Marked || e.Rule.Match.Marked
			continue
		}
		p.except = append(p.except, e)
	}
}

// add notes a rule that is kept; chain is the name of a missing one that it leads to.
func (w *walker) add(c *Chain, r *Rule, m Match, p *path, chain string) {
	if !w.Keep(c, r) {
		return
	}
	e := &Entry{Rule: r, Match: m, Doubt: p.doubt, Table: w.table, Base: w.base, Chain: c, Owner: cmp.Or(p.owner, ofChain(chain), w.table.ownerOfRule(r))}
	for _, x := range p.except {
		if !x.Match.Disjoint(&m) {
			e.Except = append(e.Except, x)
		}
	}
	w.out = append(w.out, e)
}

func sizeOf(list []*Exception) (n int) {
	for _, x := range list {
		n += x.Match.Size()
	}
	return n
}

// Size is the cost of a comparison, of what keeps packets from the entry too.
func (e *Entry) Size() int { return e.Match.Size() + sizeOf(e.Except) }

// reach counts the rules of a chain and of all that it leads to, each once, and names
// those.
func (t *Table) reach(first *Chain) (rules int, names []string) {
	seen := map[*Chain]bool{first: true}
	for todo := []*Chain{first}; len(todo) > 0; todo = todo[1:] {
		rules += len(todo[0].Rules)
		for _, r := range todo[0].Rules {
			for _, name := range r.Target.Chains {
				if to := t.Find(name); to != nil && !seen[to] {
					seen[to] = true
					todo, names = append(todo, to), append(names, to.Name)
				}
			}
		}
	}
	return rules, names
}

// policyOf returns the verdict on packets that no rule with conditions decides: "accept",
// "drop" or "reject", by the first rule that matches all packets or by the policy.
func (t *Table) policyOf(base *Chain) string {
	return cmp.Or(t.decides(base, map[*Chain]bool{}), base.Policy)
}

// decides is empty if a chain returns such packets, as those do that were asked before.
func (t *Table) decides(c *Chain, asked map[*Chain]bool) string {
	if c == nil || asked[c] {
		return ""
	}
	asked[c] = true
	for _, r := range c.Rules {
		if !r.Match.isAll() {
			continue
		}
		switch k := r.Target.Kind; {
		case k == Drop && r.Target.Rejects:
			return "reject"
		case k == Accept || k == Drop:
			return string(k)
		case k == Return:
			return ""
		}
		for _, to := range r.Target.Chains {
			if decision := t.decides(t.Find(to), asked); decision != "" {
				return decision
			}
		}
		if r.Target.Kind == Goto {
			return ""
		}
	}
	return ""
}
