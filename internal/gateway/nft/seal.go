package nft

import (
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/natkit/natkit/internal/natrules"
	"github.com/natkit/natkit/internal/netns"
)

// seal writes into MarkChain the fingerprint of each object of the table as the
// kernel tells it, so that Read finds what others changed. It comes right after the
// transaction that wrote the table, and changes nothing that a packet meets: a table
// without a seal works as well.
func seal(ns *netns.Handle, c *nftables.Conn) error {
	t, err := natrules.ReadTable(ns, Family, Table)
	if err != nil {
		return fmt.Errorf("seal the gateway's table: %w", err)
	}
	if t == nil {
		return fmt.Errorf("seal the gateway's table: somebody removed table %s %s right after it was written: apply again", Family, Table)
	}
	table := &nftables.Table{Name: Table, Family: nftables.TableFamilyINet}
	chain := &nftables.Chain{Name: MarkChain, Table: table}
	for _, o := range objectsOf(t) {
		c.AddRule(markRule(table, chain, comment(o.mark())))
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("seal the gateway's table: %w", err)
	}
	return nil
}

// markRule is a rule of MarkChain: nothing leads there, it only tells.
func markRule(table *nftables.Table, chain *nftables.Chain, userData []byte) *nftables.Rule {
	return &nftables.Rule{
		Table: table, Chain: chain, UserData: userData,
		Exprs: []expr.Any{&expr.Verdict{Kind: expr.VerdictReturn}},
	}
}
