package profile

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/testutil"
)

// BenchmarkRecording measures the cost of a recording at the usual rate as a share of the
// time of all CPUs, by the kernel's own statistics of programs (Linux 5.8): on an idle
// machine, and with deep stacks because packets are forwarded. The packets are sent by
// this process, so its own CPU time is no measure then. The suite watch of the benchmarks
// has the bound.
func BenchmarkRecording(b *testing.B) {
	testutil.NeedRoot(b)
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		b.Fatal(err)
	}
	defer stats.Close()
	b.Run("idle", func(b *testing.B) { recordings(b, func() time.Duration { return testutil.CPUTime(b) }) })
	b.Run("packets", func(b *testing.B) {
		network := newDNATNetwork(b)
		ctx, cancel := context.WithCancel(b.Context())
		var sender sync.WaitGroup
		defer sender.Wait()
		defer cancel()
		sender.Go(func() { network.flood(b, ctx, 200_000) })
		recordings(b, func() time.Duration { return 0 })
	})
}

func recordings(b *testing.B, processTime func() time.Duration) {
	var samples uint64
	var start, program, process, all time.Duration
	for b.Loop() {
		before, began := processTime(), time.Now()
		p, err := Start(Options{})
		if err != nil {
			b.Fatal(err)
		}
		start += time.Since(began)
		time.Sleep(time.Second)
		info, err := p.objects.Sample.Stats()
		if err != nil {
			b.Fatal(err)
		}
		s, err := p.Stop()
		if err != nil {
			b.Fatal(err)
		}
		samples, program, process = samples+info.RunCount, program+info.Runtime, process+processTime()-before
		all += time.Duration(s.Seconds * float64(time.Second) * float64(len(p.opt.CPUs)))
	}
	b.ReportMetric(float64(program.Nanoseconds())/float64(samples), "ns/sample")
	b.ReportMetric(100*float64(program+process)/float64(all), "%cpu")
	b.ReportMetric(float64(start.Milliseconds())/float64(b.N), "ms/start")
}

// BenchmarkSample measures the cost of a sample on a busy CPU, including the interrupt that
// BenchmarkRecording cannot see: how much less work a thread gets done in the same CPU time
// at the highest rate than without. Each operation is one such pair.
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
