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
