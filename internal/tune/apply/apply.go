// Package apply carries out a tune.Plan on a host: journaled before, verified
// after, undone on failure, on request, without confirmation, or when the
// process that requested it dies.
package apply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/permit"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/journal"
)

// Applied is a plan in force.
type Applied struct {
	opt   Options
	tx    *journal.Transaction
	guard *guard
	// end gives up the ownership of the transaction.
	end func()
}

// ID names the transaction in the journal.
func (a *Applied) ID() string { return a.tx.ID }

// Transaction is as it stood when the plan had been applied; After of each change
// is what the kernel made of it.
func (a *Applied) Transaction() journal.Transaction { return *a.tx }

// Note writes into the journal what the change of a kind has brought with it.
func (a *Applied) Note(kind tune.Kind, text string) error {
	unlock, err := a.opt.lock(context.Background())
	if err != nil {
		return err
	}
	defer unlock()
	now, err := a.opt.Journal.Reload(a.tx)
	if err != nil {
		return err
	}
	for i := range now.Changes {
		if c := &now.Changes[i]; c.Kind == kind && c.State == journal.Applied {
			c.Note = text
		}
	}
	a.tx = now
	return a.opt.Journal.Save(now)
}

// Changes returns the changes in force, with the values that the kernel took.
func (a *Applied) Changes() []tune.Change {
	var out []tune.Change
	for _, c := range a.tx.Changes {
		if c.State == journal.Applied {
			out = append(out, c.Change)
		}
	}
	return out
}

// Apply carries out the plan. It refuses where a value is no longer
// Change.Before. Whatever goes wrong, what was changed is undone before it
// returns; an error says if even that failed.
func Apply(ctx context.Context, plan tune.Plan, opt Options) (*Applied, error) {
	if err := permit.Change("apply"); err != nil {
		return nil, err
	}
	opt = opt.withDefaults()
	if err := cmp.Or(opt.check(), plan.Validate()); err != nil {
		return nil, err
	}
	tx, err := draft(plan, opt)
	if err != nil {
		return nil, err
	}
	unlock, err := opt.lock(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w; nothing was changed", err)
	}
	defer unlock()
	release, err := pin(tx, opt)
	if err != nil {
		return nil, fmt.Errorf("%w; nothing was changed", err)
	}
	defer release()
	if err := precheck(tx, opt); err != nil {
		return nil, fmt.Errorf("%w; nothing was changed", err)
	}
	tx.CreatedAt = opt.Clock.Now()
	if opt.Confirm > 0 {
		tx.Confirm = &journal.Confirm{
			BoottimeNS: int64(opt.Clock.Boottime() + opt.Confirm),
			DeadlineAt: tx.CreatedAt.Add(opt.Confirm),
		}
	}
	end, err := opt.Journal.Begin(tx)
	if err != nil {
		return nil, fmt.Errorf("%w; nothing was changed", err)
	}
	a := &Applied{opt: opt, tx: tx, end: end}
	if err := a.carryOut(ctx); err != nil {
		defer end()
		return nil, a.takeBack(err)
	}
	if !tx.Lifeline {
		end()
	}
	return a, nil
}

// draft is the transaction of a plan, with the files that persist it.
func draft(plan tune.Plan, opt Options) (*journal.Transaction, error) {
	view, err := opt.view()
	if err != nil {
		return nil, err
	}
	owner, err := journal.ReadProcess(opt.ProcRoot, os.Getpid())
	if err != nil {
		return nil, err
	}
	tx := &journal.Transaction{
		BootID: view.BootID, Origin: plan.Origin, Owner: owner,
		Netns:    journal.NamespaceInode(opt.ProcRoot, "net"),
		Lifeline: opt.Lifeline, Persist: opt.Persist,
	}
	if opt.ProcRoot == "/proc" {
		here, err := netns.IDOf(nil)
		if err != nil {
			return nil, err
		}
		tx.NetnsCookie = here.Cookie
	}
	changes := plan.Changes
	if opt.Persist {
		files, err := PlanPersist(plan.Changes, opt)
		if err != nil {
			return nil, err
		}
		changes = append(changes[:len(changes):len(changes)], files...)
	}
	for _, c := range changes {
		applier, ok := opt.Appliers[c.Kind]
		if !ok {
			return nil, fmt.Errorf("apply %s %s: this natkit cannot change things of that kind", c.Kind, c.Target)
		}
		tx.Changes = append(tx.Changes, journal.Change{Change: c, State: journal.Planned, Durable: applier.Durable()})
	}
	return tx, nil
}

