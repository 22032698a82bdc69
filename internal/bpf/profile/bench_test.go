package profile

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/testutil"
)

// BenchmarkSample tells what a sample takes from a busy CPU, the interrupt that
// Measure cannot see included: how much less work a thread gets done in the same
// CPU time at the highest rate than without. Each operation is one such pair.
func BenchmarkSample(b *testing.B) {
	testutil.NeedRoot(b)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var lost, samples float64
	for b.Loop() {
		without := work(200 * time.Millisecond)
		p, err := Start(Options{Hz: MaxHz})
		if err != nil {
			b.Fatal(err)
		}
		with := work(200 * time.Millisecond)
		s, err := p.Stop()
		if err != nil {
			b.Fatal(err)
		}
		lost += 200e6 * (1 - with/without)
		samples += float64(s.Hz) * 0.2
	}
	b.ReportMetric(lost/samples, "ns/sample")
	b.ReportMetric(100*DefaultHz*lost/samples/1e9, "%cpu@99Hz")
}

// work counts what a loop gets done in some CPU time of this thread. Interrupts
// are in that time.
func work(d time.Duration) (rounds float64) {
	for end := threadTime() + d; threadTime() < end; rounds++ {
		for n := 0; n < 1000; n++ {
			sink = sink*31 + n
		}
	}
	return rounds
}

var sink int

func threadTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic(err) // the clock is as old as Linux 2.6
	}
	return time.Duration(t.Nano())
}
