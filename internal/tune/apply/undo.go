package apply

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/journal"
)

// Undo takes a transaction back: each value that is still the one natkit wrote
// becomes what it was; the others are left, and the returned transaction says so.
// After a reboot only files are taken back. What a running natkit holds
// (Lifeline) is refused: it would go on as if nothing had happened. A guard that
// waited for the deadline has ended when it returns.
func Undo(id string, opt Options) (*journal.Transaction, error) {
	opt = opt.withDefaults()
	if err := opt.check(); err != nil {
		return nil, err
	}
	var tx *journal.Transaction
	err := whereMade(id, opt, func() (err error) { tx, err = undoByID(id, opt, undoable); return err })
	if tx != nil && tx.Finished() { // also where the journal does not know
		retireGuard(tx)
	}
	return tx, err
}

func undoable(tx *journal.Transaction, view journal.View) error {
	switch status := view.Status(tx); {
	case status == journal.StatusUndone:
		return errors.New("it was undone before")
	case tx.Finished():
		return fmt.Errorf("it was undone before (%s)", status)
	case status == journal.StatusHeld, status == journal.StatusApplying:
		return fmt.Errorf("%s runs (pid %d) and undoes it when it ends", tx.Origin, tx.Owner.PID)
	}
	return nil
}

// whereMade runs fn in the network namespace in which a transaction was made: rules
// that name theirs and sysctls that do not go back together. Where it cannot be
// entered, fn is run here, and finds out what that means.
func whereMade(id string, opt Options, fn func() error) error {
	tx, err := opt.Journal.Load(id)
	if err != nil || opt.ProcRoot != "/proc" || tx.Netns == 0 || tx.Netns == journal.NamespaceInode(opt.ProcRoot, "net") {
		return fn()
	}
	ns, err := netns.OfInode(tx.Netns)
	if err != nil {
		return fn()
	}
	defer ns.Close()
	return ns.Do(fn)
}

// undoByID undoes what the journal holds now; allowed may refuse.
func undoByID(id string, opt Options, allowed check) (*journal.Transaction, error) {
	return onTransaction("undo", id, opt, allowed, func(tx *journal.Transaction) error { return undoTransaction(tx, opt) })
}

// ErrUnsaved: values are back, but the journal does not say so.
var ErrUnsaved = errors.New("the values are back, but the journal could not be written")

// undoOwn undoes a transaction of which this process, its owner or its guard, has
// a copy: a journal that was deleted, damaged or locked away by its rights does
// not keep it from that. Only while another natkit works it does nothing (ErrBusy).
// allowed may refuse, given what the journal says.
func undoOwn(own *journal.Transaction, opt Options, allowed func(*journal.Transaction) error) (*journal.Transaction, error) {
	ctx, cancel := context.WithTimeout(context.Background(), lockPatience)
	defer cancel()
	unlock, err := opt.Journal.LockExisting(ctx)
	if errors.Is(err, journal.ErrBusy) {
		return nil, fmt.Errorf("undo %s: %w", own.ID, err)
	}
	if err != nil {
		return own, undoUnsaved(own, opt, err)
	}
	defer unlock()
	tx, err := opt.Journal.Reload(own)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return own, undoUnsaved(own, opt, err)
	case err != nil: // damaged: replaced by what is known here
		return own, undoTransaction(own, opt)
	}
	if allowed != nil {
		if err := allowed(tx); err != nil {
			return nil, err
		}
	}
	return tx, undoTransaction(tx, opt)
}

// undoUnsaved undoes without a journal, for a reason. Where the journal was
// deleted nothing has to be written down.
func undoUnsaved(own *journal.Transaction, opt Options, reason error) error {
	err := undoChanges(own, opt)
	switch {
	case err != nil:
		return errors.Join(err, reason)
	case errors.Is(reason, fs.ErrNotExist):
		return nil
	}
	return fmt.Errorf("undo %s: %w: %w", own.ID, ErrUnsaved, reason)
}

// check says why something must not be done to a transaction.
type check func(*journal.Transaction, journal.View) error

// onTransaction works on what the journal says now, as another natkit may have
// changed it, and keeps others out meanwhile. It goes on while the process is
// being interrupted.
func onTransaction(operation, id string, opt Options, allowed check, do func(*journal.Transaction) error) (*journal.Transaction, error) {
	unlock, err := opt.lock(context.Background())
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", operation, id, err)
	}
	defer unlock()
	tx, err := opt.Journal.Load(id)
	if err != nil {
		return nil, err
	}
	if allowed != nil {
		view, err := opt.view()
		if err != nil {
			return nil, err
		}
		if err := allowed(tx, view); err != nil {
			return nil, fmt.Errorf("%s %s: %w", operation, id, err)
		}
	}
	return tx, do(tx)
}

// errMeanwhile: a guard or another natkit was faster.
var errMeanwhile = errors.New("undone meanwhile")

