package natrules

import (
	"fmt"
	"slices"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
)

// BaseChain is a chain at a hook of IPv4 or IPv6, of any type, and what it leads to.
type BaseChain struct {
	// Source is as in snapshot.NATRule.
	Source, Family, Table, Name string
	// Type is "filter", "nat" or "route"; of iptables, "nat" for the table of that
	// name, else "filter".
	Type string
	Hook string
	// Priority orders chains at a hook, lower first.
	Priority int32
	// Policy is what becomes of packets that no rule with conditions decides: "accept",
	// "drop" or "reject", by the chain's policy or by the first rule that is for all.
	Policy string
	// Accepts are the conditions of rules that accept, where the chain refuses what no
	// rule does: a thousand at most. What a rule before them takes is not left out.
	Accepts []snapshot.NATRule
	// Rules counts those of the chain and of all chains that it leads to, each once.
	Rules int
	// Chains are the names of all that it leads to.
	Chains []string
	// NAT are those of them that translate, in the order in which packets meet them: once
	// for each way that rules lead to them.
	NAT []snapshot.NATRule
	// TooMany is true where more ways and elements of sets lead to rules than natkit
	// follows: some of NAT may be missing, and those that are Partial lack conditions.
	TooMany bool
}

// BaseChains are all of a namespace (nil: this one) but those of dormant tables and of
// natkit's own, in no order. Needs CAP_NET_ADMIN in that namespace. No module of iptables is loaded
// by it.
func BaseChains(ns *netns.Handle) ([]BaseChain, error) {
	all, err := nftBaseChains(ns)
	if err != nil {
		return nil, fmt.Errorf("read chains of nftables: %w", err)
	}
	legacy, err := legacyBaseChains(ns)
	if err != nil {
		return nil, fmt.Errorf("read chains of iptables-legacy: %w", err)
	}
	translating, ways, err := byElement(ns)
	if err != nil {
		return nil, fmt.Errorf("read NAT rules: %w", err)
	}
	all = append(all, legacy...)
	for i := range all {
		all[i].NAT = all[i].of(translating)
		all[i].TooMany = all[i].Type == "nat" && ways.lost[lostBase{all[i].Family, all[i].Table, all[i].Name}]
	}
	return all, nil
}

// byElement tells what Read does, but a rule that looks into sets and maps once for each
// element, and one for ranges of ports once for each of them. natkit's own table is left
// out.
func byElement(ns *netns.Handle) ([]snapshot.NATRule, *budget, error) {
	ways := newBudget()
	all, err := over(ns, func(c conn) (all []found, err error) {
		names, err := links(ns)
		if err != nil {
			return nil, fmt.Errorf("list interfaces: %w", err)
		}
		var tables []*kernelTable
		nat := func(c kernelChain) bool { return c.translates() && !c.key().isGateway() }
		if _, _, err := c.settled(func() (err error) { ways = newBudget(); tables, err = c.withSets(nat, ways); return err }); err != nil {
			return nil, err
		}
		for _, t := range tables {
			all = append(all, t.stepByElement(names, ways).byPorts().rules(ways)...)
		}
		return all, nil
	})
	if err != nil {
		return nil, nil, err
	}
	legacy, err := legacyTables(ns, "nat")
	for _, t := range legacy {
		all = append(all, t.byPorts().rules(ways)...)
	}
	return inHookOrder(all), ways, err
}

// byPorts is the table with a step for each range of destination ports.
func (t *ruleTable) byPorts() *ruleTable {
	for _, c := range t.order {
		if !slices.ContainsFunc(c.steps, func(s step) bool { return s.hasPorts() }) {
			continue
		}
		var steps []step
		for i := range c.steps {
			steps = append(steps, c.steps[i].byPorts()...)
		}
		c.steps = steps
	}
	return t
}

// hasPorts reports whether ranges of destination ports are all that the rule's own fields
// do not have.
func (s *step) hasPorts() bool {
	f := &s.further
	return !s.unknown && len(f.Ports) > 0 && len(f.SourcePorts) == 0 && !f.SYN && s.rule.DestinationPort == 0
}

// byPorts is the step once for each range of destination ports.
func (s *step) byPorts() (all []step) {
	if !s.hasPorts() {
		return []step{*s}
	}
	for _, p := range s.further.Ports {
		one := *s
		one.rule.DestinationPort, one.rule.Partial = max(p[0], 1), false
		if p[1] > p[0] {
			one.rule.LastDestinationPort = p[1]
		}
		all = append(all, one)
	}
	return all
}

// of are the rules that packets meet by this chain.
func (b *BaseChain) of(rules []snapshot.NATRule) []snapshot.NATRule {
	leads := map[string]bool{b.Name: true}
	for _, name := range b.Chains {
		leads[name] = true
	}
	var mine []snapshot.NATRule
	for _, r := range rules {
		same := r.Family == b.Family && r.Table == b.Table && r.Hook == b.Hook && r.Priority == b.Priority
		if same && leads[r.Chain] && (r.Source == "iptables-legacy") == (b.Source == "iptables-legacy") {
			if len(r.Ways) == 0 {
				mine = append(mine, r)
			}
			mine = append(mine, r.Ways...)
		}
	}
	return mine
}

func nftBaseChains(ns *netns.Handle) ([]BaseChain, error) {
	return over(ns, func(c conn) (all []BaseChain, err error) {
		_, _, err = c.settled(func() (err error) { all, err = c.baseChains(); return err })
		return all, err
	})
}

// policies are nft's words for NFTA_CHAIN_POLICY.
var policies = map[uint32]string{0: "drop", 1: "accept"}

func (c conn) baseChains() ([]BaseChain, error) {
	chains, err := c.chains()
	if err != nil {
		return nil, err
	}
	flags, err := c.tables()
	if err != nil {
		return nil, err
	}
	graphs := map[tableKey]*graph{}
	var all []BaseChain
	for _, chain := range chains {
		key := chain.key()
		if chain.hook < 0 || key.isGateway() || familyNames[chain.family] == "" || flags[key]&nftTableDormant != 0 {
			continue
		}
		if graphs[key] == nil {
			if graphs[key], err = c.graph(key); err != nil {
				return nil, err
			}
		}
		all = append(all, chain.base(graphs[key]))
	}
	return all, nil
}

func (c kernelChain) base(g *graph) BaseChain {
	b := BaseChain{
		Source: "nftables", Family: familyNames[c.family], Table: c.table, Name: c.name,
		Type: c.kind, Hook: "ingress", Priority: c.priority, Policy: policies[c.policy],
	}
	if c.hook < len(hookNames) {
		b.Hook = hookNames[c.hook]
	}
	b.reach(g)
	if g.xt {
		b.Source = "iptables-nft"
	}
	return b
}

// reach notes what the table's other chains make of this one.
func (b *BaseChain) reach(g *graph) {
	b.Rules, b.Chains = g.reach(b.Name)
	if decision := g.decides(b.Name, map[string]bool{}); decision != "" {
		b.Policy = decision
	}
	if b.Policy != "accept" {
		b.Accepts = g.accepts(b.Name)
	}
}