// pin notes which network namespaces the changes name, and keeps these from ending until
// release: their numbers cannot become others' meanwhile.
func pin(tx *journal.Transaction, opt Options) (release func(), err error) {
	var pinned []*netns.Handle
	release = func() { netns.CloseAll(pinned) }
	if opt.ProcRoot != "/proc" {
		return release, nil
	}
	for i := range tx.Changes {
		c := &tx.Changes[i]
		if c.Netns() == 0 {
			continue
		}
		ns, err := netns.OfInode(c.Netns())
		if errors.Is(err, fs.ErrNotExist) { // the reader reports it
			continue
		}
		var id netns.ID
		if err == nil {
			pinned = append(pinned, ns)
			id, err = netns.IDOf(ns)
		}
		if err != nil {
			release()
			return nil, err
		}
		c.NetnsCookie = id.Cookie
	}
	return release, nil
}

// precheck finds out everything that would make a change fail, without changing, and
// what has to be put back beside its values.
func precheck(tx *journal.Transaction, opt Options) error {
	for _, c := range tx.Changes {
		applier := opt.Appliers[c.Kind]
		if err := expectBefore(applier, c.Change); err != nil {
			return err
		}
		if err := applier.Writable(c.Target); err != nil {
			return err
		}
	}
	return readAlong(tx, opt)
}

// ErrChangedSince: a value is not the one any more that the plan was made for.
var ErrChangedSince = errors.New("the host has changed since; plan again")

func expectBefore(applier Applier, c tune.Change) error {
	now, err := applier.Read(c.Target)
	if err != nil {
		return err
	}
	if !tune.SameValue(now, c.Before) {
		return fmt.Errorf("change %s: the value is %q, the plan was made for %q: %w", c.Target, now, c.Before, ErrChangedSince)
	}
	return nil
}

// carryOut starts the guard, if there is to be one, and makes the changes. The
// lock is held.
func (a *Applied) carryOut(ctx context.Context) error {
	if a.tx.Lifeline || a.tx.Confirm != nil || a.opt.Guarded {
		g, err := startGuard(ctx, a.opt, a.tx.ID)
		if err != nil {
			return err
		}
		a.guard, a.tx.Guard = g, g.process
		if err := a.opt.Journal.Save(a.tx); err != nil {
			return err
		}
	}
	due := func(c journal.Change) bool { return !c.Durable || a.tx.Confirm == nil }
	if err := writeChanges(ctx, a.tx, a.opt, due); err != nil {
		return err
	}
	a.tx.Complete = true
	if err := a.opt.Journal.Save(a.tx); err != nil {
		return err
	}
	switch {
	case a.tx.Lifeline:
		return nil
	case a.tx.Confirm == nil:
		a.guard.dismiss()
		a.guard = nil
		return nil
	}
	if err := a.guard.leave(); err != nil {
		return fmt.Errorf("start the guard's deadline: %w", err)
	}
	return nil
}

// writeChanges writes what is due of a transaction. The journal knows before
// each write that it may happen, and after it what came of it.
func writeChanges(ctx context.Context, tx *journal.Transaction, opt Options, due func(journal.Change) bool) error {
	for i := range tx.Changes {
		c := &tx.Changes[i]
		if c.State != journal.Planned || !due(*c) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("change %s: %w", c.Target, err)
		}
		if err := writeOne(c, opt.Appliers[c.Kind]); err != nil {
			// The guard must know too what is to be undone, should this process die
			// now. The undo follows in any case, and reports whether saving works.
			opt.Journal.Note(tx, i)
			return err
		}
		if err := opt.Journal.Note(tx, i); err != nil {
			return err
		}
	}
	return nil
}

func writeOne(c *journal.Change, applier Applier) error {
	var writeErr error
	if !tune.SameValue(c.Before, c.After) {
		writeErr = applier.Write(c.Target, c.After)
	}
	got, err := applier.Read(c.Target)
	switch {
	case writeErr != nil:
		// The kernel takes the numbers of a vector one after the other, up to the
		// one that it refuses (do_proc_dointvec).
		if err == nil && !tune.SameValue(got, c.Before) {
			c.After, c.State = got, journal.Applied
		}
		return writeErr
	case err != nil:
		return fmt.Errorf("verify: %w", err)
	case !applier.Honours(c.Target, c.After, got):
		err := fmt.Errorf("change %s: wrote %q, the kernel reads back %q", c.Target, c.After, got)
		c.After, c.State = got, journal.Applied
		return err
	case !tune.SameValue(got, c.After):
		c.Note = fmt.Sprintf("the kernel rounded %s to %s", c.After, got)
		c.After = got
	}
	c.State = journal.Applied
	return nil
}

