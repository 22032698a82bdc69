package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/natkit/natkit/internal/units"
)

const (
	rate = "requests_per_second"
	size = "peak_bytes"
	call = "system_calls"
)

// fake is a suite whose subjects return the given values, and which records the calls.
type fake struct {
	Suite
	log []string
}

func newFake(warmUp, rounds int, names ...string) *fake {
	f := &fake{Suite: Suite{
		Name: "fake", Title: "A fake", About: "Nothing is measured here.", Method: "no run at all",
		Quantities: []Quantity{
			{Name: rate, Label: "requests/s", Better: Higher, Text: units.Rate},
			{Name: size, Label: "peak memory", Better: Lower, Text: units.Bytes[float64]},
			{Name: call, Label: "system calls", Better: Lower, Counted: true, Text: func(v float64) string { return units.Fixed(v, 0) }},
		},
		Rounds: rounds, WarmUp: warmUp,
		Parameters: map[string]any{"concurrency": 7}, Seed: 42,
		Programs: [][]string{{"echo", "fake 1.2 (in truth echo)"}},
	}}
	f.Setup = func(context.Context) (func(context.Context) error, error) {
		f.log = append(f.log, "up")
		return func(ctx context.Context) error {
			f.log = append(f.log, "down")
			return ctx.Err()
		}, nil
	}
	for _, name := range names {
		f.yields(name, func(int) (Sample, error) { return Sample{Values: Values{rate: 1}}, nil })
	}
	return f
}

// yields adds a subject; run is counted from 0, warm-up included.
func (f *fake) yields(name string, sample func(run int) (Sample, error)) *fake {
	run := 0
	f.Subjects = append(f.Subjects, Subject{Name: name, Run: func(context.Context) (Sample, error) {
		f.log = append(f.log, name)
		run++
		return sample(run - 1)
	}})
	return f
}

func TestOrderTurns(t *testing.T) {
	for n, want := range map[int]string{
		1: "[0] [0] [0] [0] [0] [0]",
		2: "[0 1] [1 0] [1 0] [0 1] [0 1] [1 0]",
		3: "[0 1 2] [2 1 0] [1 2 0] [0 2 1] [2 0 1] [1 0 2]",
	} {
		var got []string
		for round := 1; round <= 6; round++ {
			got = append(got, fmt.Sprint(order(round, n)))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%d subjects: %v, want %s", n, got, want)
		}
	}
}

func TestRunKeepsTheOrderAndDropsWarmUp(t *testing.T) {
	f := newFake(1, 3)
	for i, name := range []string{"a", "b"} {
		f.yields(name, func(run int) (Sample, error) {
			s := Sample{Values: Values{rate: float64(10*i + run)}}
			if run == 0 { // nothing of it counts, failures included
				s.Failures, s.GeneratorLimit = 5, "cold"
			}
			return s, nil
		})
		f.Subjects[i].Count = func(context.Context) (Values, error) {
			f.log = append(f.log, "count "+name)
			return Values{call: 3}, nil
		}
	}
	var progress []string
	r, err := f.Run(t.Context(), Options{Progress: func(format string, args ...any) {
		progress = append(progress, fmt.Sprintf(format, args...))
	}})
	if err != nil {
		t.Fatal(err)
	}
	wantLog := "up a b a b b a b a count a count b down"
	if got := strings.Join(f.log, " "); got != wantLog {
		t.Errorf("done: %s, want %s", got, wantLog)
	}
	want := []Taken{
		{1, 1, Sample{Values: Values{rate: 1}}}, {2, 2, Sample{Values: Values{rate: 2}}}, {3, 2, Sample{Values: Values{rate: 3}}},
	}
	if diff := cmp.Diff(want, r.Subjects[0].Samples); diff != "" {
		t.Errorf("samples of a (-want +got):\n%s", diff)
	}
	if got := r.Subjects[1]; got.Median[rate] != 12 || got.Worst[rate] != 11 || got.Counted[call] != 3 {
		t.Errorf("figures of b: %+v", got)
	}
	if len(progress) != 8 || progress[0] != "fake: warm-up  a  requests/s 0, 5 failed; the generator was the limit: cold" ||
		progress[7] != "fake: round 3/3  a  requests/s 3.00, 0 failed" {
		t.Errorf("progress: %q", progress)
	}
}

func TestRunRoundsAreTheCallers(t *testing.T) {
	f := newFake(0, 15, "a")
	if r, err := f.Run(t.Context(), Options{Rounds: 2}); err != nil || r.Rounds != 2 || len(r.Subjects[0].Samples) != 2 {
		t.Errorf("got %+v, %v", r, err)
	}
}

// TestRunTearsDown: whatever happens, what was set up is taken down, with a
// context that is still good.
func TestRunTearsDown(t *testing.T) {
	broken := errors.New("broken")
	for name, run := range map[string]func(cancel func()) (Sample, error){
		"a run fails":     func(func()) (Sample, error) { return Sample{}, broken },
		"interrupted":     func(cancel func()) (Sample, error) { cancel(); return Sample{Values: Values{rate: 1}}, nil },
		"refused":         func(func()) (Sample, error) { return Sample{Values: Values{rate: 1}, Failures: 1}, nil },
		"unknown value":   func(func()) (Sample, error) { return Sample{Values: Values{rate: 1, "speed": 1}}, nil },
		"counted value":   func(func()) (Sample, error) { return Sample{Values: Values{rate: 1, call: 1}}, nil },
		"no number":       func(func()) (Sample, error) { return Sample{Values: Values{rate: 0 / zero}}, nil },
		"no first value":  func(func()) (Sample, error) { return Sample{Values: Values{size: 1}}, nil },
		"nothing to mean": func(func()) (Sample, error) { return Sample{}, nil },
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			f := newFake(0, 3).yields("a", func(int) (Sample, error) { return run(cancel) })
			r, err := f.Run(ctx, Options{})
			if err == nil || r != nil {
				t.Fatalf("got %+v, %v", r, err)
			}
			if strings.Contains(err.Error(), "tear down") || !strings.HasPrefix(err.Error(), "benchmark fake: ") {
				t.Errorf("error: %v", err)
			}
			if got := strings.Join(f.log, " "); got != "up a down" {
				t.Errorf("done: %s", got)
			}
		})
	}
}

