package nft

import (
	"errors"
	"fmt"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/natrules"
	"github.com/natkit/natkit/internal/netns"
)

// ErrUnsealed: a plan is in force, but natkit will not see if others change its rules.
var ErrUnsealed = errors.New("the gateway's rules are in force, but natkit will not see if others change them; apply again")

// seal writes into MarkChain the fingerprint of each object of the table as the
// kernel tells it, so that Read finds what others changed. It comes right after the
// transaction that wrote the table, and changes nothing that a packet meets: a table
// without a seal works as well. Of rules that others change at that moment it tells
// nothing: it is begun anew.
func seal(ns *netns.Handle) error {
	var err error
	for range attempts {
		if err = sealOnce(ns); !errors.Is(err, unix.ERESTART) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("seal the gateway's table: %w", err)
	}
	return nil
}

func sealOnce(ns *netns.Handle) error {
	t, err := natrules.ReadTable(ns, Family, Table)
	if err != nil {
		return err
	}
	if t == nil {
		return fmt.Errorf("somebody removed table %s %s right after it was written", Family, Table)
	}
	messages, err := sealing(t)
	if err != nil {
		return err
	}
	s, err := dial(ns)
	if err != nil {
		return err
	}
	defer s.close()
	refused, err := s.send(batchOf(messages, t.Generation, true), len(messages))
	if err != nil {
		return err
	}
	return explain(ns, messages, refused)
}

// sealing are the rules of MarkChain that seal a table: nothing leads there, they only
// tell.
func sealing(t *natrules.Table) (all []message, err error) {
	for _, o := range objectsOf(t) {
		m, err := rule{chain: MarkChain, exprs: []expression{&expr.Verdict{Kind: expr.VerdictReturn}}, comment: o.mark()}.message()
		if err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	return all, nil
}
