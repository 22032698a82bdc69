package journal

import (
	"slices"
	"time"
)

// Status is what a transaction means at a moment, derived from its file, the
// boot, the clock and the processes that belong to it.
type Status string

const (
	// StatusApplying: its owner is writing it now.
	StatusApplying Status = "applying"
	// StatusInterrupted: its owner died while writing it.
	StatusInterrupted Status = "interrupted"
	// StatusHeld: a running owner holds it (a lab) and will undo it.
	StatusHeld Status = "held"
	// StatusOrphaned: its owner is dead and its guard did not undo it.
	StatusOrphaned Status = "orphaned"
	// StatusPending: waits for confirmation.
	StatusPending Status = "pending"
	// StatusOverdue: the deadline passed and its guard did not undo it.
	StatusOverdue Status = "overdue"
	// StatusApplied: in force, can be undone.
	StatusApplied Status = "applied"
	// StatusPersisted: of an earlier boot, its files are in force.
	StatusPersisted Status = "persisted"
	// StatusVoid: of an earlier boot; the reboot undid it.
	StatusVoid Status = "void"
	// StatusUndone: everything is as before.
	StatusUndone Status = "undone"
	// StatusLeft: undone but for values that are no longer natkit's.
	StatusLeft Status = "left"
)

// View is the moment at which statuses are told.
type View struct {
	ProcRoot string
	BootID   string
	Clock    Clock
}

// NewView reads the boot id.
func NewView(procRoot string, clock Clock) (View, error) {
	id, err := ReadBootID(procRoot)
	return View{ProcRoot: procRoot, BootID: id, Clock: clock}, err
}

// Status tells what the transaction means now.
func (v View) Status(t *Transaction) Status {
	switch {
	case t.Finished():
		return finishedStatus(t)
	case t.BootID != v.BootID:
		return rebootedStatus(t)
	case !t.Complete && t.ownerRuns(v.ProcRoot):
		return StatusApplying
	case !t.Complete:
		return StatusInterrupted
	case t.Lifeline && t.ownerRuns(v.ProcRoot):
		return StatusHeld
	case t.Lifeline:
		return StatusOrphaned
	case t.Unconfirmed() && v.Remaining(t) > 0:
		return StatusPending
	case t.Unconfirmed():
		return StatusOverdue
	}
	return StatusApplied
}

// ownerRuns is told by the owner's lock; of an older natkit, which held none, by its
// number.
func (t *Transaction) ownerRuns(procRoot string) bool {
	if t.OwnerLock {
		return t.OwnerRuns
	}
	return t.Owner.Alive(procRoot)
}

func finishedStatus(t *Transaction) Status {
	for _, c := range t.Changes {
		if c.State == Left {
			return StatusLeft
		}
	}
	return StatusUndone
}

// isVoid reports whether a reboot undid all of the transaction.
func (t *Transaction) isVoid(bootID string) bool {
	inFile := slices.ContainsFunc(t.Changes, func(c Change) bool { return c.Durable && c.Open() })
	return t.BootID != bootID && !inFile
}

func rebootedStatus(t *Transaction) Status {
	for _, c := range t.Changes {
		// Files of a transaction that was never confirmed or completed are not
		// meant to stay.
		if c.Durable && c.Open() && t.Complete && !t.Unconfirmed() && !t.Lifeline {
			return StatusPersisted
		}
	}
	return StatusVoid
}

// Abandoned is true where nobody will keep a promise to undo: that is what
// `natkit lab clean` looks for.
func (s Status) Abandoned() bool {
	switch s {
	case StatusInterrupted, StatusOrphaned, StatusOverdue, StatusVoid:
		return true
	}
	return false
}

// Remaining is the time until an unconfirmed transaction is undone; 0 where it
// is due or needs no confirmation.
func (v View) Remaining(t *Transaction) time.Duration {
	if !t.Unconfirmed() || t.BootID != v.BootID {
		return 0
	}
	return max(0, time.Duration(t.Confirm.BoottimeNS)-v.Clock.Boottime())
}
