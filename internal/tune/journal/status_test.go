package journal

import (
	"os"
	"testing"
	"time"
)

type fixedClock time.Duration

func (c fixedClock) Now() time.Time          { return time.Unix(0, int64(c)) }
func (c fixedClock) Boottime() time.Duration { return time.Duration(c) }

func TestStatus(t *testing.T) {
	self, err := ReadProcess("/proc", os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	reused := self
	reused.StartTicks--
	elsewhere := reused
	elsewhere.Namespace++

	cases := []struct {
		name string
		at   time.Duration
		edit func(*Transaction)
		want Status
	}{
		{"before the deadline", 4 * time.Second, func(*Transaction) {}, StatusPending},
		{"at the deadline", 5 * time.Second, func(*Transaction) {}, StatusOverdue},
		{"confirmed", 9 * time.Second, func(x *Transaction) { x.Confirm.Confirmed = true }, StatusApplied},
		{"no deadline", 9 * time.Second, func(x *Transaction) { x.Confirm = nil }, StatusApplied},
		{"being written", 0, func(x *Transaction) { x.Complete, x.Owner = false, self }, StatusApplying},
		{"writer died", 0, func(x *Transaction) { x.Complete, x.Owner = false, reused }, StatusInterrupted},
		{"held", 0, func(x *Transaction) { x.Confirm, x.Lifeline, x.Owner = nil, true, self }, StatusHeld},
		{"pid was reused", 0, func(x *Transaction) { x.Confirm, x.Lifeline, x.Owner = nil, true, reused }, StatusOrphaned},
		{"owner in another pid namespace", 0, func(x *Transaction) { x.Confirm, x.Lifeline, x.Owner = nil, true, elsewhere }, StatusHeld},
		{"lock is held from another pid namespace", 0, func(x *Transaction) { x.Complete, x.Owner, x.OwnerLock, x.OwnerRuns = false, elsewhere, true, true }, StatusApplying},
		{"lock ended in another pid namespace", 0, func(x *Transaction) { x.Complete, x.Owner, x.OwnerLock = false, elsewhere, true }, StatusInterrupted},
		{"lock ended, its number is another's", 0, func(x *Transaction) { x.Confirm, x.Lifeline, x.Owner, x.OwnerLock = nil, true, self, true }, StatusOrphaned},
		{"rebooted unconfirmed", 0, func(x *Transaction) { x.BootID = "b" }, StatusVoid},
		{"rebooted with files", 0, func(x *Transaction) { x.BootID, x.Confirm.Confirmed = "b", true }, StatusPersisted},
		{"rebooted without files", 0, func(x *Transaction) { x.BootID, x.Confirm, x.Changes = "b", nil, x.Changes[:1] }, StatusVoid},
		{"undone", 9 * time.Second, func(x *Transaction) { x.Changes[0].State, x.Changes[1].State = Undone, Undone }, StatusUndone},
		{"left", 9 * time.Second, func(x *Transaction) { x.Changes[0].State, x.Changes[1].State = Left, Undone }, StatusLeft},
		{"undone, other boot", 0, func(x *Transaction) { x.BootID, x.Changes[0].State, x.Changes[1].State = "b", Undone, Undone }, StatusUndone},
	}
	for _, c := range cases {
		tx := sample()
		c.edit(tx)
		view := View{ProcRoot: "/proc", BootID: "boot-a", Clock: fixedClock(c.at)}
		if got := view.Status(tx); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
	view := View{BootID: "boot-a", Clock: fixedClock(2 * time.Second)}
	if got := view.Remaining(sample()); got != 3*time.Second {
		t.Errorf("remaining %s, want 3s", got)
	}
}
