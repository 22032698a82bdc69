package apply

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/permit"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/journal"
)

// Undo takes a transaction back: each value that is still the one natkit wrote
// becomes what it was; the others are left, and the returned transaction says so.
// After a reboot only files are taken back. What a running natkit holds
// (Lifeline) is refused: it would go on as if nothing had happened; Options.Force does
// it all the same. A guard that waited for the deadline has ended when it returns.
func Undo(id string, opt Options) (*journal.Transaction, error) {
	opt = opt.withDefaults()
	if err := opt.check(); err != nil {
		return nil, err
	}
	allowed := undoable
	if opt.Force {
		allowed = unfinished
	}
	tx, err := undoByID(id, opt, allowed)
	if tx != nil && tx.Finished() { // also where the journal does not know
		retireGuard(tx)
	}
	return tx, err
}

func undoable(tx *journal.Transaction, view journal.View) error {
	switch status := view.Status(tx); status {
	case journal.StatusHeld, journal.StatusApplying:
		return fmt.Errorf("%s runs (pid %d) and undoes it when it ends; 'natkit tune undo --force %s' does not wait for that", tx.Origin, tx.Owner.PID, tx.ID)
	}
	return unfinished(tx, view)
}

func unfinished(tx *journal.Transaction, view journal.View) error {
	switch status := view.Status(tx); {
	case status == journal.StatusUndone:
		return ErrUndone
	case tx.Finished():
		return fmt.Errorf("%w (%s)", ErrUndone, status)
	}
	return nil
}

// undoByID undoes what the journal holds now; allowed may refuse.
func undoByID(id string, opt Options, allowed check) (*journal.Transaction, error) {
	return onTransaction("undo", id, opt, allowed, func(tx *journal.Transaction) error { return undoTransaction(tx, opt) })
}

// ErrUndone: there is nothing left to take back.
var ErrUndone = errors.New("it was undone before")

// ErrUnsaved: values are restored, but the journal does not record it.
var ErrUnsaved = errors.New("the values are back, but the journal could not be written")

// undoOwn undoes a transaction of which this process, its owner or its guard, has
// a copy: a journal that was deleted, damaged or locked away by its rights does
// not keep it from that. Only while another natkit works it does nothing (ErrBusy).
// allowed may refuse, given the journal's content.
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

// check returns an error if an operation on a transaction is not allowed.
type check func(*journal.Transaction, journal.View) error

// onTransaction works on what the journal says now, as another natkit may have
// changed it, and keeps others out meanwhile. It goes on while the process is
// being interrupted.
func onTransaction(operation, id string, opt Options, allowed check, do func(*journal.Transaction) error) (*journal.Transaction, error) {
	if err := permit.ChangeOf(operation, id); err != nil {
		return nil, err
	}
	unlock, err := opt.lock(context.Background())
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", operation, id, err)
	}
	defer unlock()
	tx, err := opt.Journal.Load(id)
	if err != nil {
		return nil, err
	}
	if tx.ReadOnly() {
		return nil, fmt.Errorf("%s %s: it is uid %d's; run it as root", operation, id, tx.UID)
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

// undoing is an undo at work.
type undoing struct {
	tx  *journal.Transaction
	opt Options
	// spaces are the network namespaces of the changes, held open: each stays the one
	// that was checked. nil is the thread's own.
	spaces map[netns.ID]*netns.Handle
	// later are the open changes of transactions after tx, by what they change, heirs
	// the transactions that took something over, handed what that was, with its former state.
	later  map[string][]laterChange
	heirs  map[string]*journal.Transaction
	handed map[*journal.Change]journal.State
}

// undoChanges goes backwards, and on after errors; what failed stays open. Nothing is
// changed where what would be left is half of something.
func undoChanges(tx *journal.Transaction, opt Options) error {
	view, err := opt.view()
	if err != nil {
		return err
	}
	u := &undoing{tx: tx, opt: opt, spaces: map[netns.ID]*netns.Handle{}, heirs: map[string]*journal.Transaction{}, handed: map[*journal.Change]journal.State{}}
	defer u.close()
	for i := range tx.Changes {
		if c := &tx.Changes[i]; c.Open() && !c.Durable && tx.BootID != view.BootID {
			c.State, c.Note = journal.Undone, "void since the reboot"
		}
	}
	if err := u.whole(); err != nil && !opt.Force {
		return fmt.Errorf("undo %s: %w; nothing was changed", tx.ID, err)
	}
	var errs []error
	for i := range slices.Backward(tx.Changes) {
		if c := &tx.Changes[i]; c.Open() {
			errs = append(errs, u.undo(c))
		}
	}
	return errors.Join(append(errs, u.bequeath())...)
}

func (u *undoing) undo(c *journal.Change) error {
	ns, err := u.enter(*c)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		c.State, c.Note = journal.Left, err.Error()
		return nil
	case err != nil && u.opt.Force:
		c.State, c.Note = journal.Left, "given up: "+err.Error()
		return nil
	case err != nil:
		return fmt.Errorf("undo %s of %s: %w", c.Target, u.tx.ID, err)
	}
	return ns.Do(func() error { return u.undoOne(c) })
}

