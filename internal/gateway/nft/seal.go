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

// errInterleaved: what is read may have been changed since it was written.
var errInterleaved = errors.New("other programs change rules all the time")

// sealed writes the table by one transaction and then, into MarkChain, the fingerprint
// of each of its objects as the kernel tells it, so that Read finds what others change.
// Between the two somebody could have changed it: what is sealed is what the very next
// generation of the rule set has, and otherwise the table is written once more. A table
// without a seal works as well.
func sealed(ns *netns.Handle, write func() error) error {
	var err error
	for range attempts {
		var before uint32
		if before, err = natrules.Generation(ns); err == nil {
			err = write()
		}
		if err != nil {
			return fmt.Errorf("apply the gateway's rules: %w", err)
		}
		if err = seal(ns, max(before+1, 1)); !errors.Is(err, errInterleaved) { // 0 is left out (nf_tables_commit)
			break
		}
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnsealed, err)
	}
	return nil
}

// seal seals the table as it was in a generation, that of its writer.
func seal(ns *netns.Handle, written uint32) error {
	t, err := natrules.ReadTable(ns, Family, Table)
	if err != nil {
		return err
	}
	if t == nil || t.Generation != written {
		return errInterleaved
	}
	messages, err := sealing(t)
	if err != nil {
		return err
	}
	return attach(ns, messages, t)
}

// attach adds the seal to the table that it was made for, whatever somebody has changed
// of it by now: the seal tells. One that took its place has no use for it.
func attach(ns *netns.Handle, messages []message, t *natrules.Table) error {
	digest := marksOf(t).digest
	for try := range attempts {
		err := transaction(ns, messages, t.Generation)
		if try == 0 && err == nil {
			remember(ns, State{Present: true, Generation: max(t.Generation+1, 1), Digest: digest, Sealed: true, Intact: true})
		}
		if !errors.Is(err, unix.ERESTART) {
			return err
		}
		if t, err = natrules.ReadTable(ns, Family, Table); err != nil {
			return err
		}
		if t == nil || marksOf(t).digest != digest || len(marksOf(t).sealed) > 0 {
			return errInterleaved
		}
	}
	return errInterleaved
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
