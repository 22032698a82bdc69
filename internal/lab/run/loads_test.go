package run

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/lab/build"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/testutil"
	"github.com/natkit/natkit/internal/tune/apply"
)

func scenario(t *testing.T, file string) *lab.Scenario {
	t.Helper()
	text, err := os.ReadFile("testdata/" + file)
	if err != nil {
		t.Fatal(err)
	}
	sc, err := lab.Parse(file, text)
	if err != nil {
		t.Fatal(err)
	}
	return sc
}

// only is the scenario with one of its stages.
func only(t *testing.T, sc *lab.Scenario, stage string) *lab.Scenario {
	t.Helper()
	st, ok := sc.Stage(stage)
	if !ok {
		t.Fatalf("no stage %s", stage)
	}
	c := *sc
	c.Stages = []lab.Stage{*st}
	return &c
}

func TestEachKindOfLoad(t *testing.T) {
	hostUnchanged(t)
	testutil.NeedFeature(t, testutil.BTF)
	o := options(t)
	o.Server = build.Builtin
	r, err := Run(t.Context(), scenario(t, "loads.yaml"), o)
	if err != nil {
		t.Fatal(err)
	}
	if !r.ExpectationMet {
		t.Errorf("%+v", r.Verdict)
	}
	type count struct{ sent, answered, failed int64 }
	for _, tc := range []struct {
		stage            string
		loads            []count
		least, atMost    int64 // entries of the gateway's table at the end
		completed, fails int64
	}{
		{"http", []count{{200, 200, 0}, {200, 200, 0}}, 220, 230, 200, 0},
		{"udp", []count{{200, 200, 0}}, 100, 100, 200, 0},
		{"on", []count{{80, 80, 0}}, 100, 100, 80, 0},
		{"unanswered", []count{{40, 0, 40}}, 0, 0, 0, 40},
		{"packets", []count{{3000, 0, 0}}, 1, 3000, 3000, 0}, // a busy receiver loses some,
		{"hold", []count{{20, 20, 0}}, 420, 420, 20, 0},
		{"idle", []count{{}}, 0, 0, 0, 0},
	} {
		s := r.Stage(tc.stage)
		if s == nil {
			t.Errorf("stage %s did not run", tc.stage)
			continue
		}
		var got []count
		for _, l := range s.Loads {
			got = append(got, count{l.Sent, l.Answered, l.Failed})
		}
		if !slices.Equal(got, tc.loads) || s.Completed != tc.completed || s.Failed != tc.fails {
			t.Errorf("%s: loads %+v, want %+v; %d completed, %d failed: %+v", tc.stage, got, tc.loads, s.Completed, s.Failed, s.Failures)
		}
		if s.TableEntries < tc.least || s.TableEntries > tc.atMost {
			t.Errorf("%s: %d entries at the end, want %d to %d: %+v, %v", tc.stage, s.TableEntries, tc.least, tc.atMost, s.Loads, s.Counters)
		}
	}
	if s := r.Stage("udp"); s != nil && (s.Found == nil || slices.Contains(s.Unchecked, "drops-unexplained")) {
		t.Errorf("doctor with a trace: found %v, unchecked %v", s.Found, s.Unchecked)
	}
}

// A stage that changes the host is refused without consent, changes it with it, and
// leaves nothing behind.
func TestHostValues(t *testing.T) {
	hostUnchanged(t)
	sc := only(t, scenario(t, "loads.yaml"), "idle")
	before, err := apply.ReadSysctlInt("/proc", snapshot.ConntrackBuckets)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if after, err := apply.ReadSysctlInt("/proc", snapshot.ConntrackBuckets); err != nil || after != before {
			t.Errorf("%s was %d and is %d (%v)", snapshot.ConntrackBuckets, before, after, err)
		}
	})
	wanted := map[string]string{snapshot.ConntrackBuckets: "65536", snapshot.ConntrackMax: "300000"}
	sc.Stages[0].Host = wanted
	again := sc.Stages[0]
	again.Name = "again"
	back := sc.Stages[0]
	back.Name, back.Host = "back", nil
	sc.Stages = append(sc.Stages, again, back)
	o := options(t)
	o.Server = build.Builtin
	if _, err := Run(t.Context(), sc, o); err == nil || !strings.Contains(err.Error(), "--allow-host") {
		t.Errorf("without consent: %v", err)
	}
	o.AllowHost, o.Force = true, true // other tests may have large tables
	seen := map[string]int64{}
	o.Progress = func(what string) {
		if name, _, _ := strings.Cut(what, ": idle for"); name != what {
			seen[name], _ = apply.ReadSysctlInt("/proc", snapshot.ConntrackBuckets)
		}
	}
	r, err := Run(t.Context(), sc, o)
	if err != nil {
		t.Fatal(err)
	}
	if seen["idle"] != 65536 || seen["again"] != 65536 || seen["back"] != before {
		t.Errorf("buckets in the stages: %v, before %d", seen, before)
	}
	if r.Stage("idle").TableMax != 300000 || r.Stage("back").TableMax == 300000 {
		t.Errorf("maximum in the stages: %d, then %d", r.Stage("idle").TableMax, r.Stage("back").TableMax)
	}
	left, _, err := o.Journal.List()
	if err != nil || len(left) == 0 {
		t.Errorf("the journal knows of no change: %v", err)
	}
	for _, tx := range left {
		if !undone(tx) {
			t.Errorf("the journal has %+v", tx)
		}
	}
}

