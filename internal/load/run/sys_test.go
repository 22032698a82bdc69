package run

import (
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/natkit/natkit/internal/load"
	"golang.org/x/sys/unix"
)

// TestObserveCPU: of 2 seconds, natkit used 1.2 CPUs, others 0.6.
func TestObserveCPU(t *testing.T) {
	a := usage{user: 5, system: 5, machine: machine{busy: 100, idle: 1000}}
	b := usage{user: 5.4, system: 7, machine: machine{busy: 103.8, idle: 1000.2}, others: 0.15}
	got := load.Observed{BusiestWorker: 0.6}
	observeCPU(&got, a, b, 2)
	want := load.Observed{
		BusiestWorker: 0.6, CPUs: runtime.NumCPU(), Own: 1.2 / float64(runtime.NumCPU()), Busy: 0.95, Others: 0.15, OthersMost: 0.35,
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateApprox(0, 1e-9)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	short := load.Observed{BusiestWorker: 0.6}
	if observeCPU(&short, a, b, 0.4); short != (load.Observed{}) {
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
	if big := peakRSS(); big < small+32<<20 { // pages that nobody uses may be reclaimed meanwhile
		t.Errorf("a peak of %d bytes, with 64 MiB more than %d", big, small)
	}
	if err := unix.Munmap(b); err != nil {
		t.Fatal(err)
	}
	if resetPeak(); peakRSS() > small+32<<20 {
		t.Errorf("a peak of %d bytes after the reset, %d before the 64 MiB", peakRSS(), small)
	}
}

func TestParseStat(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       machine
		bad        bool
	}{
		{"now", "cpu  100 20 300 4000 50 6 70 800 90 10\ncpu0 1 2\n", machine{busy: 4.96, idle: 40.5}, false},
		{"Linux 2.4", "cpu  100 20 300 4000\n", machine{busy: 4.2, idle: 40}, false},
		{"without an end of line", "cpu 100 0 0 100", machine{busy: 1, idle: 1}, false},
		{"empty", "", machine{}, true},
		{"another file", "MemTotal: 5 kB\n", machine{}, true},
		{"not a number", "cpu  1 2 x 4\n", machine{}, true},
	} {
		got, err := parseStat(strings.NewReader(tt.text))
		if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(machine{}), cmpopts.EquateApprox(0, 1e-9)); (err != nil) != tt.bad || diff != "" {
			t.Errorf("%s: error %v (-want +got):\n%s", tt.name, err, diff)
		}
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