// undoTransaction undoes what is open and saves what became of it. The lock is held.
func undoTransaction(tx *journal.Transaction, opt Options) error {
	err := undoChanges(tx, opt)
	saveErr := opt.Journal.Save(tx)
	if err == nil && saveErr != nil {
		return fmt.Errorf("undo %s: %w: %w", tx.ID, ErrUnsaved, saveErr)
	}
	return errors.Join(err, saveErr)
}

// undoChanges goes backwards, and on after errors; what failed stays open.
func undoChanges(tx *journal.Transaction, opt Options) error {
	view, err := opt.view()
	if err != nil {
		return err
	}
	var errs []error
	for i := range slices.Backward(tx.Changes) {
		c := &tx.Changes[i]
		if !c.Open() {
			continue
		}
		if !c.Durable && tx.BootID != view.BootID {
			c.State, c.Note = journal.Undone, "void since the reboot"
			continue
		}
		if err := sameNetns(tx, *c, opt); errors.Is(err, fs.ErrNotExist) {
			c.State, c.Note = journal.Left, err.Error()
			continue
		} else if err != nil {
			errs = append(errs, err)
			continue
		}
		if err := undoOne(tx, c, opt); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// sameNetns keeps an undo from writing to another namespace's values. The error is
// fs.ErrNotExist where the namespace is gone, and its values with it.
func sameNetns(tx *journal.Transaction, c journal.Change, opt Options) error {
	here := journal.NamespaceInode(opt.ProcRoot, "net")
	if !c.Durable && opt.ProcRoot == "/proc" && tx.Netns == here && tx.OfAnother(journal.NetnsCookie()) {
		return fmt.Errorf("network namespace %d: %w: it is gone, and another one has its number", here, fs.ErrNotExist)
	}
	if c.Durable || c.NamesNetns() || tx.Netns == 0 || here == 0 || tx.Netns == here {
		return nil
	}
	if opt.ProcRoot == "/proc" { // where namespaces are looked for
		ns, err := netns.OfInode(tx.Netns)
		if errors.Is(err, fs.ErrNotExist) {
			return err
		}
		ns.Close()
	}
	return fmt.Errorf("undo %s of %s: it was changed in network namespace %d, this is %d; run natkit there (nsenter --net)",
		c.Target, tx.ID, tx.Netns, here)
}

func undoOne(tx *journal.Transaction, c *journal.Change, opt Options) error {
	applier, ok := opt.Appliers[c.Kind]
	if !ok {
		return fmt.Errorf("undo %s %s of %s: this natkit cannot change things of that kind; use the one that applied it", c.Kind, c.Target, tx.ID)
	}
	now, err := applier.Read(c.Target)
	if errors.Is(err, fs.ErrNotExist) {
		c.State, c.Note = journal.Left, "no longer exists"
		if c.NamesNetns() { // which of the two: the namespace, the rule
			c.Note += ": " + err.Error()
		}
		return nil
	}
	if err != nil {
		return err
	}
	switch {
	case ours(applier, *c, now) && handOver(tx, c, opt, &now): // as another still wants it
	case ours(applier, *c, now):
		return writeBack(applier, c, now)
	case handOver(tx, c, opt, nil):
	case tune.SameValue(now, c.Before): // by somebody, or by an undo that was killed then
		if err := putBackAlong(applier, c); err != nil {
			return err
		}
		c.State = journal.Undone
	default:
		c.State = journal.Left
		c.Note = fmt.Sprintf("is %q, natkit wrote %q: changed by someone else", c.Shown(now), c.Shown(c.After))
	}
	return nil
}

// writeBack sets a value, and what the kernel sets along with it, to what they were. One
// that is so already is not written: net.ipv6.conf.all.forwarding sets the interfaces'
// own also where it stays the same (addrconf_fixup_forwarding).
func writeBack(applier Applier, c *journal.Change, now string) error {
	if err := leaveChosen(applier, c); err != nil {
		return err
	}
	if !tune.SameValue(now, c.Before) {
		if err := applier.Write(c.Target, c.Before); err != nil {
			return err
		}
	}
	if err := putBackAlong(applier, c); err != nil {
		return err
	}
	return verifyUndone(applier, c)
}

// ours is true where the value is the one natkit wrote. A change that is only
// planned may have been written by a natkit that died before it could say what
// the kernel made of it.
func ours(applier Applier, c journal.Change, now string) bool {
	if tune.SameValue(now, c.After) {
		return true
	}
	return c.State == journal.Planned &&
		(applier.Honours(c.Target, c.After, now) || c.Kind == tune.Sysctl && tune.MadeOf(c.Before, c.After, now))
}

func verifyUndone(applier Applier, c *journal.Change) error {
	got, err := applier.Read(c.Target)
	if err != nil {
		return fmt.Errorf("verify undo: %w", err)
	}
	if !applier.Honours(c.Target, c.Before, got) {
		return fmt.Errorf("undo %s: wrote %q, reads back %q", c.Target, c.Before, got)
	}
	c.State = journal.Undone
	if c.Durable {
		c.Note = "the live value stays until it is changed or the machine boots"
	}
	return nil
}
