package apply

import (
	"path/filepath"
	"testing"

	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/journal"
)

// TestHandOverThatCannotBeSaved: each change is as it was before, planned or applied.
func TestHandOverThatCannotBeSaved(t *testing.T) {
	j, err := journal.At(filepath.Join(t.TempDir(), "none", "journal"))
	if err != nil {
		t.Fatal(err)
	}
	tx, in := &journal.Transaction{ID: "t0001"}, &journal.Transaction{ID: "t0002"}
	u := &undoing{tx: tx, opt: Options{Journal: j}, later: map[string][]laterChange{},
		heirs: map[string]*journal.Transaction{}, handed: map[*journal.Change]journal.State{}}
	states := []journal.State{journal.Planned, journal.Applied}
	for i, state := range states {
		c := journal.Change{Change: tune.Change{Kind: tune.Sysctl, Target: []string{"net.ipv4.a", "net.ipv4.b"}[i], Before: "1", After: "2"}, State: state}
		next := c
		next.Before, next.After = "2", "3"
		tx.Changes, in.Changes = append(tx.Changes, c), append(in.Changes, next)
	}
	for i := range tx.Changes {
		c := &tx.Changes[i]
		u.later[c.Key()] = []laterChange{{&in.Changes[i], in}}
		if !u.handOver(c, nil) || c.State != journal.Undone {
			t.Fatalf("%+v is not handed over", c)
		}
	}
	if err := u.bequeath(); err == nil {
		t.Fatal("it was saved")
	}
	for i, state := range states {
		if c := tx.Changes[i]; c.State != state || c.Note != "" {
			t.Errorf("%s: %s, %q; want %s", c.Target, c.State, c.Note, state)
		}
	}
}

// What a lab has set for a while, and a user wants to stay, stays when the lab
// ends, and goes back all the way with the user's own undo.
func TestAValueThatIsHeldForAWhileCanBeKept(t *testing.T) {
	for _, labFirst := range []bool{true, false} {
		h := newFakeHost(t)
		opt := h.options(t)
		opt.Lifeline = true
		lab := mustApply(t, plan(sysctl(someValue, "100", "1000")), opt)
		opt.Lifeline = false
		holder, err := Temporary(someValue, "1000", opt)
		if err != nil || holder == nil || holder.ID != lab.ID() {
			t.Fatalf("%+v, %v", holder, err)
		}
		kept := mustApply(t, plan(sysctl(someValue, "1000", "1000")), opt)
		for name, value := range map[string]string{someValue: "1000", otherValue: "200"} {
			if tx, err := Temporary(name, value, opt); tx != nil || err != nil {
				t.Errorf("%s: %+v, %v", name, tx, err)
			}
		}
		first, second := lab, kept
		if !labFirst {
			first, second = kept, lab
		}
		wantUndone := func(a *Applied) {
			t.Helper()
			if tx, err := a.Undo(); err != nil || states(tx) != string(journal.Undone) {
				t.Errorf("%+v, %v", tx, err)
			}
		}
		wantUndone(first)
		h.want(t, someValue, "1000")
		wantUndone(second)
		h.want(t, someValue, "100")
	}
}

// The change of a later transaction was reverted by hand: its value is no longer wanted.
func TestNotHandedOverToWhoWantsAnotherValue(t *testing.T) {
	h := newFakeHost(t)
	opt := h.options(t)
	first := mustApply(t, plan(sysctl(someValue, "100", "1000")), opt)
	mustApply(t, plan(sysctl(someValue, "1000", "2000")), opt)
	h.set(t, someValue, "1000")
	if tx, err := first.Undo(); err != nil || states(tx) != "undone" {
		t.Errorf("%+v, %v", tx, err)
	}
	h.want(t, someValue, "100")
}

// The value of the first transaction was reverted by hand, and a later one wrote it again:
// it belongs to the later one, and the value that the first one found to none.
func TestWrittenAgainByALaterOne(t *testing.T) {
	h := newFakeHost(t)
	opt := h.options(t)
	first := mustApply(t, plan(sysctl(someValue, "100", "1000")), opt)
	h.set(t, someValue, "300")
	second := mustApply(t, plan(sysctl(someValue, "300", "1000")), opt)
	if tx, err := first.Undo(); err != nil || states(tx) != "undone" {
		t.Errorf("%+v, %v", tx, err)
	}
	h.want(t, someValue, "1000")
	if tx, err := second.Undo(); err != nil || states(tx) != "undone" {
		t.Errorf("%+v, %v", tx, err)
	}
	h.want(t, someValue, "300")
}