// whole refuses where a change without which the others must not be undone cannot be
// undone itself.
func (u *undoing) whole() error {
	for i := range u.tx.Changes {
		c := &u.tx.Changes[i]
		applier, ok := u.opt.Appliers[c.Kind].(keystone)
		if !ok || !c.Open() {
			continue
		}
		ns, err := u.enter(*c)
		if err == nil {
			err = ns.Do(func() error { return u.mayUndo(applier, c) })
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// keystone is what an Applier is as well whose changes hold the others of a transaction
// together.
type keystone interface {
	Applier
	// Restorable returns an error if a target cannot be restored to before.
	Restorable(target, before string) error
	// Kept returns the error for a target that was changed since.
	Kept(target string) error
}

func (u *undoing) mayUndo(applier keystone, c *journal.Change) error {
	now, err := applier.Read(c.Target)
	if err != nil {
		return err
	}
	mine := ours(applier, *c, now)
	_, handed := u.heir(*c, nil)
	if mine {
		_, handed = u.heir(*c, &now)
	}
	switch {
	case handed || isBefore(c, now):
		return nil
	case mine || isGone(c, now):
		return applier.Restorable(c.Target, c.Before)
	}
	return fmt.Errorf("%w; 'natkit tune undo --force %s' leaves them as they are and undoes the rest", applier.Kept(c.Target), u.tx.ID)
}

func (u *undoing) undoOne(c *journal.Change) error {
	applier, ok := u.opt.Appliers[c.Kind]
	if !ok {
		return fmt.Errorf("undo %s %s of %s: this natkit cannot change things of that kind; use the one that applied it", c.Kind, c.Target, u.tx.ID)
	}
	now, err := applier.Read(c.Target)
	if errors.Is(err, fs.ErrNotExist) {
		c.State, c.Note = journal.Left, "no longer exists"
		if c.Netns() != 0 { // which of the two: the namespace, the rule
			c.Note += ": " + err.Error()
		}
		return nil
	}
	if err != nil {
		return err
	}
	switch {
	case ours(applier, *c, now) && u.handOver(c, &now): // as another still wants it
	case ours(applier, *c, now):
		return writeBack(applier, c, now)
	case u.handOver(c, nil):
	case isBefore(c, now): // by another process, or by an undo that was killed afterwards
		if err := putBackAlong(applier, c); err != nil {
			return err
		}
		c.State = journal.Undone
	case isGone(c, now):
		return writeBack(applier, c, now)
	default:
		c.State = journal.Left
		c.Note = fmt.Sprintf("is %q, natkit wrote %q: changed since", c.Shown(now), c.Shown(c.After))
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

// ours is true where the value is the one natkit wrote, or of its routes those that are left. A change that is only
// planned may have been written by a natkit that died before it could say what
// the kernel made of it.
func ours(applier Applier, c journal.Change, now string) bool {
	if tune.SameValue(now, c.After) || c.Kind == tune.Routing && tune.AreLeftOf(now, c.After) {
		return true
	}
	return c.State == journal.Planned &&
		(applier.Honours(c.Target, c.After, now) || c.Kind == tune.Sysctl && tune.MadeOf(c.Before, c.After, now))
}

// isBefore reports whether a value is the one from before the change. Changed rules of a
// gateway are that only until they were written over: those that are read afterwards were
// changed since.
func isBefore(c *journal.Change, now string) bool {
	_, changed := tune.GatewayDigest(now)
	return c.Follows(now) && !(changed && c.Kind == tune.Gateway && c.State == journal.Applied)
}

// isGone reports whether a gateway's rules were removed since: nothing of another's would be
// lost with what was before.
func isGone(c *journal.Change, now string) bool {
	return c.Kind == tune.Gateway && now == tune.GatewayNone
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
	if c.Kind == tune.Gateway && got != c.Before {
		c.Note = "restored as natkit wrote it, without the changes by hand"
	}
	if c.Durable {
		c.Note = "the live value stays until it is changed or the machine boots"
	}
	return nil
}

// enter opens the network namespace of a change, and makes sure that it is the one in
// which it was made; nil stands for the thread's own, or for none. The error is
// fs.ErrNotExist where that one is gone, and its values with it.
func (u *undoing) enter(c journal.Change) (*netns.Handle, error) {
	id := u.tx.In(c)
	if err := u.reaches(u.tx, id); err != nil {
		return nil, err
	}
	if id.Inode == 0 {
		return nil, nil
	}
	if u.opt.ProcRoot != "/proc" { // where namespaces are not looked for
		here := journal.NamespaceInode(u.opt.ProcRoot, "net")
		if c.Netns() == 0 && here != 0 && here != id.Inode {
			return nil, fmt.Errorf("it was changed in network namespace %d, this is %d; run natkit there (nsenter --net)", id.Inode, here)
		}
		return nil, nil
	}
	if ns, ok := u.spaces[id]; ok {
		return ns, nil
	}
	here, err := netns.InodeOf(nil)
	if err != nil {
		return nil, err
	}
	ns, err := netns.Open(id)
	if err == nil {
		err = u.certain(id, ns, here)
	}
	if err != nil || ns.Inode() == here {
		ns.Close()
		ns = nil
	}
	if err == nil {
		u.spaces[id] = ns
	}
	return ns, err
}

// reaches refuses a namespace that who wrote the transaction could not enter: a service
// that is not root stays in the host's own.
func (u *undoing) reaches(tx *journal.Transaction, id netns.ID) error {
	if !tx.Foreign() {
		return nil
	}
	initial, err := journal.InitialNamespace(u.opt.ProcRoot, "net")
	if err != nil {
		return fmt.Errorf("which network namespace is the host's, the only one that uid %d, who wrote it, can change: %w; run natkit outside the container", tx.UID, err)
	}
	if id.Inode != initial {
		return fmt.Errorf("uid %d, who wrote it, cannot change network namespace %d", tx.UID, id.Inode)
	}
	return nil
}

// certain refuses a namespace known by its number only, as in journals of earlier
// versions, if the kernel can identify it better. The host's own always exists.
func (u *undoing) certain(id netns.ID, ns *netns.Handle, here uint64) error {
	initial, err := journal.InitialNamespace(u.opt.ProcRoot, "net")
	isInitial := err == nil && id.Inode == initial || id.Inode == here && IsInitialNetns(here, u.opt.ProcRoot)
	if isInitial {
		return nil
	}
	if err := id.Certain(ns); err != nil {
		return fmt.Errorf("%w; 'natkit tune undo --force %s' gives it up", err, u.tx.ID)
	}
	return nil
}

func (u *undoing) close() {
	for _, ns := range u.spaces {
		ns.Close()
	}
}
