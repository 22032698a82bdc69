package natrules

import (
	"fmt"
	"slices"

	"github.com/natkit/natkit/internal/netns"
)

// nftChains are the tables of nftables that have chains at the hooks of IP.
func nftChains(ns *netns.Handle) ([]NATTable, error) {
	return over(ns, func(c conn) (all []NATTable, err error) {
		names, err := links(ns)
		if err != nil {
			return nil, fmt.Errorf("list interfaces: %w", err)
		}
		var tables []*kernelTable
		var ways *budget
		_, _, err = c.settled(func() (err error) { ways = newBudget(); tables, err = c.withSets(kernelChain.atIP, ways); return err })
		if err != nil {
			return nil, err
		}
		for _, t := range tables {
			all = append(all, t.stepByElement(names, ways).exported(t.isNAT))
		}
		return all, nil
	})
}

// withSets reads the tables that have such a chain, with the sets of those that are not
// natkit's own.
func (c conn) withSets(such func(kernelChain) bool, ways *budget) (all []*kernelTable, err error) {
	chains, err := c.chains()
	if err != nil {
		return nil, err
	}
	flags, err := c.tables()
	if err != nil {
		return nil, err
	}
	var keys []tableKey
	for _, chain := range chains {
		key := chain.key()
		if such(chain) && flags[key]&nftTableDormant == 0 && !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	for _, key := range keys {
		t, err := c.tableOf(key, chains)
		if err != nil {
			return nil, err
		}
		if !key.isGateway() {
			if t.sets, err = c.constantSets(t, ways); err != nil {
				return nil, err
			}
		}
		all = append(all, t)
	}
	return all, nil
}

// atIP reports whether packets of IP come to it from a hook.
func (c kernelChain) atIP() bool {
	return c.hook >= 0 && c.hook < len(hookNames) && familyNames[c.family] != ""
}

func (t *kernelTable) isNAT(chain string) bool {
	return slices.ContainsFunc(t.chains, func(c kernelChain) bool { return c.name == chain && c.translates() })
}

// concerning are the rules that a gateway may have words for: those that packets to be
// translated come to, and those that keep the tracker off or bound segments. Filters
// may have sets of any size.
func (t *kernelTable) concerning() map[*kernelRule]bool {
	g, nat := t.graph(), map[string]bool{}
	for _, c := range t.chains {
		if c.translates() {
			_, chains := g.reach(c.name)
			for _, name := range append(chains, c.name) {
				nat[name] = true
			}
		}
	}
	all, place := map[*kernelRule]bool{}, map[string]int{}
	for _, r := range t.rules {
		all[r] = nat[r.chain] || g.steps[r.chain][place[r.chain]].besidesNAT()
		place[r.chain]++
	}
	return all
}

// stepByElement is the table with all its base chains, and a step for each element of
// the sets that rules look into.
func (t *kernelTable) stepByElement(links map[uint32]string, ways *budget) *ruleTable {
	table := newTable(familyNames[t.key.family], t.key.name)
	for _, c := range t.chains {
		chain := table.chain(c.name)
		if c.atIP() {
			chain.bases = append(chain.bases, base{c.hook, c.priority})
		}
	}
	m := machine{family: table.family, links: links, sets: t.sets, ways: ways, verdicts: func(set string) []string { return t.verdicts[set] }}
	concerning := t.concerning()
	for _, r := range t.rules {
		chain := table.chain(r.chain)
		if concerning[r] {
			chain.steps = append(chain.steps, m.readSteps(r)...)
		} else {
			chain.steps = append(chain.steps, m.readStep(r))
		}
	}
	table.short = ways.short
	return table
}
