package nft

import (
	"slices"
	"strings"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/natrules"
	"github.com/natkit/natkit/internal/netns"
)

// keeps finds out whether the table that there is has a limit's set that this one
// needs as well: with it the counts of connections are kept, which the kernel cannot be
// told anew. It is nil where there is nothing to keep.
func (t *table) keeps(ns *netns.Handle) (*natrules.Table, error) {
	if !slices.ContainsFunc(t.sets, (*set).keepable) {
		return nil, nil
	}
	was, err := natrules.ReadTable(ns, Family, Table)
	if err != nil || was == nil || was.Owned || was.Dormant {
		return nil, err
	}
	found := false
	for _, s := range t.sets {
		s.there = s.keepable() && slices.ContainsFunc(was.Sets, func(old natrules.TableSet) bool { return old.Name == s.name && old.Dynamic })
		found = found || s.there
	}
	if !found {
		return nil, nil
	}
	return was, nil
}

// keepable: a set that packets fill.
func (s *set) keepable() bool { return s.flags&unix.NFT_SET_EVAL != 0 }

// emptied takes everything out of the table that there is, but for the sets that stay.
// Sets without a name go with their rules.
func (t *table) emptied(was *natrules.Table) []message {
	all := []message{tableMessage(unix.NFT_MSG_NEWTABLE)}
	for _, c := range was.Chains {
		all = append(all, removal(unix.NFT_MSG_DELRULE, unix.NFTA_RULE_TABLE, unix.NFTA_RULE_CHAIN, c.Name))
	}
	for _, c := range was.Chains {
		all = append(all, removal(unix.NFT_MSG_DELCHAIN, unix.NFTA_CHAIN_TABLE, unix.NFTA_CHAIN_NAME, c.Name))
	}
	for _, s := range was.Sets {
		stays := slices.ContainsFunc(t.sets, func(n *set) bool { return n.there && n.name == s.Name })
		if !stays && !strings.HasPrefix(s.Name, "__") {
			all = append(all, removal(unix.NFT_MSG_DELSET, unix.NFTA_SET_TABLE, unix.NFTA_SET_NAME, s.Name))
		}
	}
	for _, name := range was.Flowtables {
		all = append(all, removal(nftables.NFT_MSG_DELFLOWTABLE, nftables.NFTA_FLOWTABLE_TABLE, nftables.NFTA_FLOWTABLE_NAME, name))
	}
	return all
}

func removal(kind, table, name uint16, what string) message {
	m := message{kind: kind, about: "the rules before: " + what}
	m.body.text(table, Table)
	m.body.text(name, what)
	return m
}
