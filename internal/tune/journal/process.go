package journal

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Process identifies a process beyond the reuse of its number.
type Process struct {
	PID int `json:"pid"`
	// StartTicks is field 22 of /proc/PID/stat: clock ticks after boot.
	StartTicks uint64 `json:"start_ticks"`
	// Namespace is the inode of the PID namespace in which PID counts; 0 unknown.
	Namespace uint64 `json:"pid_namespace,omitempty"`
}

// ReadProcess identifies a running process.
func ReadProcess(procRoot string, pid int) (Process, error) {
	b, err := os.ReadFile(filepath.Join(procRoot, strconv.Itoa(pid), "stat"))
	if err != nil {
		return Process{}, fmt.Errorf("identify process %d: %w", pid, err)
	}
	ticks, err := parseStartTicks(b)
	if err != nil {
		return Process{}, fmt.Errorf("identify process %d: %w", pid, err)
	}
	return Process{PID: pid, StartTicks: ticks, Namespace: NamespaceInode(procRoot, "pid")}, nil
}

// parseStartTicks reads proc_pid_stat(5). The second field is the command in
// parentheses and may itself contain blanks and parentheses. A zombie is dead.
func parseStartTicks(stat []byte) (uint64, error) {
	end := bytes.LastIndexByte(stat, ')')
	if end < 0 {
		return 0, fmt.Errorf("stat has no command field")
	}
	fields := strings.Fields(string(stat[end+1:]))
	const state, start = 0, 22 - 3 // fields 3 and 22, counted from 3
	if len(fields) <= start {
		return 0, fmt.Errorf("stat has %d fields after the command, expected more than %d", len(fields), start)
	}
	if fields[state] == "Z" || fields[state] == "X" {
		return 0, os.ErrProcessDone
	}
	return strconv.ParseUint(fields[start], 10, 64)
}

// Alive reports whether this very process runs. One of another PID namespace cannot be
// found by its number and counts as alive: another process's change is never undone on
// a guess. The lock of a transaction's owner is more reliable (Transaction.OwnerLock).
func (p Process) Alive(procRoot string) bool {
	if p.PID <= 0 {
		return false
	}
	if here := NamespaceInode(procRoot, "pid"); p.Namespace != 0 && here != 0 && p.Namespace != here {
		return true
	}
	now, err := ReadProcess(procRoot, p.PID)
	return err == nil && now.StartTicks == p.StartTicks
}

// NamespaceInode is the inode of the calling thread's namespace of a type ("net",
// "pid"); 0 where it cannot be read.
func NamespaceInode(procRoot, kind string) uint64 {
	inode, _ := readNamespace(procRoot, "thread-self", kind)
	return inode
}

// InitialNamespace is the inode of the namespace of a type in which the machine's
// first process (or the container's) runs. It takes root to look at it.
func InitialNamespace(procRoot, kind string) (uint64, error) {
	return readNamespace(procRoot, "1", kind)
}

func readNamespace(procRoot, process, kind string) (uint64, error) {
	link, err := os.Readlink(filepath.Join(procRoot, process, "ns", kind))
	if err != nil {
		return 0, err
	}
	text, _ := strings.CutPrefix(link, kind+":[")
	return strconv.ParseUint(strings.TrimSuffix(text, "]"), 10, 64)
}

// ReadBootID is /proc/sys/kernel/random/boot_id, new at each boot.
func ReadBootID(procRoot string) (string, error) {
	b, err := os.ReadFile(filepath.Join(procRoot, "sys/kernel/random/boot_id"))
	if err != nil {
		return "", fmt.Errorf("read the boot id: %w", err)
	}
	id := strings.TrimSpace(string(b))
	if id == "" {
		return "", fmt.Errorf("read the boot id: %s/sys/kernel/random/boot_id is empty", procRoot)
	}
	return id, nil
}

// Clock returns the time; a parameter so that tests can set it.
type Clock interface {
	Now() time.Time
	// Boottime is the time since boot, suspended time included (CLOCK_BOOTTIME).
	Boottime() time.Duration
}

// SystemClock is the machine's.
type SystemClock struct{}

// Now is the wall clock's time.
func (SystemClock) Now() time.Time { return time.Now() }

// Boottime reads CLOCK_BOOTTIME, which every kernel since 2.6.39 has.
func (SystemClock) Boottime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}
