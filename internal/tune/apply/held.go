package apply

import (
	"slices"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/journal"
)

// Temporary gives the transaction that set the present value of a sysctl and
// will, or should, take it back by itself: a lab's, or one that waits for its
// confirmation. nil where there is none. Who wants the value to stay must have a
// transaction of his own, with Before = After: the undo hands the value over to it.
func Temporary(name, value string, opt Options) (*journal.Transaction, error) {
	opt = opt.withDefaults()
	all, _, err := opt.Journal.List()
	if err != nil || len(all) == 0 {
		return nil, err
	}
	view, err := opt.view()
	if err != nil {
		return nil, err
	}
	here := netns.ID{Inode: journal.NamespaceInode(opt.ProcRoot, "net")}
	if opt.ProcRoot == "/proc" {
		if here, err = netns.IDOf(nil); err != nil {
			return nil, err
		}
	}
	for _, tx := range slices.Backward(all) {
		wrote := Wrote(tx, name, value, here, view.BootID)
		if wrote && (tx.Lifeline || tx.Unconfirmed() || !tx.Complete) {
			return tx, nil
		}
		if wrote {
			return nil, nil
		}
	}
	return nil, nil
}

// Wrote reports whether a transaction that is in force set a sysctl to its present value,
// as it is in the network namespace here since that boot.
func Wrote(tx *journal.Transaction, name, value string, here netns.ID, boot string) bool {
	key := tune.Change{Kind: tune.Sysctl, Target: name}.Key()
	return tx.BootID == boot && slices.ContainsFunc(tx.Changes, func(c journal.Change) bool {
		in := tx.In(c)
		return c.Open() && c.Key() == key && tune.SameValue(c.After, value) && (in.Inode == 0 || in.Is(here))
	})
}
