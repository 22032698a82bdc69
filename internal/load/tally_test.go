package load

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
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
	a.Fail(InWait, TimedOut)
	a.Fail(InConnect, 111)
	b.Fail(InConnect, TimedOut)
	b.Fail(InConnect, 110) // reads the same
	b.Fail(InReply, StatusReason(503))
	b.Fail(InConnect, 98)
	b.Fail(InConnect, 99)
	b.Fail(InConnect, 99)
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

func TestTallyIsBounded(t *testing.T) {
	tally := NewTally(false)
	for status := range 1000 {
		tally.Fail(InReply, StatusReason(status))
		tally.Fail(InReply, StatusReason(status))
	}
	sum := int64(0)
	for _, f := range tally.Failures() {
		sum += f.Count
	}
	if tally.Failed != 2000 || sum != 2000 || len(tally.failures.kinds) > maxKinds {
		t.Errorf("%d failed, %d in %d classes", tally.Failed, sum, len(tally.failures.kinds))
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
