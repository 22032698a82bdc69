package apply

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/permit"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/journal"
)

// Confirm makes a transaction that waits for confirmation stay. Its files
// (Options.Persist at Apply) are written now; where that fails it is not
// confirmed and its deadline still holds. Its guard has ended when it returns.
func Confirm(id string, opt Options) (*journal.Transaction, error) {
	if err := permit.Change("confirm"); err != nil {
		return nil, err
	}
	return confirm(id, opt, func(*journal.Transaction) bool { return true })
}

// confirm refuses where the id is not, or no longer, that of the one that is meant.
func confirm(id string, opt Options, meant func(*journal.Transaction) bool) (*journal.Transaction, error) {
	opt = opt.withDefaults()
	if err := opt.check(); err != nil {
		return nil, err
	}
	allowed := func(tx *journal.Transaction, view journal.View) error {
		if !meant(tx) {
			return fmt.Errorf("%w any more: its id is another's by now; its deadline still holds", fs.ErrNotExist)
		}
		return confirmable(tx, view)
	}
	tx, err := onTransaction("confirm", id, opt, allowed, func(tx *journal.Transaction) error {
		if err := writeFiles(tx, opt); err != nil {
			return notConfirmed(tx, err)
		}
		tx.Confirm.Confirmed = true
		if err := opt.Journal.Save(tx); err != nil {
			return notConfirmed(tx, errors.Join(err, takeFilesBack(tx, opt)))
		}
		return nil
	})
	if err == nil {
		retireGuard(tx)
	}
	return tx, err
}

func notConfirmed(tx *journal.Transaction, err error) error {
	tx.Confirm.Confirmed = false
	return fmt.Errorf("confirm %s: %w; it is not confirmed and will be undone at %s", tx.ID, err,
		tx.Confirm.DeadlineAt.Local().Format(time.TimeOnly))
}

func confirmable(tx *journal.Transaction, view journal.View) error {
	switch status := view.Status(tx); {
	case tx.Confirm == nil:
		return fmt.Errorf("it needs no confirmation (%s)", status)
	case tx.Finished():
		return fmt.Errorf("too late (%s)", status)
	case tx.Confirm.Confirmed:
		return errors.New("it was confirmed before")
	case status == journal.StatusVoid:
		return errors.New("too late, the machine was rebooted since")
	case status == journal.StatusOverdue:
		return fmt.Errorf("too late, its time ended at %s; 'natkit tune undo %s' rolls it back", tx.Confirm.DeadlineAt.Local().Format(time.TimeOnly), tx.ID)
	case status != journal.StatusPending:
		return fmt.Errorf("it does not wait for confirmation (%s)", status)
	}
	return nil
}

// writeFiles writes the files that were held back until now, or none of them.
func writeFiles(tx *journal.Transaction, opt Options) error {
	held := func(c journal.Change) bool { return c.Durable }
	for _, c := range tx.Changes {
		if held(c) && c.State == journal.Planned {
			if err := expectBefore(opt.Appliers[c.Kind], c.Change); err != nil {
				return err
			}
		}
	}
	err := writeChanges(context.Background(), tx, opt, held)
	if err == nil {
		return nil
	}
	if undoErr := takeFilesBack(tx, opt); undoErr != nil {
		return fmt.Errorf("%w; %w", err, undoErr)
	}
	if saveErr := opt.Journal.Save(tx); saveErr != nil {
		return fmt.Errorf("%w; %w", err, saveErr)
	}
	return err
}

// takeFilesBack makes files that were written be planned again.
func takeFilesBack(tx *journal.Transaction, opt Options) error {
	u := &undoing{tx: tx, opt: opt, heirs: map[string]*journal.Transaction{}, handed: map[*journal.Change]journal.State{}}
	for i := range tx.Changes {
		c := &tx.Changes[i]
		if !c.Durable || !c.Open() {
			continue
		}
		if err := u.undoOne(c); err != nil {
			return fmt.Errorf("taking it back: %w", err)
		}
		if c.State == journal.Undone {
			c.State, c.Note = journal.Planned, ""
		}
	}
	return u.bequeath()
}

