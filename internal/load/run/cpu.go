package run

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
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
	// busy and idle are all CPUs' since boot; both 0 where /proc/stat is not there.
	busy, idle float64
}

func readUsage() usage {
	var u usage
	var ru unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &ru) == nil {
		u.user, u.system = seconds(ru.Utime), seconds(ru.Stime)
	}
	if f, err := os.Open("/proc/stat"); err == nil {
		u.busy, u.idle, _ = parseStat(f)
		f.Close()
	}
	return u
}

func seconds(t unix.Timeval) float64 { return float64(t.Sec) + float64(t.Usec)/1e6 }

// parseStat adds up the first line of /proc/stat (proc_stat(5)), in seconds.
// Guest time is contained in user time, stolen time is nobody's here.
func parseStat(r io.Reader) (busy, idle float64, err error) {
	line, err := bufio.NewReader(r).ReadString('\n')
	fields := strings.Fields(line)
	if len(fields) < 5 || fields[0] != "cpu" {
		return 0, 0, fmt.Errorf("read /proc/stat: unexpected first line %q (%v)", line, err)
	}
	const nUser, nIdle, nIOWait, nSteal = 0, 3, 4, 7
	for i, text := range fields[1:] {
		ticks, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("read /proc/stat: %w", err)
		}
		switch {
		case i == nIdle || i == nIOWait:
			idle += float64(ticks) / userHz
		case i >= nUser && i < nSteal:
			busy += float64(ticks) / userHz
		}
	}
	return busy, idle, nil
}

// threadSeconds is the calling thread's processor time.
func threadSeconds() float64 {
	var ru unix.Rusage
	if unix.Getrusage(unix.RUSAGE_THREAD, &ru) != nil {
		return 0
	}
	return seconds(ru.Utime) + seconds(ru.Stime)
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
		MachineSeconds: b.busy - a.busy,
		MaxRSSBytes:    peakRSS(),
	}
}

// idleShare of all CPUs' time between two instants; 0 where it is not known.
func idleShare(a, b usage) float64 {
	idle, all := b.idle-a.idle, b.idle-a.idle+b.busy-a.busy
	if all <= 0 {
		return 0
	}
	return idle / all
}
