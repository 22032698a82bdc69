// Package natrules reads the rules of a network namespace that translate
// addresses (nftables, iptables-nft and iptables-legacy alike), by the kernel's own interfaces,
// and changes ports and options of one of them in place.
package natrules

import (
	"fmt"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
)

// tableKey is what a table is known by.
type tableKey struct {
	family uint8
	name   string
}

func (t tableKey) String() string { return familyNames[t.family] + " " + t.name }

// attempts bound how often the rules are read anew while others change them.
const attempts = 10

// Read tells the rules of a namespace (nil: this one) that translate addresses, in
// the order in which packets meet them. A rule that packets come to from several
// hooks is there for each. Needs CAP_NET_ADMIN in that namespace. No module of
// iptables is loaded by it.
func Read(ns *netns.Handle) (*snapshot.NATRules, error) {
	inode, err := netns.InodeOf(ns)
	if err != nil {
		return nil, fmt.Errorf("read NAT rules: %w", err)
	}
	set, err := readNft(ns)
	if err != nil {
		return nil, fmt.Errorf("read NAT rules of nftables: %w", err)
	}
	set.identify(inode)
	ways := newBudget()
	all := set.found(ways)
	legacy, err := readLegacy(ns, ways)
	if err != nil {
		return nil, fmt.Errorf("read NAT rules of iptables-legacy: %w", err)
	}
	return &snapshot.NATRules{Rules: inHookOrder(append(all, legacy...)), TooMany: ways.spent()}, nil
}

// ruleset is the part of nf_tables' rule set that concerns NAT, at one generation.
type ruleset struct {
	generation uint32
	tables     []kernelTable
	links      map[uint32]string
}

// kernelTable is a table with NAT chains. targets names the rules of which natkit
// can change the options.
type kernelTable struct {
	key      tableKey
	owned    bool // one socket alone may change it
	chains   []kernelChain
	rules    []*kernelRule
	verdicts map[string][]string
	// maps are those by which sources are translated.
	maps map[string][]mapElement
	// sets are those whose elements stay, for Chains alone.
	sets    map[string][]element
	targets map[*kernelRule]string
}

func readNft(ns *netns.Handle) (*ruleset, error) {
	set, err := over(ns, func(c conn) (*ruleset, error) {
		names, err := links(ns)
		if err != nil {
			return nil, fmt.Errorf("list interfaces: %w", err)
		}
		return c.ruleset(names)
	})
	if set == nil && err == nil {
		set = &ruleset{}
	}
	return set, err
}

func (c conn) ruleset(names map[uint32]string) (set *ruleset, err error) {
	generation, there, err := c.settled(func() (err error) { set, err = c.once(); return err })
	switch {
	case err != nil:
		return nil, err
	case !there:
		return &ruleset{}, nil
	}
	set.generation, set.links = generation, names
	return set, nil
}

func (c conn) once() (*ruleset, error) {
	all, err := c.chains()
	if err != nil {
		return nil, err
	}
	flags, err := c.tables()
	if err != nil {
		return nil, err
	}
	set := &ruleset{}
	for _, key := range natTables(all) {
		if flags[key]&nftTableDormant != 0 { // its chains are at no hook
			continue
		}
		t, err := c.tableOf(key, all)
		if err != nil {
			return nil, err
		}
		t.owned = flags[key]&nftTableOwner != 0
		if err := c.sourceMaps(t); err != nil {
			return nil, err
		}
		set.tables = append(set.tables, *t)
	}
	return set, nil
}

// tableOf is a table with its chains, rules and verdict maps.
func (c conn) tableOf(key tableKey, chains []kernelChain) (t *kernelTable, err error) {
	t = &kernelTable{key: key, verdicts: map[string][]string{}, maps: map[string][]mapElement{}, targets: map[*kernelRule]string{}}
	for _, chain := range chains {
		if (tableKey{chain.family, chain.table}) == key {
			t.chains = append(t.chains, chain)
		}
	}
	if t.rules, err = c.rules(key); err != nil {
		return nil, err
	}
	return t, c.verdictMaps(t)
}

// natTables are the tables that have a base chain of type nat, each once.
func natTables(all []kernelChain) []tableKey {
	var keys []tableKey
	seen := map[tableKey]bool{}
	for _, c := range all {
		key := tableKey{c.family, c.table}
		if c.translates() && !seen[key] {
			keys, seen[key] = append(keys, key), true
		}
	}
	return keys
}

// verdictMaps reads the maps by which rules of the table jump.
func (c conn) verdictMaps(t *kernelTable) error {
	for _, r := range t.rules {
		for _, e := range r.exprs {
			if e.name != "lookup" || !e.data.has(nftLookupDreg) || e.data.u32(nftLookupDreg) != 0 {
				continue
			}
			name := e.data.text(nftLookupSet)
			if _, known := t.verdicts[name]; known {
				continue
			}
			chains, err := c.verdicts(t.key, name)
			if err != nil {
				return err
			}
			t.verdicts[name] = chains
		}
	}
	return nil
}

// found are the rules that translate, table by table.
func (s *ruleset) found(ways *budget) []found {
	var all []found
	for i := range s.tables {
		all = append(all, s.tables[i].found(s.links, ways)...)
	}
	return all
}

func (t *kernelTable) found(links map[uint32]string, ways *budget) []found {
	table := t.structure(links)
	t.expand(table, ways)
	return table.rules(ways)
}

// structure is the table made for following packets through it.
func (t *kernelTable) structure(links map[uint32]string) *ruleTable {
	table := newTable(familyNames[t.key.family], t.key.name)
	for _, c := range t.chains {
		chain := table.chain(c.name)
		if c.translates() {
			chain.bases = append(chain.bases, base{c.hook, c.priority})
		}
	}
	m := machine{family: table.family, links: links, verdicts: func(set string) []string { return t.verdicts[set] }}
	for _, r := range t.rules {
		s := m.readStep(r)
		s.rule.Target = t.targets[r]
		chain := table.chain(r.chain)
		chain.steps = append(chain.steps, s)
	}
	return table
}