var zero = 0.0

func TestRunWithoutSetupOrWhereItFails(t *testing.T) {
	f := newFake(0, 1, "a")
	f.Setup = nil
	if _, err := f.Run(t.Context(), Options{}); err != nil {
		t.Error(err)
	}
	f.Setup = func(context.Context) (func(context.Context) error, error) { return nil, errors.New("no lab") }
	if r, err := f.Run(t.Context(), Options{}); r != nil || err == nil || err.Error() != "benchmark fake: set up: no lab" {
		t.Errorf("got %v, %v", r, err)
	}
}

func TestRunNeedsACleanEnd(t *testing.T) {
	f := newFake(0, 1, "a")
	f.Setup = func(context.Context) (func(context.Context) error, error) {
		return func(context.Context) error { return errors.New("lab stays") }, nil
	}
	if r, err := f.Run(t.Context(), Options{}); r != nil || err == nil || err.Error() != "benchmark fake: tear down: lab stays" {
		t.Errorf("got %v, %v", r, err)
	}
}

func TestRunNeedsItsPrograms(t *testing.T) {
	f := newFake(0, 1, "a")
	f.Programs = [][]string{{"/nonexistent/ab", "-V"}}
	if _, err := f.Run(t.Context(), Options{}); err == nil || !strings.HasPrefix(err.Error(), "benchmark fake: /nonexistent/ab -V: no version: ") {
		t.Errorf("got %v", err)
	}
	if len(f.log) != 0 {
		t.Errorf("done before that: %v", f.log)
	}
}

func TestCheck(t *testing.T) {
	for want, spoil := range map[string]func(*Suite){
		"not in kebab-case":           func(s *Suite) { s.Name = "HTTP load" },
		"needs a subject":             func(s *Suite) { s.Subjects = nil },
		"that each run measures":      func(s *Suite) { s.Quantities = s.Quantities[2:] },
		"give at least one":           func(s *Suite) { s.Rounds = -1 },
		"1 rounds after -1":           func(s *Suite) { s.WarmUp = -1 },
		"one round has no interval":   func(s *Suite) { s.Baseline = "b" },
		`the baseline "c" is none`:    func(s *Suite) { s.Rounds, s.Baseline = 2, "c" },
		"unknown subject or quantity": func(s *Suite) { s.Claims = []Claim{{Subject: "a", Quantity: "speed", Bound: 1}} },
		"Than:c":                      func(s *Suite) { s.Rounds, s.Claims = 2, []Claim{{Subject: "a", Quantity: rate, Than: "c"}} },
	} {
		f := newFake(0, 1, "a", "b")
		spoil(&f.Suite)
		if r, err := f.Run(t.Context(), Options{}); r != nil || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error with %q, got %v", want, err)
		}
		if len(f.log) != 0 {
			t.Errorf("%s: done before that: %v", want, f.log)
		}
	}
}

// whole is a suite with all there is, and a result of which every figure is known.
func whole(t *testing.T) *Result {
	t.Helper()
	f := newFake(1, 10)
	for _, sub := range []struct {
		name  string
		rate  float64
		size  float64
		calls float64
	}{{"natkit", 210, 30 << 20, 6}, {"ab", 100, 72 << 20, 14}, {"wrk", 205, 0, 6}} {
		f.yields(sub.name, func(run int) (Sample, error) {
			s := Sample{Values: Values{rate: sub.rate * float64(1+run%2)}}
			if sub.size > 0 {
				s.Values[size] = sub.size + float64(run<<20)
			}
			if sub.name == "wrk" && run == 4 {
				s.GeneratorLimit = "all CPUs were busy"
			}
			return s, nil
		})
		f.Subjects[len(f.Subjects)-1].Count = func(context.Context) (Values, error) { return Values{call: sub.calls}, nil }
	}
	f.Baseline = "ab"
	f.Claims = []Claim{
		{Subject: "natkit", Quantity: rate, Than: "ab", Bound: 1.05},
		{Subject: "natkit", Quantity: rate, Than: "wrk", Bound: 1.05},
		{Subject: "natkit", Quantity: size, Bound: 32 << 20},
		{Subject: "natkit", Quantity: call, Than: "ab", Bound: 0.5},
		{Subject: "natkit", Quantity: call, Than: "wrk", Bound: 1, Strict: true},
	}
	r, err := f.Run(t.Context(), Options{Origin: Origin{
		Date: time.Date(2031, 2, 3, 4, 5, 6, 0, time.UTC), Commit: "0123abcd-dirty",
		Machine: Machine{CPU: "Test CPU", CPUs: 2, MemoryBytes: 8 << 30, Kernel: "6.1.0", Distribution: "Test 12", Load1m: 1.5,
			Busy: []string{"load average 1.50 with 2 CPUs"}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	return r
}
