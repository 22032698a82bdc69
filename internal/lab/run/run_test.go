package run

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/lab/build"
	"github.com/natkit/natkit/internal/load"
	loadrun "github.com/natkit/natkit/internal/load/run"
	"github.com/natkit/natkit/internal/ruleset/edit"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/testutil"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/apply"
	"github.com/natkit/natkit/internal/tune/journal"
)

// TestMain lets the lab start this test program as its first process, and as
// `natkit bench serve`.
func init() {
	apply.Init(func(apply.Options) map[tune.Kind]apply.Applier {
		return map[tune.Kind]apply.Applier{tune.NATRule: edit.Applier{}}
	})
}

func TestMain(m *testing.M) {
	if build.IsInit() {
		os.Exit(build.InitMain())
	}
	if len(os.Args) == 7 && os.Args[1] == "bench" { // serve --tcp ADDR:FIRST-LAST --limit N
		os.Exit(serveHeld(os.Args[4], os.Args[6]))
	}
	if len(os.Args) == 5 && os.Args[1] == "bench" {
		listen := netip.MustParseAddrPort(os.Args[4])
		if os.Args[3] == "--udp" {
			if _, err := loadrun.ServeUDP(context.Background(), loadrun.ServeUDPConfig{Listen: listen}); err != nil {
				os.Exit(1)
			}
			os.Exit(0)
		}
		if err := loadrun.Serve(context.Background(), loadrun.ServeConfig{Listen: listen}); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// small is the scenario with so little load that a run takes seconds.
func small(t *testing.T, o lab.Overrides) *lab.Scenario {
	t.Helper()
	sc, err := lab.Find("table-full")
	if err != nil {
		t.Fatal(err)
	}
	o.Concurrency, o.Requests, o.Timeout = 100, 2000, testutil.Patience(time.Second)
	if sc, err = sc.With(o); err != nil {
		t.Fatal(err)
	}
	patient := sc.Load // where all is to be answered, however busy the machine is
	patient.Timeout = testutil.Patience(time.Minute)
	for i := range sc.Stages {
		st := &sc.Stages[i]
		if st.Fill != nil {
			st.Fill.Free = 100 // few, so that a slow load takes them, too, before it ends
		}
		if st.Doctor == nil {
			st.Loads = []lab.Load{patient}
			continue
		}
		st.Limit = testutil.Patience(4 * time.Second)
		st.Doctor.For = testutil.Patience(time.Second)
	}
	return sc
}

func options(t *testing.T) Options {
	t.Helper()
	j, err := journal.At(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return Options{Dir: t.TempDir(), Server: build.Nginx, Journal: j, Version: "test"}
}

// hostUnchanged fails the test when the host's limit is another one at its end,
// or a process of a lab is left.
func hostUnchanged(t *testing.T) {
	t.Helper()
	testutil.NeedRoot(t)
	testutil.LockHost(t)
	before, err := build.ConntrackMax()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if after, err := build.ConntrackMax(); err != nil || after != before {
			t.Errorf("%s was %d and is %d (%v)", snapshot.ConntrackMax, before, after, err)
		}
		for deadline := time.Now().Add(testutil.Patience(time.Minute)); len(children(t)) > 0; {
			if time.Now().After(deadline) {
				t.Errorf("processes are left: %v", children(t))
				break
			}
			time.Sleep(5 * time.Millisecond)
		}
	})
}

// globProc are the folders of all processes.
func globProc(t *testing.T) []string {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	return dirs
}

// children are the processes that this one started and that still run.
func children(t *testing.T) (names []string) {
	t.Helper()
	for _, dir := range globProc(t) {
		text, err := os.ReadFile(dir + "/stat")
		if err != nil {
			continue // gone since
		}
		// pid (comm) state ppid …; comm may hold anything.
		before, after, _ := strings.Cut(string(text), ") ")
		var state string
		var parent int
		fmt.Sscan(after, &state, &parent)
		if parent == os.Getpid() && state != "Z" {
			names = append(names, before+")")
		}
	}
	return names
}

func TestTableFull(t *testing.T) {
	hostUnchanged(t)
	testutil.NeedProgram(t, "nginx")
	tests := map[string]struct {
		overrides lab.Overrides
		change    func(*Options)
	}{
		"nginx, filled table": {change: func(*Options) {}},
		"behind a bridge":     {overrides: lab.Overrides{Bridge: true}, change: func(*Options) {}},
		"a lowered maximum":   {change: func(o *Options) { o.LowerMax = 1000 }},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			o := options(t)
			tc.change(&o)
			sc := small(t, tc.overrides)
			r, err := Run(context.Background(), sc, o)
			if err != nil {
				t.Fatal(err)
			}
			if !r.ExpectationMet {
				t.Fatalf("expectation not met: %+v\nfindings: %+v", r.Verdict, r.Findings)
			}
			checkStages(t, r)
			checkTraces(t, r, sc)
			checkFix(t, r)
		})
	}
}

