package natrules

import (
	"fmt"
	"slices"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
)

// NATTable is a table that has chains of NAT, or others that concern it, with all that
// leads packets through it.
type NATTable struct {
	// Source is "nftables" or "iptables-legacy"; tables of iptables-nft are nftables'.
	Source, Family, Name string
	Chains               []NATChain
}

// IsIptables reports whether it is a table of iptables-legacy or iptables-nft.
func (t *NATTable) IsIptables() bool {
	return t.Source == "iptables-legacy" || t.Family != "inet" && slices.Contains(iptablesTables, t.Name)
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
	// NAT is true where it is a chain of NAT.
	NAT bool
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
	// not come to the next rule, Ends where they leave the base chain, Refuses where they
	// end so.
	To                    []string
	Leaves, Ends, Refuses bool
	// Notrack keeps the tracker off; MSS bounds the segments that SYNs ask for, to that
	// many bytes, or, by ClampMSS, to what the route's MTU takes.
	Notrack  bool
	MSS      uint16
	ClampMSS bool
	// Other is the name of a target that is none of these; Comment the rule's own.
	Other, Comment string
}

// Chains tells the tables of a namespace (nil: this one) that have chains of NAT, or
// others with rules that keep the tracker off or bound segments. It tells them rule by
// rule, as Read tells only those that translate, and a rule that looks into sets once
// for each element. Needs CAP_NET_ADMIN there.
func Chains(ns *netns.Handle) ([]NATTable, error) {
	all, err := nftChains(ns)
	if err != nil {
		return nil, fmt.Errorf("read rules of nftables: %w", err)
	}
	legacy, err := legacyTables(ns, "raw", "mangle", "nat", "filter")
	if err != nil {
		return nil, fmt.Errorf("read rules of iptables-legacy: %w", err)
	}
	for _, t := range legacy {
		table := t.exported(func(string) bool { return t.name == "nat" })
		table.Source = "iptables-legacy"
		all = append(all, table)
	}
	return slices.DeleteFunc(all, func(t NATTable) bool { return len(t.Chains) == 0 }), nil
}

// exported is the table; nat tells which of its base chains are those of NAT. It is
// empty where neither they nor what the others do concern a gateway.
func (t *ruleTable) exported(nat func(chain string) bool) NATTable {
	table, concerns := NATTable{Source: "nftables", Family: t.family, Name: t.name}, false
	for _, c := range t.order {
		chain := NATChain{Name: c.name}
		for _, b := range c.bases {
			chain.Hooks = append(chain.Hooks, NATHook{Hook: hookNames[b.hook], Priority: b.priority, NAT: nat(c.name)})
			concerns = concerns || nat(c.name) || t.besidesNAT(c, map[*ruleChain]bool{})
		}
		for i := range c.steps {
			chain.Steps = append(chain.Steps, c.steps[i].exported())
		}
		table.Chains = append(table.Chains, chain)
	}
	if !concerns {
		return NATTable{}
	}
	return table
}

func (s *step) besidesNAT() bool { return s.notrack || s.clampMSS || s.mss != 0 }

// besidesNAT reports whether a chain has, or leads to, a rule that a gateway has words
// for although it does not translate.
func (t *ruleTable) besidesNAT(c *ruleChain, seen map[*ruleChain]bool) bool {
	if c == nil || seen[c] {
		return false
	}
	seen[c] = true
	return slices.ContainsFunc(c.steps, func(s step) bool {
		return s.besidesNAT() ||
			slices.ContainsFunc(s.to, func(name string) bool { return t.besidesNAT(t.chains[name], seen) })
	})
}

func (s *step) exported() NATStep {
	return NATStep{Rule: s.rule, Further: s.further, Unknown: s.unknown, Cause: s.cause, Version: s.version,
		Translates: s.translates, Prefix: s.netmap || s.prefix, Shifts: s.shifts,
		To: s.to, Leaves: s.leaves, Ends: s.ends, Refuses: s.refuses != "",
		Notrack: s.notrack, MSS: s.mss, ClampMSS: s.clampMSS, Other: s.other, Comment: s.comment}
}
