package profile

import (
	"testing"
	"time"

	"github.com/natkit/natkit/internal/netns"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/bpf"
	"github.com/natkit/natkit/internal/profile"
	"github.com/natkit/natkit/internal/testutil"
)

// TestEverySampleCounts: where there is room for one stack only, the others are
// lost, and every sample is either in a stack or lost.
func TestEverySampleCounts(t *testing.T) {
	testutil.NeedRoot(t)
	for _, room := range []uint32{1, 0} { // 0 for the usual
		p := &Profiler{opt: Options{Hz: 2000}}
		t.Cleanup(p.close)
		spec, err := loadProfile()
		if err != nil {
			t.Fatal(err)
		}
		if room > 0 {
			spec.Maps[profileMapStacks].MaxEntries = room
		}
		if err := spec.LoadAndAssign(&p.objects, nil); err != nil {
			t.Fatal(err)
		}
		fd, err := openEvent(0, p.opt.Hz, p.objects.Sample.FD())
		if err != nil {
			t.Fatal(err)
		}
		p.events = []int{fd}
		if err := eachEvent(p.events, unix.PERF_EVENT_IOC_ENABLE); err != nil {
			t.Fatal(err)
		}
		makeWork(t, 300*time.Millisecond)
		if err := eachEvent(p.events, unix.PERF_EVENT_IOC_DISABLE); err != nil {
			t.Fatal(err)
		}
		checkEverySample(t, p, room > 0)
	}
}

// makeWork runs user code and system calls on CPU 0.
func makeWork(t *testing.T, d time.Duration) {
	t.Helper()
	err := netns.OnThread(func() error {
		var only unix.CPUSet
		only.Set(0)
		err := unix.SchedSetaffinity(0, &only)
		for end := threadTime() + d; err == nil && threadTime() < end; {
			unix.Getpid()
			work(time.Millisecond)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func checkEverySample(t *testing.T, p *Profiler, wantLost bool) {
	t.Helper()
	symbols, err := bpf.ReadSymbols("/proc")
	if err != nil {
		t.Fatal(err)
	}
	var perCPU []uint64
	if err := p.objects.Counts.Lookup(uint32(countSamples), &perCPU); err != nil {
		t.Fatal(err)
	}
	var s profile.Stacks // of no time, so that what is idle is what was sampled
	if err := p.read(&s, symbols); err != nil {
		t.Fatal(err)
	}
	if taken, got := perCPU[0], s.Samples()+s.Idle+s.Lost; taken == 0 || taken != got {
		t.Errorf("%d samples were taken; %d are in stacks, %d idle, %d lost", taken, s.Samples(), s.Idle, s.Lost)
	}
	if (s.Lost > 0) != wantLost {
		t.Errorf("%d samples are lost", s.Lost)
	}
}
