package apply

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/journal"
)

// TestKilledWithItsContainer kills process 1 of a container that has applied something,
// and with it the guard. From outside, neither can be looked up by its number.
func TestKilledWithItsContainer(t *testing.T) {
	testutil.NeedRoot(t)
	ns, opt := elsewhere(t)
	value := func() (v string) {
		t.Helper()
		if err := ns.Do(func() (err error) { v, err = ReadSysctl("/proc", someValue); return err }); err != nil {
			t.Fatal(err)
		}
		return v
	}
	before := value()
	var helper *helper
	err := ns.Do(func() error {
		helper = startHelper(t, self, helperBrief{JournalDir: opt.Journal.Dir(), ProcRoot: "/proc", Root: opt.Root, Lifeline: true, Contained: true,
			Plan: plan(sysctl(someValue, before, plus(t, before, 7)))})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	id := helper.applied(t)
	if owner := mustLoad(t, opt, id).Owner; owner.PID != 1 {
		t.Errorf("owner %+v", owner)
	}
	if _, err := Undo(id, opt); err == nil || !strings.Contains(err.Error(), "--force") {
		t.Errorf("while it runs: %v", err)
	}
	if undone, err := Clean(opt); len(undone) != 0 || err != nil {
		t.Errorf("while it runs: %v, %v", undone, err)
	}
	helper.kill(t)
	// The lock goes with the last of the process's threads. Its guard, which ends after it,
	// may undo the transaction first.
	within(t, testutil.Patience(5*time.Second), "its end", func() bool {
		if _, err := Clean(opt); err != nil {
			t.Fatal(err)
		}
		return states(mustLoad(t, opt, id)) == "undone"
	})
	if value() != before {
		t.Errorf("value %s", value())
	}
}

func TestForceDoesNotWaitForWhoRuns(t *testing.T) {
	h := newFakeHost(t)
	opt := h.options(t)
	opt.Lifeline = true
	a := mustApply(t, plan(sysctl(someValue, "100", "1000")), opt)
	guard := guardOf(t, opt, a.ID())
	if _, err := Undo(a.ID(), opt); err == nil || !strings.Contains(err.Error(), "--force") {
		t.Errorf("%v", err)
	}
	h.want(t, someValue, "1000")
	forced := opt
	forced.Force = true
	if tx, err := Undo(a.ID(), forced); err != nil || states(tx) != "undone" {
		t.Errorf("%+v, %v", tx, err)
	}
	h.want(t, someValue, "100")
	if _, err := Undo(a.ID(), forced); err == nil || !strings.Contains(err.Error(), "undone before") {
		t.Errorf("%v", err)
	}
	// Its owner goes on, and finds nothing left to do.
	h.set(t, someValue, "1000")
	if _, err := a.Undo(); err != nil {
		t.Error(err)
	}
	h.want(t, someValue, "1000")
	waitGuard(t, guard)
}

// What failed to be undone can be tried again at once, not only when its owner has ended.
func TestFailedUndoCanBeTriedAgainByAnyone(t *testing.T) {
	s := &scripted{refuse: map[string]error{"3": fmt.Errorf("no"), "1": fmt.Errorf("stuck")}}
	opt := withScripted(t, s)
	if _, err := Apply(t.Context(), scriptedPlan(), opt); err == nil {
		t.Fatal("no error")
	}
	s.refuse = nil
	if tx, err := Undo("t0001", opt); err != nil || states(tx) != "undone undone" || s.values["a"] != "1" {
		t.Errorf("%+v, %v", tx, err)
	}
}

// TestManyChanges: thousands of values are applied, read back and undone, beside another
// transaction as large.
func TestManyChanges(t *testing.T) {
	s := &scripted{}
	opt := withScripted(t, s)
	wanted := func(before, after string) (p tune.Plan) {
		p.Origin = "test"
		for i := range 6000 {
			target := fmt.Sprintf("value %d", i)
			s.values[target] = before
			p.Changes = append(p.Changes, tune.Change{Kind: fakeKind, Target: target, Before: before, After: after})
		}
		return p
	}
	first := mustApply(t, wanted("1", "2"), opt)
	second := mustApply(t, wanted("2", "3"), opt)
	if all, damaged, err := opt.Journal.List(); len(all) != 2 || len(damaged) != 0 || err != nil {
		t.Fatalf("%d, %v, %v", len(all), damaged, err)
	}
	for _, a := range []*Applied{first, second} { // the older first, which is handed over
		tx, err := Undo(a.ID(), opt)
		if err != nil || slices.ContainsFunc(tx.Changes, func(c journal.Change) bool { return c.State != journal.Undone }) {
			t.Errorf("%v", err)
		}
	}
	for target, value := range s.values {
		if value != "1" {
			t.Fatalf("%s is %s", target, value)
		}
	}
}

// What a user who is not root has written changes the host's own network namespace only,
// and takes over nothing elsewhere.
func TestForeignStaysInTheHostsNamespace(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedFeature(t, testutil.HostNetns)
	const forward = "net.ipv4.ip_forward"
	ns, opt := elsewhere(t)
	var ids []string
	err := ns.Do(func() error {
		if err := (sysctls{"/proc"}).Write(forward, "0"); err != nil {
			return err
		}
		for _, before := range []string{"0", "1"} {
			ids = append(ids, mustApply(t, plan(sysctl(forward, before, "1")), opt).ID())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(filepath.Join(opt.Journal.Dir(), ids[1]+".json"), 12345, 12345); err != nil {
		t.Fatal(err)
	}
	if _, err := Undo(ids[1], opt); err == nil || !strings.Contains(err.Error(), "uid 12345") {
		t.Errorf("undo of another's: %v", err)
	}
	if tx := mustLoad(t, opt, ids[1]); tx.Finished() {
		t.Errorf("undone: %+v", tx)
	}
	if _, err := Undo(ids[0], opt); err != nil {
		t.Fatal(err)
	}
	err = ns.Do(func() error {
		if now, err := ReadSysctl("/proc", forward); now != "0" || err != nil {
			t.Errorf("%s is %s, %v", forward, now, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// elsewhere returns a network namespace that is not the host's, and options with a journal
// of their own on the real /proc.
func elsewhere(t *testing.T) (*netns.Handle, Options) {
	t.Helper()
	ns, err := netns.New("elsewhere")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	j, err := journal.At(filepath.Join(t.TempDir(), "journal"))
	if err != nil {
		t.Fatal(err)
	}
	return ns, Options{Journal: j, Root: t.TempDir()}
}
