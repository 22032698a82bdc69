package natrules

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
)

// NATTable is a table that has chains of NAT, with all that leads packets through it.
type NATTable struct {
	// Source is "nftables" or "iptables-legacy"; tables of iptables-nft are nftables'.
	Source, Family, Name string
	Chains               []NATChain
}

// NATChain is a chain; Hooks are empty where others jump to it.
type NATChain struct {
	Name  string
	Hooks []NATHook
	Steps []NATStep
}

// NATHook is where packets enter a base chain.
type NATHook struct {
	Hook     string
	Priority int32
}

// NATStep is a rule, one that translates or another. Of Rule only conditions,
// translation, Source and Handle are set; Partial is true for ranges of ports, too.
type NATStep struct {
	Rule    snapshot.NATRule
	Further Further
	// Unknown is true where it has conditions that neither has; Cause is one of them.
	Unknown bool
	Cause   string
	// Version is 4 or 6 where the rule asks for a version of IP.
	Version uint8
	// Translates, Prefix: one prefix for another; Shifts: ports by an offset.
	Translates, Prefix, Shifts bool
	// To are the chains that the rule sends packets to. Leaves is true where they do
	// not come to the next rule, Ends where they leave the base chain.
	To           []string
	Leaves, Ends bool
	// Other is the name of a target that is none of these; Comment the rule's own.
	Other, Comment string
}

// Chains tells the tables of a namespace (nil: this one) that have chains of NAT,
// rule by rule, as Read tells only those that translate. Needs CAP_NET_ADMIN there.
func Chains(ns *netns.Handle) ([]NATTable, error) {
	set, err := readNft(ns)
	if err != nil {
		return nil, fmt.Errorf("read NAT rules of nftables: %w", err)
	}
	var all []NATTable
	for i := range set.tables {
		all = append(all, set.tables[i].structure(set.links).exported("nftables"))
	}
	legacy, err := legacyTables(ns, "nat")
	if err != nil {
		return nil, fmt.Errorf("read NAT rules of iptables-legacy: %w", err)
	}
	for _, t := range legacy {
		all = append(all, t.exported("iptables-legacy"))
	}
	return all, nil
}

func (t *ruleTable) exported(source string) NATTable {
	table := NATTable{Source: source, Family: t.family, Name: t.name}
	for _, c := range t.order {
		chain := NATChain{Name: c.name}
		for _, b := range c.bases {
			chain.Hooks = append(chain.Hooks, NATHook{hookNames[b.hook], b.priority})
		}
		for i := range c.steps {
			chain.Steps = append(chain.Steps, c.steps[i].exported())
		}
		table.Chains = append(table.Chains, chain)
	}
	return table
}

func (s *step) exported() NATStep {
	return NATStep{Rule: s.rule, Further: s.further, Unknown: s.unknown, Cause: s.cause, Version: s.version,
		Translates: s.translates, Prefix: s.netmap || s.prefix, Shifts: s.shifts,
		To: s.to, Leaves: s.leaves, Ends: s.ends, Other: s.other, Comment: s.comment}
}

// elsewhere are targets that a gateway file may have words for, outside of NAT.
var elsewhere = []string{"CT", "NOTRACK", "TCPMSS"}

// legacyElsewhere names those tables of iptables-legacy.
func legacyElsewhere(ns *netns.Handle) (names []string, err error) {
	tables, err := legacyTables(ns, "raw", "mangle")
	for _, t := range tables {
		for _, c := range t.order {
			if slices.ContainsFunc(c.steps, func(s step) bool { return slices.Contains(elsewhere, s.other) }) {
				names = append(names, t.family+" "+t.name)
				break
			}
		}
	}
	return names, err
}

// Elsewhere names the tables without NAT that have rules which a gateway file may
// have words for: those that keep the tracker off, and that bound segments.
func Elsewhere(ns *netns.Handle) ([]string, error) {
	legacy, err := legacyElsewhere(ns)
	if err != nil {
		return nil, err
	}
	nft, err := nftElsewhere(ns)
	return append(nft, legacy...), err
}

func nftElsewhere(ns *netns.Handle) ([]string, error) {
	c, err := dial(ns)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer c.Close()
	chains, err := c.chains()
	if err = unless(explain(err), errAbsent); err != nil {
		return nil, fmt.Errorf("read chains of nftables: %w", err)
	}
	var names []string
	for _, chain := range chains {
		key := tableKey{chain.family, chain.table}
		if familyNames[key.family] == "" || key.name == GatewayTable || slices.Contains(names, key.String()) {
			continue
		}
		rules, err := c.rules(key)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(rules, func(r *kernelRule) bool { return slices.ContainsFunc(r.exprs, isElsewhere) }) {
			names = append(names, key.String())
		}
	}
	return names, nil
}

func isElsewhere(x kernelExpr) bool {
	const exthdrSreg = 7 // NFTA_EXTHDR_SREG: it writes
	switch x.name {
	case "notrack":
		return true
	case "exthdr":
		return x.data.has(exthdrSreg)
	case "target":
		return slices.Contains(elsewhere, x.data.text(nftXtName))
	}
	return false
}
