package run

import (
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/natkit/natkit/internal/load"
	"golang.org/x/sys/unix"
)

// TestObserveCPU: of 2 seconds, natkit used 1.2 CPUs, others 0.6.
func TestObserveCPU(t *testing.T) {
	a := usage{user: 5, system: 5, busy: 100, idle: 1000}
	u := usage{user: 5.4, system: 7, busy: 103.8, idle: 1000.2}.since(a)
	u.others = 0.15
	got := load.Observed{BusiestWorker: 0.6}
	u.observe(&got, 2)
	want := load.Observed{
		BusiestWorker: 0.6, CPUs: runtime.NumCPU(), Own: 1.2 / float64(runtime.NumCPU()), Busy: 0.95, Others: 0.15, OthersMost: 0.35,
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateApprox(0, 1e-9)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	short := load.Observed{BusiestWorker: 0.6}
	if u.observe(&short, 0.4); short != (load.Observed{}) {
		t.Errorf("a run of 0.4 s: %+v", short)
	}
}

// TestPeakIsTheRuns: what the process used before a run is not the run's.
func TestPeakIsTheRuns(t *testing.T) {
	resetPeak()
	small := peakRSS()
	b, err := unix.Mmap(-1, 0, 64<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_POPULATE)
	if err != nil {
		t.Fatal(err)
	}
	if big := peakRSS(); big < small+32<<20 { // unused pages may be reclaimed meanwhile
		t.Errorf("a peak of %d bytes, with 64 MiB more than %d", big, small)
	}
	if err := unix.Munmap(b); err != nil {
		t.Fatal(err)
	}
	if resetPeak(); peakRSS() > small+32<<20 {
		t.Errorf("a peak of %d bytes after the reset, %d before the 64 MiB", peakRSS(), small)
	}
}

func TestParsePeak(t *testing.T) {
	for text, want := range map[string]int64{
		"Name:\tx\nVmPeak:\t  9 kB\nVmHWM:\t    10232 kB\nVmRSS:\t 8 kB\n": 10232 * 1024,
		"VmHWM:": 0, "VmHWM: x kB": 0, "VmHWM: 5 MB": 0, "": 0,
	} {
		if got := parsePeak([]byte(text)); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}
