package collect

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// process is a line of /proc/PID/stat (proc_pid_stat(5)), as far as it counts here.
type process struct {
	parent int
	// ticks of the process and of its children that have ended.
	ticks uint64
}

// userHZ is the rate of ticks in /proc, on every architecture that natkit runs on.
const userHZ = 100

// WatchOthers returns a function that returns the share of the machine's CPUs that
// processes other than this one and those it has started used since; 0 where /proc does
// not say.
func WatchOthers() func() float64 {
	before, err := OtherTicks(os.Getpid())
	began := time.Now()
	return func() float64 {
		after, errAfter := OtherTicks(os.Getpid())
		seconds := time.Since(began).Seconds() * float64(runtime.NumCPU())
		if err != nil || errAfter != nil || after < before || seconds <= 0 {
			return 0
		}
		return float64(after-before) / userHZ / seconds
	}
}

// OtherTicks is the CPU time in ticks of all processes but a process, what it has
// started and the kernel's threads, which work for whoever causes packets. Its growth is
// what others have used: the time of a child that ends goes over to its parent.
func OtherTicks(own int) (uint64, error) {
	paths, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil || len(paths) == 0 {
		return 0, fmt.Errorf("read the CPU time of other processes: no processes in /proc")
	}
	all := map[int]process{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		if pid, p, ok := parseProcess(text); ok {
			all[pid] = p
		}
	}
	return otherTicks(all, own), nil
}

// kthreadd is the parent of the kernel's threads.
const kthreadd = 2

func otherTicks(all map[int]process, own int) (ticks uint64) {
	for pid, p := range all {
		if pid != kthreadd && !descends(all, pid, own) && p.parent != kthreadd {
			ticks += p.ticks
		}
	}
	return ticks
}

func descends(all map[int]process, pid, from int) bool {
	for range len(all) { // what was read is no instant: it may have a circle
		if pid == from {
			return true
		}
		p, there := all[pid]
		if !there {
			return false
		}
		pid = p.parent
	}
	return false
}

// parseProcess takes the fields behind the name, which may have anything in it.
func parseProcess(text []byte) (pid int, p process, ok bool) {
	open, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if open < 0 || end < open {
		return 0, p, false
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text[:open])))
	fields := strings.Fields(string(text[end+1:]))
	const ppid, utime, cstime = 1, 11, 14
	if err != nil || len(fields) <= cstime {
		return 0, p, false
	}
	if p.parent, err = strconv.Atoi(fields[ppid]); err != nil {
		return 0, p, false
	}
	for _, field := range fields[utime : cstime+1] {
		n, err := strconv.ParseUint(field, 10, 64)
		if err != nil {
			return 0, p, false
		}
		p.ticks += n
	}
	return pid, p, true
}
