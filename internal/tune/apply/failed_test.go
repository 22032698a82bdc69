package apply

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/journal"
)

// The kernel completes, reorders or half takes what it is given: an apply that
// fails for that leaves the value as it was.
func TestWhatTheKernelMadeOfItIsTakenBack(t *testing.T) {
	testutil.NeedRoot(t)
	ns, err := netns.New("tune-failed")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	for _, c := range []struct{ name, value string }{
		{"net.ipv4.tcp_rmem", "8192"},
		{"net.ipv4.tcp_rmem", "8192 x 6291456"},
		{"net.ipv4.ip_local_port_range", "40000"},
		{"net.ipv4.ip_local_reserved_ports", "8080,9000-9002,9001"},
	} {
		t.Run(c.name+"="+c.value, func(t *testing.T) {
			j, err := journal.At(filepath.Join(t.TempDir(), "journal"))
			if err != nil {
				t.Fatal(err)
			}
			err = ns.Do(func() error {
				before := realValue(t, c.name)
				_, err := Apply(t.Context(), plan(sysctl(c.name, before, c.value)), Options{Journal: j})
				if err == nil || !strings.Contains(err.Error(), "is as it was") {
					t.Errorf("%v", err)
				}
				if now := realValue(t, c.name); now != before {
					t.Errorf("was %q, is %q", before, now)
				}
				tx, err := j.Load("t0001")
				if err == nil && states(tx) != "undone" {
					t.Errorf("journal: %s", states(tx))
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

// Killed after the write, before the value was read back: the journal knows only
// what was asked.
func TestKilledBeforeReadingBack(t *testing.T) {
	h := newFakeHost(t)
	opt := h.options(t).withDefaults()
	h.set(t, someValue, "4096 131072 6291456")
	a := mustApply(t, plan(sysctl(someValue, "4096 131072 6291456", "8192 131072 6291456")), opt)
	tx := mustLoad(t, opt, a.ID())
	tx.Complete, tx.Changes[0].State, tx.Changes[0].After = false, journal.Planned, "8192"
	tx.Owner = journal.Process{PID: 1 << 30}
	if err := opt.Journal.Save(tx); err != nil {
		t.Fatal(err)
	}
	if done, err := Clean(opt); err != nil || len(done) != 1 || states(done[0]) != "undone" {
		t.Errorf("%+v, %v", done, err)
	}
	h.want(t, someValue, "4096 131072 6291456")
}

// A value changed between the failure and the undo is not reported as restored.
func TestFailureNamesWhatIsNotTakenBack(t *testing.T) {
	s := &scripted{}
	s.change = func(v string) string {
		if v == "3" {
			s.values["a"] = "9"
		}
		return v
	}
	s.refuse = map[string]error{}
	opt := withScripted(t, s)
	p := scriptedPlan()
	p.Changes = append(p.Changes, tune.Change{Kind: fakeKind, Target: "c", Before: "1", After: "4"})
	s.values["c"], s.refuse["4"] = "1", errors.New("no")
	_, err := Apply(t.Context(), p, opt)
	if err == nil || strings.Contains(err.Error(), "as it was") || !strings.Contains(err.Error(), `not taken back: a is "9"`) {
		t.Errorf("%v", err)
	}
}
