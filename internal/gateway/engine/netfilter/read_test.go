package netfilter

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/nftables/expr"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/ruleset/read"
	"github.com/natkit/natkit/internal/testutil"
)

// foreign is the comment of a rule that somebody else adds to natkit's table.
const foreign = "somebody else's"

// intrude adds a rule to natkit's table, where there is one.
func intrude(ns *netns.Handle) error {
	m, err := rule{chain: "prerouting", exprs: []expression{&expr.Counter{}}, comment: foreign}.message()
	if err != nil {
		return err
	}
	return transaction(ns, []message{m}, 0)
}

func readBack(t *testing.T, ns *netns.Handle) *State {
	t.Helper()
	s, err := Read(ns)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *State) intruded() bool {
	return slices.ContainsFunc(s.Counts, func(c Counted) bool { return c.Comment == foreign })
}

// TestSealOfWhatWasWritten: a rule that somebody adds between the transaction and its
// seal is not sealed as natkit's.
func TestSealOfWhatWasWritten(t *testing.T) {
	testutil.NeedRoot(t)
	for name, test := range map[string]struct {
		often          int // how often somebody comes between
		writes         int
		sealed, theirs bool
	}{
		"nobody":   {0, 1, true, false},
		"once":     {1, 2, true, false},
		"each one": {attempts, attempts, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			ns, writes := testutil.Namespace(t), 0
			err := sealed(ns, func() error {
				writes++
				if err := apply(ns, killedPlan(0)); err != nil || writes > test.often {
					return err
				}
				return intrude(ns)
			})
			if errors.Is(err, ErrUnsealed) == test.sealed || err != nil && test.sealed {
				t.Errorf("error: %v", err)
			}
			if s := readBack(t, ns); writes != test.writes || s.Sealed != test.sealed || s.Intact != test.sealed || s.intruded() != test.theirs {
				t.Errorf("written %d times; sealed %v, intact %v, changed: %q", writes, s.Sealed, s.Intact, s.Changes)
			}
		})
	}
}

// TestSealTellsChanges: what somebody changes after the table was read, and before its
// seal is there, is told as a change.
func TestSealTellsChanges(t *testing.T) {
	testutil.NeedRoot(t)
	ns := testutil.Namespace(t)
	if err := apply(ns, killedPlan(0)); err != nil {
		t.Fatal(err)
	}
	written, err := read.TableNamed(ns, Family, Table)
	if err != nil {
		t.Fatal(err)
	}
	messages, err := sealing(written)
	if err != nil {
		t.Fatal(err)
	}
	if err := intrude(ns); err != nil {
		t.Fatal(err)
	}
	if err := attach(ns, messages, written); err != nil {
		t.Fatal(err)
	}
	want := []string{"chain prerouting: 2 rules instead of 1"}
	if s := readBack(t, ns); s.Intact || !s.Sealed || !slices.Equal(s.Changes, want) {
		t.Errorf("changes: %q, want %q", s.Changes, want)
	}
	if err := Apply(ns, killedPlan(1)); err != nil {
		t.Fatal(err)
	}
	if err := attach(ns, messages, written); !errors.Is(err, errInterleaved) {
		t.Errorf("the seal of a table that is gone: %v", err)
	}
	if s := readBack(t, ns); !s.Intact {
		t.Errorf("the table after it: %q", s.Changes)
	}
}

// TestSealWhileOthersWrite: whoever writes at the same time, rules that are told to be
// natkit's are.
func TestSealWhileOthersWrite(t *testing.T) {
	testutil.NeedRoot(t)
	ns := testutil.Namespace(t)
	done := make(chan struct{})
	var others sync.WaitGroup
	var reading sync.Mutex
	step := testutil.Patience(1300 * time.Microsecond)
	others.Go(func() {
		for pause := time.Duration(0); ; pause = (pause + step) % (23 * step) {
			select {
			case <-done:
				return
			case <-time.After(pause):
				reading.Lock()
				_ = intrude(ns) // where the table is not there yet it fails
				reading.Unlock()
			}
		}
	})
	defer others.Wait()
	defer close(done)
	const rounds = 30
	alone := func() *State {
		reading.Lock()
		defer reading.Unlock()
		return readBack(t, ns)
	}
	unsealed, changed := 0, 0
	for i := range rounds {
		if err := Apply(ns, killedPlan(i%2)); err != nil && !errors.Is(err, ErrUnsealed) {
			t.Fatal(err)
		}
		switch s := alone(); {
		case !s.Sealed:
			unsealed++
		case !s.Intact:
			changed++
		case s.intruded():
			t.Fatalf("round %d: a rule that is not natkit's is told to be", i)
		}
	}
	t.Logf("of %d, %d were changed when they were read, %d have no seal", rounds, changed, unsealed)
}

// TestReadAgainWhereRulesChanged: what was just written is not read again, as 10,000 rules
// take their time, unless somebody changed rules since, in that namespace.
func TestReadAgainWhereRulesChanged(t *testing.T) {
	testutil.NeedRoot(t)
	ns, other := testutil.Namespace(t), testutil.Namespace(t)
	if err := Apply(ns, killedPlan(0)); err != nil {
		t.Fatal(err)
	}
	testutil.NeedFeature(t, testutil.NetnsCookie)
	digest := gateway.Digest(killedPlan(0))
	if s := remembered(ns); s == nil || !s.Present || !s.Intact || s.Digest != digest || s.Generation != readBack(t, ns).Generation {
		t.Errorf("after an apply: %+v", s)
	}
	if s, err := (Engine{}).Read(other, nil); err != nil || s.Present {
		t.Errorf("another namespace: %+v, %v", s, err)
	}
	if err := intrude(ns); err != nil {
		t.Fatal(err)
	}
	if s, err := (Engine{}).Read(ns, nil); err != nil || s.Intact || len(s.Changes) != 1 || s.Digest != digest {
		t.Errorf("after a change by hand: %+v, %v", s, err)
	}
	if err := Remove(ns); err != nil {
		t.Fatal(err)
	}
	if s, err := (Engine{}).Read(ns, nil); err != nil || s.Present {
		t.Errorf("removed: %+v, %v", s, err)
	}
}
