package load

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/testutil"
)

// TestTallySemantics holds ab's: connect + processing = total, waiting from the
// sent request to the first byte; in an open loop from the intended start.
func TestTallySemantics(t *testing.T) {
	const ms = 1_000_000
	tally := NewTally(true)
	tally.Complete(Sample{Intended: 100 * ms, Start: 130 * ms, Connected: 132 * ms, Sent: 133 * ms, First: 137 * ms, Done: 140 * ms, Body: 34})
	var r Result
	r.FirstFailureSeconds, r.Seconds = -1, 0.5
	tally.Fill(&r)
	got := []float64{r.Connect.Mean, r.Processing.Mean, r.Waiting.Mean, r.Total.Mean, r.ServiceTotal.Mean}
	if diff := cmp.Diff([]float64{32, 8, 4, 40, 10}, got); diff != "" {
		t.Errorf("connect, processing, waiting, total, service (-want +got):\n%s", diff)
	}
	if r.DocumentBytes != 34 || r.BodyBytes != 34 || r.RequestsPerSecond != 2 || r.AfterFirstFailurePerSecond != 0 {
		t.Errorf("%+v", r)
	}
}

func TestTallyMergeAndFailures(t *testing.T) {
	a, b := NewTally(false), NewTally(false)
	a.Fail(Wait, TimedOut)
	a.Fail(Connect, 111)
	b.Fail(Connect, TimedOut)
	b.Fail(Connect, 110) // reads the same
	b.Fail(Reply, StatusReason(503))
	b.Fail(Connect, 98)
	b.Fail(Connect, 99)
	b.Fail(Connect, 99)
	b.Complete(Sample{Done: 1, Body: 5})
	b.AfterFailure, b.Received, b.SystemCalls, b.Unfinished = 1, 100, 6, 2
	a.Merge(b)
	want := []Failure{
		{Connect, "no local port", 3}, {Connect, "timed out", 2}, {Connect, "refused", 1},
		{Wait, "timed out", 1}, {Reply, "status 503", 1},
	}
	if diff := cmp.Diff(want, a.Failures()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	r := Result{Seconds: 4, FirstFailureSeconds: 2}
	a.Fill(&r)
	if r.Completed != 1 || r.Failed != 8 || r.DocumentBytes != 5 || r.AfterFirstFailurePerSecond != 0.5 ||
		r.SystemCalls != 6 || r.Unfinished != 2 || r.ServiceTotal != nil {
		t.Errorf("%+v", r)
	}
}

func TestReasons(t *testing.T) {
	for r, want := range map[Reason]string{
		111: "refused", TimedOut: "timed out", StatusReason(500): "status 500", 1234: "errno 1234",
	} {
		if got := r.String(); got != want {
			t.Errorf("%d: %q, want %q", r, got, want)
		}
	}
	if !Reason(110).Timeout() || !NotClosed.Timeout() || Reason(111).Timeout() || !Reason(99).NoLocalPort() {
		t.Error("wrong classes")
	}
}

func TestCourse(t *testing.T) {
	c := NewCourse(2)
	a, b := NewInterval(), NewInterval()
	a.Complete(3_000_000)
	c.Add(0, a)
	a.Reset()
	a.Failed = 2
	c.Add(1, a) // ahead of the other worker
	b.Complete(5_000_000)
	b.Complete(5_000_000)
	c.Add(0, b)
	b.Reset()
	b.Complete(1_000_000)
	c.Add(1, b)
	b.Reset()
	b.Failed = 1
	c.Add(2, b) // the other one has ended
	got := c.Series(2.25)
	want := []Second{
		{At: 1, Completed: 3, P99: 5}, {At: 2, Completed: 1, Failed: 2, P99: 1}, {At: 2.25, Failed: 1},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := NewCourse(1).Series(0); got == nil || len(got) != 0 {
		t.Errorf("an empty run: %v", got)
	}
}

func TestLimit(t *testing.T) {
	for _, tt := range []struct {
		name string
		seen Observed
		want string
	}{
		{"nothing seen", Observed{}, ""},
		{"too few workers", Observed{BusiestWorker: 0.99, Workers: 1, Own: 0.5, CPUs: 2, Busy: 0.6}, "more than 1 workers"},
		{"an unknown machine", Observed{BusiestWorker: 0.99, Workers: 1, Own: 0.5, CPUs: 2}, ""},
		{"half busy", Observed{BusiestWorker: 0.5, Workers: 1, Own: 0.25, CPUs: 2, Busy: 0.3}, ""},
		{"the server elsewhere", Observed{BusiestWorker: 0.97, Workers: 2, Own: 0.97, CPUs: 2, Busy: 0.99, OthersMost: 0.02}, "natkit used 97 % of the 2 CPUs"},
		{"the server elsewhere, some packets", Observed{BusiestWorker: 0.9, Workers: 2, Own: 0.88, CPUs: 2, Busy: 0.95, OthersMost: 0.07}, "natkit used 88 %"},
		{"pinned to one CPU of four", Observed{BusiestWorker: 0.96, Workers: 1, Own: 0.97, CPUs: 1, Busy: 0.3}, "of the 1 CPUs"},
		{"the server here", Observed{BusiestWorker: 0.65, Workers: 2, Own: 0.6, CPUs: 2, Busy: 1, Others: 0.3, OthersMost: 0.4}, ""},
		{"a busy router", Observed{Own: 0.2, CPUs: 2, Busy: 1, OthersMost: 0.8}, ""},
		{"in time", Observed{Starts: 1000, Late: 5, Queued: 5}, ""},
		{"late", Observed{Starts: 1000, Late: 50}, "behind the schedule"},
		{"queued", Observed{Starts: 1000, Queued: 50}, "waited for one"},
		{"no ports", Observed{NoLocalPort: 1}, "no free local port"},
	} {
		if got := tt.seen.Limit(); (got != "") != (tt.want != "") || !strings.Contains(got, tt.want) {
			t.Errorf("%s: %q, want %q in it", tt.name, got, tt.want)
		}
	}
}

func TestContention(t *testing.T) {
	for _, tt := range []struct {
		name string
		seen Observed
		want string
	}{
		{"nothing seen", Observed{}, ""},
		{"the server here", Observed{Own: 0.6, CPUs: 2, Busy: 0.99, Others: 0.3, OthersMost: 0.39}, "other processes used 30 %"},
		{"packets or others", Observed{Own: 0.6, CPUs: 2, Busy: 0.99, Others: 0.02, OthersMost: 0.39}, "the rest with packets or other processes"},
		{"the server elsewhere", Observed{Own: 0.97, CPUs: 2, Busy: 0.99, OthersMost: 0.02}, ""},
		{"idle CPUs, and others at work", Observed{Own: 0.4, CPUs: 2, Busy: 0.7, Others: 0.2, OthersMost: 0.3}, "other processes used 20 %"},
		{"idle CPUs and packets", Observed{Own: 0.4, CPUs: 2, Busy: 0.7, OthersMost: 0.3}, ""},
		{"a small load on a busy machine", Observed{Own: 0.02, CPUs: 2, Busy: 0.99, Others: 0.9, OthersMost: 0.97}, "other processes used 90 %"},
	} {
		if got := tt.seen.Contention(); (got != "") != (tt.want != "") || !strings.Contains(got, tt.want) {
			t.Errorf("%s: %q, want %q in it", tt.name, got, tt.want)
		}
	}
}

// TestHistogramAgainstSorting compares with the exact figures of the same values.
func TestHistogramAgainstSorting(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	a, b := NewHistogram(), NewHistogram()
	var all []float64
	for i := range 20000 {
		v := int64(math.Exp(r.Float64()*14+7)) * int64(time.Microsecond) / 1000
		all = append(all, float64(v)/1e6)
		if i%3 == 0 {
			a.Record(v)
		} else {
			b.Record(v)
		}
	}
	a.Merge(b)
	slices.Sort(all)
	sum, sq := 0.0, 0.0
	for _, v := range all {
		sum += v
	}
	mean := sum / float64(len(all))
	for _, v := range all {
		sq += (v - mean) * (v - mean)
	}
	got := a.Times()
	at := func(q float64) float64 { return all[int(math.Ceil(q*float64(len(all))))-1] }
	for _, c := range []struct {
		name      string
		got, want float64
		within    float64
	}{
		{"min", got.Min, all[0], 0},
		{"max", got.Max, all[len(all)-1], 0},
		{"mean", got.Mean, mean, 1e-9},
		{"sd", got.SD, math.Sqrt(sq / float64(len(all))), 1e-6},
		{"median", got.Median, at(0.5), 2e-3},
		{"p90", got.P90, at(0.9), 2e-3},
		{"p95", got.P95, at(0.95), 2e-3},
		{"p99", got.P99, at(0.99), 2e-3},
		{"p99.9", got.P999, at(0.999), 2e-3},
	} {
		if math.Abs(c.got-c.want) > c.within*c.want {
			t.Errorf("%s: %v, want %v within %v of it", c.name, c.got, c.want, c.within)
		}
	}
}

func TestHistogramEdges(t *testing.T) {
	h := NewHistogram()
	if h.Times() != (Times{}) || h.Quantile(0.5) != 0 {
		t.Errorf("an empty histogram has %+v", h.Times())
	}
	h.Record(-5)
	if got := h.Times(); got.Min != 0 || got.Max != 0 || h.n != 1 {
		t.Errorf("a negative value: %+v", got)
	}
	day := int64(24 * time.Hour)
	h.Record(day)
	if got := h.Times(); got.Max != float64(day)/1e6 || h.n != 2 || got.P999 < highestNs/1e6*0.999 {
		t.Errorf("a value above the range: %+v", got)
	}
	h.Reset()
	if h.n != 0 || h.Times() != (Times{}) {
		t.Errorf("after Reset: %+v", h.Times())
	}
	one := NewHistogram()
	one.Record(1_234_567)
	if got := one.Times(); got.SD != 0 || got.Median != 1.234567 || got.P999 != 1.234567 {
		t.Errorf("one value: %+v", got)
	}
}

func TestRecordDoesNotAllocate(t *testing.T) {
	tally, in := NewTally(true), NewInterval()
	v := int64(1000)
	if n := testing.AllocsPerRun(1000, func() {
		tally.Complete(Sample{Intended: 0, Start: 1, Connected: v, Sent: v, First: v, Done: v * 2})
		tally.Fail(Wait, TimedOut)
		in.Complete(v)
		v += 7919
	}); n != 0 {
		t.Errorf("%v allocations per request", n)
	}
}

func TestPace(t *testing.T) {
	p := Pace{PerSecond: 1000}
	for k, want := range map[int64]time.Duration{0: 0, 1: time.Millisecond, 2500: 2500 * time.Millisecond} {
		if got := p.At(k); got != want {
			t.Errorf("request %d at %v, want %v", k, got, want)
		}
	}
	for elapsed, want := range map[time.Duration]int64{
		-1: 0, 0: 1, time.Millisecond - 1: 1, time.Millisecond: 2, time.Second: 1001,
	} {
		if got := p.Due(elapsed); got != want {
			t.Errorf("%d due after %v, want %d", got, elapsed, want)
		}
	}
	if got := (Pace{PerSecond: 1e-9}).At(1 << 60); got != never {
		t.Errorf("far future at %v", got)
	}
}

// FuzzPace holds that Due counts exactly the requests that At has had by then.
func FuzzPace(f *testing.F) {
	f.Add(1000.0, int64(12345))
	f.Add(3.0, int64(1))
	f.Add(99999.7, int64(1<<40))
	f.Fuzz(func(t *testing.T, rate float64, elapsed int64) {
		defer testutil.Bounded(t, 16)()
		if !(rate >= 0.01 && rate <= 1e8) || elapsed < 0 || elapsed > int64(100*time.Hour) {
			return
		}
		p := Pace{PerSecond: rate}
		e := time.Duration(elapsed)
		n := p.Due(e)
		if n > 0 && p.At(n-1) > e || p.At(n) <= e {
			t.Fatalf("%d due after %v at %v/s, but they are due at %v and %v", n, e, rate, p.At(n-1), p.At(n))
		}
	})
}
