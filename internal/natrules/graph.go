package natrules

import (
	"slices"

	"github.com/natkit/natkit/internal/snapshot"
)

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