func checkStages(t *testing.T, r *lab.Report) {
	t.Helper()
	byName := map[string]lab.StageReport{}
	for _, s := range r.Stages {
		byName[s.Name] = s
	}
	base, nat, fault := byName["baseline"], byName["nat"], byName["fault"]
	if base.Completed != 2000 || base.Failed != 0 || nat.Completed != 2000 || nat.Failed != 0 {
		t.Errorf("healthy stages: %d and %d completed, %d and %d failed", base.Completed, nat.Completed, base.Failed, nat.Failed)
	}
	if base.TableEntries != 0 {
		t.Errorf("baseline: %d entries are tracked; it must be without tracking", base.TableEntries)
	}
	if nat.TableEntries == 0 {
		t.Error("nat: no entry is tracked")
	}
	if fault.Failed == 0 || fault.Counters["drop"] == 0 || fault.FirstFailureSeconds < 0 {
		t.Errorf("fault: %d failed, drop %d, first failure at %v s", fault.Failed, fault.Counters["drop"], fault.FirstFailureSeconds)
	}
	// Once it is connected, a request can be late on a busy machine.
	late := func(f load.Failure) bool {
		return f.Reason == "timed out" && (f.Phase == load.Connect || f.Phase == load.Wait)
	}
	for _, f := range fault.Failures {
		if !late(f) {
			t.Errorf("fault: unexpected failure %+v", f)
		}
	}
}

func checkFix(t *testing.T, r *lab.Report) {
	t.Helper()
	if r.Fix == nil || len(r.Fix.Changes) == 0 || r.Fix.Finding != "ct-table-full" || r.Fix.Remedy == "" {
		t.Fatalf("fix: %+v", r.Fix)
	}
	if r.Fix.SeenEntries > weighable && (r.Fix.SeenBytesPerEntry < 200 || r.Fix.SeenBytesPerEntry > 800) {
		t.Errorf("fix: an entry is seen to take %.0f bytes, predicted %.0f", r.Fix.SeenBytesPerEntry, r.Fix.PredictedBytesPerEntry)
	}
}

func TestBuiltinServer(t *testing.T) {
	hostUnchanged(t)
	o := options(t)
	o.Server = build.Builtin
	sc := small(t, lab.Overrides{})
	sc.Stages = sc.Stages[:2]
	sc.Expect = lab.Expect{Complete: "nat"}
	r, err := Run(context.Background(), sc, o)
	if err != nil {
		t.Fatal(err)
	}
	if !r.ExpectationMet || r.Server != "natkit builtin" {
		t.Errorf("server %q: %+v", r.Server, r.Verdict)
	}
}

func TestInterrupt(t *testing.T) {
	hostUnchanged(t)
	sc := small(t, lab.Overrides{})
	ctx, cancel := context.WithCancel(context.Background())
	o := options(t)
	o.LowerMax = 1000
	// As soon as the maximum is lowered.
	o.Progress = func(string) {
		if now, err := build.ConntrackMax(); err == nil && now == o.LowerMax {
			cancel()
		}
	}
	if _, err := Run(ctx, sc, o); !errors.Is(err, context.Canceled) {
		t.Errorf("an interrupted run ends with %v", err)
	}
}

// A change of the limit by another process is detected, and is left in place.
func TestDisturbed(t *testing.T) {
	hostUnchanged(t)
	before, err := build.ConntrackMax()
	if err != nil {
		t.Fatal(err)
	}
	o := options(t)
	j, err := journal.At(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var other *apply.Applied
	o.Progress = func(what string) {
		if other != nil || what != "preparing nat" {
			return
		}
		plan := tune.Plan{Origin: "test", Changes: []tune.Change{{
			Kind: tune.Sysctl, Target: snapshot.ConntrackMax, Before: fmt.Sprint(before), After: fmt.Sprint(before + 1),
		}}}
		if other, err = apply.Apply(context.Background(), plan, apply.Options{Journal: j, Lifeline: true}); err != nil {
			t.Error(err)
		}
	}
	_, err = Run(context.Background(), small(t, lab.Overrides{}), o)
	if err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("a disturbed run ends with %v", err)
	}
	if other != nil {
		if _, err := other.Undo(); err != nil {
			t.Error(err)
		}
	}
}

func TestTwoAtOnce(t *testing.T) {
	hostUnchanged(t)
	o := options(t)
	lock, err := build.Lock(o.Dir)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if _, err := Run(context.Background(), small(t, lab.Overrides{}), o); err == nil {
		t.Error("a second lab ran beside the first")
	}
}
