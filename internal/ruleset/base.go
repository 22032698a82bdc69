package ruleset

import (
	"github.com/natkit/natkit/internal/snapshot"
)

// BaseChain is a chain at a hook, and what it leads to.
type BaseChain struct {
	// Source is "nftables", "iptables-nft" or "iptables-legacy"; Owner a guess by names:
	// "docker", "kubernetes", "firewalld", or empty.
	Source string `json:"source"`
	Owner  Owner  `json:"owner,omitempty"`
	Family string `json:"family"`
	Table  string `json:"table"`
	Chain  string `json:"chain"`
	// Type is "filter", "nat" or "route"; of iptables-legacy "nat" or "filter".
	Type string `json:"type"`
	Hook string `json:"hook"`
	// Priority orders chains at a hook, lower first.
	Priority int32 `json:"priority"`
	// Policy is what becomes of packets that no rule with conditions decides: "accept",
	// "drop" or "reject", by the chain's policy or a rule that matches all.
	Policy string `json:"policy,omitempty"`
	// Accepts are the conditions of its rules that accept, if the policy is another; 1,000
	// at most. What rules before them take is not subtracted.
	Accepts []snapshot.NATRule `json:"accepts,omitempty"`
	// Rules is how many rules it leads to, each once.
	Rules int `json:"rules"`
	// NAT are its rules that translate, once for each path that leads to them.
	NAT []snapshot.NATRule `json:"nat,omitempty"`
	// TooMany is true if more leads to them than natkit follows: some may be missing.
	TooMany bool `json:"too_many_to_follow,omitempty"`
}

// BaseChains are those of a table; bySet is the same table with a rule for each element
// of sets.
func (t *Table) BaseChains(bySet *Table, budget *Budget) (all []BaseChain) {
	for _, c := range t.Chains {
		if c.Hook == "" {
			continue
		}
		b := BaseChain{Source: t.Program(), Family: t.Family, Table: t.Name, Chain: c.Name,
			Type: c.Type, Hook: c.Hook, Priority: c.Priority, Policy: t.policyOf(c)}
		var names []string
		b.Rules, names = t.reach(c)
		b.Owner = ownerOfNames(t.Name, append([]string{c.Name}, names...)...)
		if b.Policy != "accept" {
			b.Accepts = t.accepts(c)
		}
		if b.Type == "nat" {
			b.NAT, b.TooMany = bySet.translations(bySet.Find(c.Name), budget)
		}
		all = append(all, b)
	}
	return all
}