// Values of the host are not lowered at the cost of others.
func TestTooLow(t *testing.T) {
	for name, tc := range map[string]struct {
		lower   map[string]int64
		entries int64
		refused string
	}{
		"nothing is lowered":     {nil, 1 << 20, ""},
		"idle":                   {map[string]int64{snapshot.ConntrackMax: 1000, snapshot.ConntrackBuckets: 2048}, 0, ""},
		"half of the maximum":    {map[string]int64{snapshot.ConntrackMax: 1000}, 500, ""},
		"more than half of it":   {map[string]int64{snapshot.ConntrackMax: 1000}, 501, "nf_conntrack_max to 1000: network namespace web (7) tracks 501 connections"},
		"chains of four entries": {map[string]int64{snapshot.ConntrackBuckets: 2048}, 4096, ""},
		"longer chains":          {map[string]int64{snapshot.ConntrackBuckets: 2048}, 20480, "hash chains of 20 entries"},
	} {
		t.Run(name, func(t *testing.T) {
			err := tooLow(tc.lower, "web (7)", tc.entries)
			if (err == nil) != (tc.refused == "") || err != nil && !strings.Contains(err.Error(), tc.refused) {
				t.Errorf("%v, want %q", err, tc.refused)
			}
		})
	}
}

// Doctor waits for its condition, and no longer than the load lasts.
func TestDoctorsCondition(t *testing.T) {
	hostUnchanged(t)
	o := options(t)
	o.Server = build.Builtin
	for name, tc := range map[string]struct {
		when lab.When
		want string
	}{
		"entries":             {lab.When{Entries: 50}, asWanted},
		"requests":            {lab.When{Requests: 40}, asWanted},
		"more than there are": {lab.When{Entries: 5000}, loadOver},
		"a counter at rest":   {lab.When{Counters: map[string]int64{"early_drop": 1}}, loadOver},
	} {
		t.Run(name, func(t *testing.T) {
			sc := only(t, scenario(t, "loads.yaml"), "udp")
			sc.Stages[0].Doctor = &lab.Doctor{Node: "gateway", When: &tc.when, For: 10 * time.Millisecond}
			sc.Stages[0].Loads[0].For = testutil.Patience(500 * time.Millisecond)
			var began []string
			o.Progress = func(what string) {
				if strings.Contains(what, "doctor observes") {
					began = append(began, what)
				}
			}
			r, err := Run(t.Context(), sc, o)
			if err != nil || r.Stages[0].Found == nil {
				t.Fatalf("doctor did not run: %v, %+v", err, r)
			}
			if len(began) != 1 || !strings.HasSuffix(began[0], tc.want) {
				t.Errorf("doctor began %q, want %q", began, tc.want)
			}
		})
	}
}

func TestAll(t *testing.T) {
	hostUnchanged(t)
	o := AllOptions{Options: options(t)}
	o.Server = build.Builtin
	var rows []string
	o.Row = func(row lab.AccuracyRow) { rows = append(rows, row.Scenario) }
	healthy := only(t, scenario(t, "loads.yaml"), "idle")
	broken, missed, host := *healthy, *healthy, *healthy
	broken.Name, missed.Name, host.Name = "broken", "missed", "host"
	stage := healthy.Stages[0]
	stage.Sysctls = map[string]map[string]string{"gateway": {"net.ipv4.nothing": "1"}}
	broken.Stages = []lab.Stage{stage}
	missed.Expect = lab.Expect{Finding: "ct-table-full"}
	stage = healthy.Stages[0]
	stage.Host = map[string]string{snapshot.ConntrackBuckets: "65536"}
	host.Stages = []lab.Stage{stage}
	a, err := All(t.Context(), []*lab.Scenario{healthy, &broken, &missed, &host}, o)
	if err != nil {
		t.Fatal(err)
	}
	states := map[string]string{}
	for _, row := range a.Scenarios {
		states[row.Scenario] = row.State
	}
	for name, want := range map[string]string{"loads": lab.RowPassed, "broken": lab.RowNotRun, "missed": lab.RowFailed, "host": lab.RowLeftOut} {
		if states[name] != want {
			t.Errorf("%s: %s, want %s", name, states[name], want)
		}
	}
	if a.Passed || a.Faults != 1 || a.Recalled != 0 || a.Healthy != 1 || a.NotRun != 1 || a.LeftOut != 1 || a.Kernel == "" || len(rows) != 4 {
		t.Errorf("accuracy %+v, rows %v", a, rows)
	}
}

// An interrupted series ends, and says so.
func TestAllIsInterrupted(t *testing.T) {
	hostUnchanged(t)
	o := AllOptions{Options: options(t)}
	lock, err := build.Lock(o.Dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := All(t.Context(), nil, o); err == nil || !strings.Contains(err.Error(), "another lab is running") {
		t.Errorf("beside another lab: %v", err)
	}
	lock.Close()
}
