package lab

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/snapshot"
)

func millionScenario(t *testing.T) *Scenario {
	t.Helper()
	s, err := Find("million")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestScale: with a hundredth of the connections, fills and buckets are a hundredth, limits as before, and the
// built-in scenario is left as it is.
func TestScale(t *testing.T) {
	type figures struct {
		Connections   int
		Free          int64
		Max, Buckets  string
		AsksInDefault int
	}
	of := func(s *Scenario) (f figures) {
		f.Connections = s.Connections()
		st, _ := s.Stage("default")
		f.Free, f.AsksInDefault = st.Fill.Free, st.Loads[0].Concurrency
		st, _ = s.Stage("raised")
		f.Max, f.Buckets = st.Host[snapshot.ConntrackMax], st.Host[snapshot.ConntrackBuckets]
		return f
	}
	s := millionScenario(t)
	for connections, want := range map[int]figures{
		1_000_000: {1_000_000, 65536, "6553600", "8192", 1_000_000},
		100_000:   {100_000, 6554, "6553600", "819", 100_000},
		10_000:    {10_000, 655, "6553600", "512", 10_000},
		1:         {1, 1, "6553600", "512", 1},
	} {
		scaled, err := s.With(Overrides{Connections: connections})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, of(scaled)); diff != "" {
			t.Errorf("%d connections (-want +got):\n%s", connections, diff)
		}
	}
	if diff := cmp.Diff(figures{1_000_000, 65536, "6553600", "8192", 1_000_000}, of(s)); diff != "" {
		t.Errorf("the built-in scenario has changed: %s", diff)
	}
}

// TestConnectionsRefused: too many for the pool, with the arithmetic; and of a scenario that holds none.
func TestConnectionsRefused(t *testing.T) {
	s := millionScenario(t)
	small := *s
	small.Load.Sources = small.Load.Sources[:1]
	for name, tc := range map[string]struct {
		s    *Scenario
		n    int
		want string
	}{
		"pool":  {&small, 2_000_000, "2,000,000 connections: 1 source × 64,512 source ports × 20 ports are only 1,290,240"},
		"bound": {s, 5_000_000, "1 to 4194304 connections, found 5000000"},
	} {
		if _, err := tc.s.With(Overrides{Connections: tc.n}); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error %v, want %q", name, err, tc.want)
		}
	}
	for _, other := range []string{"table-full", "own-ports-exhausted"} { // which has a time of its own
		o, err := Find(other)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := o.With(Overrides{Connections: 10}); err == nil {
			t.Errorf("%s holds another number of connections", other)
		}
	}
}

func TestCheckHold(t *testing.T) {
	const gib = 1 << 30
	for _, tc := range []struct {
		n             int
		memory, files int64
		want          string
	}{
		{1_000_000, 16 * gib, 3_000_000, ""},
		{1_000_000, 4 * gib, 3_000_000, "--connections "},
		{1_000_000, 16 * gib, 510_000, "--connections 250000"},
		{10, 0, 3_000_000, "--connections 1"},
	} {
		err := CheckHold(tc.n, tc.memory, tc.files)
		if err == nil != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%d connections, %d bytes, %d files: %v, want %q", tc.n, tc.memory, tc.files, err, tc.want)
			continue
		}
		if err == nil {
			continue
		}
		// What is offered is taken.
		var offered int
		for digit := range strings.SplitSeq(err.Error()[strings.Index(err.Error(), "--connections ")+len("--connections "):], "") {
			offered = 10*offered + int(digit[0]-'0')
		}
		if tc.memory > 0 {
			if err := CheckHold(offered, tc.memory, tc.files); err != nil {
				t.Errorf("%d are offered and refused: %v", offered, err)
			}
		}
	}
}

// TestWithoutHost leaves out what changes the host, and nothing else.
func TestWithoutHost(t *testing.T) {
	s := millionScenario(t)
	rest, left := s.WithoutHost()
	names := func(all []Stage) (n []string) {
		for _, st := range all {
			n = append(n, st.Name)
		}
		return n
	}
	if diff := cmp.Diff([]string{"bare", "default", "notrack"}, names(rest.Stages)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"raised", "sized"}, names(left)); diff != "" {
		t.Error(diff)
	}
	if slices.ContainsFunc(rest.Stages, func(st Stage) bool { return len(st.Host) > 0 }) || s.NeedsHost() || len(s.Stages) != 5 {
		t.Errorf("stages %v, needs the host: %t", names(s.Stages), s.NeedsHost())
	}
}

// TestHeldReport: rates are those of the second in which so many stood, the last one is cut off where the last
// connection stood, and memory is by connection.
func TestHeldReport(t *testing.T) {
	second := func(at float64, completed, open int64) load.HeldSecond {
		return load.HeldSecond{Second: load.Second{At: at, Completed: completed}, Open: open}
	}
	h := &HeldReport{HoldResult: &load.HoldResult{Established: 250, Alive: 3, OpenSeconds: 2.5, Config: load.HoldConfig{Connections: 250, Verify: 3},
		Series: []load.HeldSecond{second(1, 100, 100), second(2, 50, 150), second(3, 100, 250), second(4, 0, 250)}}}
	for open, want := range map[int64]float64{1: 100, 100: 100, 101: 50, 151: 200, 251: 0} {
		if got := h.RateAt(open); got != want {
			t.Errorf("rate at %d connections %v, want %v", open, got, want)
		}
	}
	if got := h.LastRate(); got != 200 {
		t.Errorf("rate of the last second %v, want 200", got)
	}
	h.Weigh(map[string]int64{"TCP": 1000, "dentry": 500, "filp": 10}, map[string]int64{"TCP": 501_000, "dentry": 250_500, "filp": 11, "new": 0})
	if diff := cmp.Diff([]HeldMemory{{"TCP", 500_000, 2000}, {"dentry", 250_000, 1000}}, h.Memory); diff != "" {
		t.Errorf("memory (-want +got):\n%s", diff)
	}
	if h.Of("dentry") != 1000 || h.Of("filp") != 0 {
		t.Errorf("dentry %v, filp %v", h.Of("dentry"), h.Of("filp"))
	}
	if !h.Whole() {
		t.Error("not whole")
	}
	for name, change := range map[string]func(*load.HoldResult){
		"fewer": func(r *load.HoldResult) { r.Established-- }, "lost": func(r *load.HoldResult) { r.Lost++ }, "dead": func(r *load.HoldResult) { r.Alive-- },
	} {
		r := *h.HoldResult
		change(&r)
		if (&HeldReport{HoldResult: &r}).Whole() {
			t.Errorf("%s: whole", name)
		}
	}
}