// Clean undoes every abandoned transaction: the owner died, the deadline passed without
// the guard, or a reboot made it void. A service that is not root undoes only its own.
// It continues after errors and returns what it undid.
func Clean(opt Options) ([]*journal.Transaction, error) {
	if permit.IsReadOnly() {
		return nil, nil // what is overdue stays listed as that
	}
	opt = opt.withDefaults()
	if err := opt.check(); err != nil {
		return nil, err
	}
	all, damaged, err := opt.Journal.List()
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, errors.Join(damaged...)
	}
	view, err := opt.view()
	if err != nil {
		return nil, err
	}
	var undone []*journal.Transaction
	errs := damaged
	// Newest first, so that values changed twice go back all the way.
	for _, tx := range slices.Backward(all) {
		if !view.Status(tx).Abandoned() || tx.ReadOnly() {
			continue
		}
		tx, err := undoByID(tx.ID, opt, abandoned)
		if errors.Is(err, errMeanwhile) {
			continue
		}
		errs = append(errs, err)
		if err == nil {
			undone = append(undone, tx)
		}
	}
	return undone, errors.Join(errs...)
}

func abandoned(tx *journal.Transaction, view journal.View) error {
	if !view.Status(tx).Abandoned() {
		return errMeanwhile
	}
	expire(tx)
	return nil
}

// handOver gives the former value to a later transaction that changed the same target
// from what this one wrote: two labs that end in any order then leave the host as the
// first one found it. If wanted is given, a later transaction must want that value: if
// none began where this one ended, because the value was changed in between, there is
// nothing to hand over, and the value belongs to the later one.
func (u *undoing) handOver(c *journal.Change, wanted *string) bool {
	l, ok := u.heir(*c, wanted)
	if !ok {
		return false
	}
	if !l.Follows(c.After) {
		c.State, c.Note = journal.Undone, "it was changed since, and "+l.in.ID+" wrote it again"
		return true
	}
	l.Before, l.Along = c.Before, c.Along
	u.heirs[l.in.ID] = l.in
	u.handed[c] = c.State
	c.State, c.Note = journal.Undone, "handed over to "+l.in.ID+", which changed it again"
	if wanted != nil && tune.SameValue(l.After, *wanted) {
		c.Note = "handed over to " + l.in.ID + ", which wants the same value"
	}
	return true
}

// heir is the later change that takes over what was before c; one that does not follow c
// only has the value that is wanted.
func (u *undoing) heir(c journal.Change, wanted *string) (laterChange, bool) {
	later := u.after(c)
	wants := func(l laterChange) bool { return wanted != nil && tune.SameValue(l.After, *wanted) }
	follows := func(l laterChange) bool { return l.Follows(c.After) }
	owner := slices.IndexFunc(later, wants)
	if wanted != nil && owner < 0 {
		return laterChange{}, false
	}
	heir := slices.IndexFunc(later, func(l laterChange) bool { return follows(l) && wants(l) })
	if heir < 0 { // whose successor wants it
		heir = slices.IndexFunc(later, follows)
	}
	if heir < 0 {
		heir = owner
	}
	if heir < 0 {
		return laterChange{}, false
	}
	return later[heir], true
}

// bequeath writes down what others have taken over. Where that fails, it is still this
// transaction's.
func (u *undoing) bequeath() error {
	for _, in := range u.heirs {
		if err := u.opt.Journal.Save(in); err != nil {
			for c, former := range u.handed {
				c.State, c.Note = former, ""
			}
			return fmt.Errorf("hand values of %s over to %s: %w", u.tx.ID, in.ID, err)
		}
	}
	return nil
}

// laterChange is a change of the same thing, and the transaction that it is in.
type laterChange struct {
	*journal.Change
	in *journal.Transaction
}

// after are the open changes of the same thing in later transactions, oldest first.
func (u *undoing) after(c journal.Change) []laterChange {
	if u.later == nil {
		u.readLater()
	}
	return slices.DeleteFunc(slices.Clone(u.later[c.Key()]), func(l laterChange) bool {
		return !c.Durable && (l.in.BootID != u.tx.BootID || !l.in.In(*l.Change).Is(u.tx.In(c)))
	})
}

func (u *undoing) readLater() {
	u.later = map[string][]laterChange{}
	all, _, err := u.opt.Journal.List()
	if err != nil {
		return
	}
	// Where the journal was deleted, all in it are later ones.
	self := slices.IndexFunc(all, u.tx.Is)
	for _, in := range all[self+1:] {
		for i := range in.Changes {
			if l := &in.Changes[i]; l.Open() && u.reaches(in, in.In(*l)) == nil {
				u.later[l.Key()] = append(u.later[l.Key()], laterChange{l, in})
			}
		}
	}
}

// Temporary returns the transaction that set the present value of a sysctl and will, or
// should, undo it automatically: a lab's, or one that waits for its confirmation; nil if
// there is none. Keeping the value requires another transaction with Before = After: the
// undo hands the value over to it.
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
