package run

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/load"
)

// userHz is what /proc/stat counts in, the same on all Linux architectures.
const userHz = 100

// usage is processor time at one instant, in seconds.
type usage struct {
	user, system float64
	machine      machine // all 0 where /proc/stat is not there
	// others is the share of the machine's CPUs that other processes used since the
	// instant before.
	others float64
}

// machine is all CPUs' time since boot, in seconds.
type machine struct{ busy, idle float64 }

func readUsage() usage {
	var u usage
	var ru unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &ru) == nil {
		u.user, u.system = seconds(ru.Utime), seconds(ru.Stime)
	}
	if f, err := os.Open("/proc/stat"); err == nil {
		u.machine, _ = parseStat(f)
		f.Close()
	}
	return u
}

func seconds(t unix.Timeval) float64 { return float64(t.Sec) + float64(t.Usec)/1e6 }

// parseStat adds up the first line of /proc/stat (proc_stat(5)). Guest time is
// contained in user time, stolen time is nobody's here.
func parseStat(r io.Reader) (machine, error) {
	line, err := bufio.NewReader(r).ReadString('\n')
	fields := strings.Fields(line)
	if len(fields) < 5 || fields[0] != "cpu" {
		return machine{}, fmt.Errorf("read /proc/stat: unexpected first line %q (%v)", line, err)
	}
	const nIdle, nIOWait, nSteal = 3, 4, 7
	var m machine
	for i, text := range fields[1:] {
		ticks, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return machine{}, fmt.Errorf("read /proc/stat: %w", err)
		}
		seconds := float64(ticks) / userHz
		switch {
		case i == nIdle || i == nIOWait:
			m.idle += seconds
		case i < nSteal:
			m.busy += seconds
		}
	}
	return m, nil
}

// threadSeconds is the calling thread's processor time.
func threadSeconds() float64 {
	var ru unix.Rusage
	if unix.Getrusage(unix.RUSAGE_THREAD, &ru) != nil {
		return 0
	}
	return seconds(ru.Utime) + seconds(ru.Stime)
}

// resetPeak makes peakRSS count from now (proc_pid_clear_refs(5), since Linux 4.0);
// without permission it goes on counting.
func resetPeak() {
	const peak = "5"
	_ = os.WriteFile("/proc/self/clear_refs", []byte(peak), 0)
}

// peakRSS is the process's greatest memory so far. getrusage is not used: its
// figure survives an exec, and would be that of a greater parent.
func peakRSS() int64 {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	return parsePeak(b)
}

func parsePeak(status []byte) int64 {
	_, rest, found := bytes.Cut(status, []byte("VmHWM:"))
	if !found {
		return 0
	}
	fields := bytes.Fields(rest[:min(len(rest), 64)])
	if len(fields) < 2 || string(fields[1]) != "kB" {
		return 0
	}
	n, err := strconv.ParseInt(string(fields[0]), 10, 64)
	if err != nil {
		return 0
	}
	return n * 1024
}

// between is what was used from one instant to another.
func between(a, b usage) load.CPU {
	return load.CPU{
		UserSeconds:    b.user - a.user,
		SystemSeconds:  b.system - a.system,
		MachineSeconds: b.machine.busy - a.machine.busy,
		OtherShare:     b.others,
		MaxRSSBytes:    peakRSS(),
	}
}

// observeCPU fills in who used the CPUs between two instants so many seconds
// apart. Time is counted in ticks of 10 ms: a short run says nothing.
func observeCPU(o *load.Observed, a, b usage, seconds float64) {
	if seconds < 0.5 {
		o.BusiestWorker = 0
		return
	}
	own := b.user - a.user + b.system - a.system
	o.CPUs = runtime.NumCPU()
	o.Others = b.others
	o.Own = own / (seconds * float64(o.CPUs))
	busy := b.machine.busy - a.machine.busy
	if all := busy + b.machine.idle - a.machine.idle; all > 0 {
		o.Busy = busy / all
		o.OthersMost = max(busy-own, 0) / all
	}
}
