package ruleset

import (
	"slices"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
)

// mostUnreached bounds the rules of chains of a table that nothing leads to.
const mostUnreached = 100

// outside are the chains of programs for what comes from other hosts: one that "output" alone leads to has lost its
// jump from "prerouting".
var outside = []string{"DOCKER", "DOCKER-INGRESS", "NETAVARK-HOSTPORT-DNAT", "CNI-HOSTPORT-DNAT"}

// restored are the programs without chains of NAT that are unused on purpose: what fills one leads packets to it.
// Others leave theirs when the rules that they were for go (kube-proxy), or jump to them as they need to.
var restored = []Owner{"", "docker", "libvirt"}

// unreached are the rules that translate in chains that no base chain leads to.
func (t *Table) unreached(budget *Budget) (all []snapshot.UnreachedRule) {
	if !t.IsNAT() || t.IsGateway() {
		return nil
	}
	reached, byOthers := map[string]bool{}, map[string]bool{}
	for _, c := range t.Chains {
		if c.Hook == "" {
			continue
		}
		_, names := t.reach(c)
		for _, name := range names {
			if c.Hook != "output" || !slices.Contains(outside, name) {
				reached[name] = true
			}
		}
	}
	for _, c := range t.Chains {
		if c.Hook == "" && !reached[c.Name] {
			_, names := t.reach(c)
			for _, name := range names {
				byOthers[name] = true
			}
		}
	}
	for _, c := range t.Chains {
		owner := t.owner()
		if owner == "" {
			owner = ownerOfChain(c.Name)
		}
		if c.Hook != "" || reached[c.Name] || byOthers[c.Name] || !slices.Contains(restored, owner) && !slices.Contains(outside, c.Name) {
			continue
		}
		for _, r := range t.asBase(c, budget) {
			if len(all) < mostUnreached {
				all = append(all, snapshot.UnreachedRule{NATRule: r, From: c.Name, Owner: owner})
			}
		}
	}
	return all
}

// asBase are the rules that a chain would lead to from the hook that they are for.
func (t *Table) asBase(c *Chain, budget *Budget) (all []snapshot.NATRule) {
	base := *c
	base.Hook, base.Type, base.Priority = "prerouting", "nat", -100
	entries, _ := t.Flatten(&base, Query{Keep: Translations, Coarse: true}, budget)
	if !slices.ContainsFunc(entries, func(e *Entry) bool { return !nat.Kind(e.Rule.Target.natKind(base.Hook)).TranslatesSource() }) {
		base.Hook, base.Priority = "postrouting", 100
	}
	for _, paths := range byRule(entries) {
		all = append(all, merged(paths, false))
	}
	return all
}