// takeBack undoes a transaction that failed half-way. The lock is held.
func (a *Applied) takeBack(cause error) error {
	err := undoTransaction(a.tx, a.opt)
	if !a.tx.Finished() {
		return errors.Join(cause, fmt.Errorf("undo of %s failed too: %w; 'natkit tune undo %s' tries again", a.tx.ID, err, a.tx.ID))
	}
	a.guard.dismiss()
	cause = fmt.Errorf("%w; %s", cause, remains(a.tx))
	if err != nil {
		return errors.Join(cause, err)
	}
	return cause
}

// remains describes what a finished transaction has left behind.
func remains(tx *journal.Transaction) string {
	var left []string
	for _, c := range tx.Changes {
		if c.State == journal.Left {
			left = append(left, c.Target+" "+c.Note)
		}
	}
	if left == nil {
		return "what had been changed is as it was"
	}
	return "not taken back: " + strings.Join(left, "; ")
}

// Undo puts everything back that is still as natkit wrote it, and ends the
// guard. It works whatever has become of the context that Apply was given, and of
// the journal: ErrUnsaved says that the values are back and only the journal does
// not know. The returned transaction says what became of each change.
func (a *Applied) Undo() (*journal.Transaction, error) {
	own := *a.tx
	own.Changes = slices.Clone(a.tx.Changes)
	tx, err := undoOwn(&own, a.opt, nil)
	if tx != nil && tx.Finished() {
		a.guard.dismiss()
		a.end()
	}
	return tx, err
}

// Confirm makes the changes stay, writes the files of Persist, and ends the guard.
func (a *Applied) Confirm() error {
	if _, err := confirm(a.ID(), a.opt, a.tx.Is); err != nil {
		return err
	}
	a.guard.dismiss()
	return nil
}

// companions is what an Applier is as well where writing one value makes the kernel set
// others.
type companions interface {
	// Along are those others that would not be as they are now if the target were set
	// to before again.
	Along(target, before string) (map[string]string, error)
}

// readAlong notes what the kernel is about to set along with the changes.
func readAlong(tx *journal.Transaction, opt Options) (err error) {
	for i := range tx.Changes {
		c := &tx.Changes[i]
		applier, ok := opt.Appliers[c.Kind].(companions)
		if !ok || tune.SameValue(c.Before, c.After) {
			continue
		}
		if c.Along, err = applier.Along(c.Target, c.Before); err != nil {
			return err
		}
	}
	return nil
}

// leaveChosen removes from Along the values that were changed after the target was set:
// they are not to be restored.
func leaveChosen(applier Applier, c *journal.Change) error {
	for name := range c.Along {
		now, err := applier.Read(name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err == nil && !tune.SameValue(now, tune.SetAlong(name, c.After)) {
			delete(c.Along, name)
		}
	}
	return nil
}

// putBackAlong restores the values in Along that are what the kernel made of them when
// the target was restored. The others were changed since.
func putBackAlong(applier Applier, c *journal.Change) error {
	for _, name := range slices.Sorted(maps.Keys(c.Along)) {
		now, err := applier.Read(name)
		switch {
		case errors.Is(err, fs.ErrNotExist): // its interface is gone
			continue
		case err != nil:
			return err
		case tune.SameValue(now, c.Along[name]) || !tune.SameValue(now, tune.SetAlong(name, c.Before)):
			continue
		}
		if err := applier.Write(name, c.Along[name]); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("undo what the kernel set along with %s: %w", c.Target, err)
		}
	}
	return nil
}

func (s sysctls) Along(target, before string) (map[string]string, error) {
	var along map[string]string
	root := filepath.Join(s.procRoot, "sys")
	for _, pattern := range tune.Along(target) {
		paths, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return nil, err
		}
		for _, path := range paths {
			name, err := s.name(root, path)
			if err != nil { // an interface of a name that natkit does not write
				continue
			}
			value, err := s.Read(name)
			if errors.Is(err, fs.ErrNotExist) || err == nil && tune.SameValue(value, tune.SetAlong(name, before)) {
				continue
			}
			if err != nil {
				return nil, err
			}
			if along == nil {
				along = map[string]string{}
			}
			along[name] = value
		}
	}
	return along, nil
}

// name is that of the sysctl at a path.
func (s sysctls) name(root, path string) (string, error) {
	rel, err := filepath.Rel(root, path)
	if err != nil {
		return "", err
	}
	return tune.SysctlName(filepath.ToSlash(rel))
}
