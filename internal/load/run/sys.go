package run

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/load"
	"golang.org/x/sys/unix"
)

// caller makes system calls that do not block, without Go's scheduler, and counts them. It belongs
// to one thread.
type caller struct {
	count int64
	waits int64 // calls of count that wait for events: how many depends on the scheduler
	// Arguments that would else be allocated.
	value  int32
	size   uint32
	linger unix.Linger
	info   unix.TCPInfo
	name   sockaddr
	event  unix.EpollEvent
	// noWait2 is set if epoll_pwait2 (Linux 5.11) is missing.
	noWait2 bool
}

// restart counts from now on: what prepared the run is no part of it.
func (c *caller) restart() { c.count, c.waits = 0, 0 }

//go:uintptrescapes
func (c *caller) call(trap uintptr, fd int32, a, b, d, e, f uintptr) (uintptr, syscall.Errno) {
	c.count++
	r, _, errno := unix.RawSyscall6(trap, uintptr(fd), a, b, d, e, f)
	return r, errno
}

// socket makes a socket of a kind (SOCK_STREAM, SOCK_DGRAM) that does not block.
func (c *caller) socket(family, kind int) (int32, syscall.Errno) {
	r, errno := c.call(unix.SYS_SOCKET, int32(family), uintptr(kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC), 0, 0, 0, 0)
	return int32(r), errno
}

func (c *caller) connect(fd int32, to *sockaddr) syscall.Errno {
	_, errno := c.call(unix.SYS_CONNECT, fd, uintptr(unsafe.Pointer(&to.raw)), uintptr(to.size), 0, 0, 0)
	return errno
}

func (c *caller) bind(fd int32, to *sockaddr) syscall.Errno {
	_, errno := c.call(unix.SYS_BIND, fd, uintptr(unsafe.Pointer(&to.raw)), uintptr(to.size), 0, 0, 0)
	return errno
}

// localName reads the address that the socket is bound to (getsockname(2)).
func (c *caller) localName(fd int32, to *sockaddr) syscall.Errno {
	c.size = uint32(len(to.raw))
	_, errno := c.call(unix.SYS_GETSOCKNAME, fd, uintptr(unsafe.Pointer(&to.raw)), uintptr(unsafe.Pointer(&c.size)), 0, 0, 0)
	return errno
}

func (c *caller) close(fd int32) { c.call(unix.SYS_CLOSE, fd, 0, 0, 0, 0, 0) }

func (c *caller) shutdown(fd int32) syscall.Errno {
	_, errno := c.call(unix.SYS_SHUTDOWN, fd, unix.SHUT_WR, 0, 0, 0, 0)
	return errno
}

func (c *caller) setOption(fd int32, level, name int, value int32) syscall.Errno {
	c.value = value
	_, errno := c.call(unix.SYS_SETSOCKOPT, fd, uintptr(level), uintptr(name), uintptr(unsafe.Pointer(&c.value)), unsafe.Sizeof(c.value), 0)
	return errno
}

// resetOnClose makes close send RST (SO_LINGER with time 0).
func (c *caller) resetOnClose(fd int32) {
	c.linger = unix.Linger{Onoff: 1}
	c.call(unix.SYS_SETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_LINGER, uintptr(unsafe.Pointer(&c.linger)), unsafe.Sizeof(c.linger), 0)
}

// option reads a socket option into size bytes at to.
func (c *caller) option(fd int32, level, name int, to unsafe.Pointer, size uintptr) syscall.Errno {
	c.size = uint32(size)
	_, errno := c.call(unix.SYS_GETSOCKOPT, fd, uintptr(level), uintptr(name), uintptr(to), uintptr(unsafe.Pointer(&c.size)), 0)
	return errno
}

// socketError returns the pending error (SO_ERROR).
func (c *caller) socketError(fd int32) syscall.Errno {
	if errno := c.option(fd, unix.SOL_SOCKET, unix.SO_ERROR, unsafe.Pointer(&c.value), unsafe.Sizeof(c.value)); errno != 0 {
		return errno
	}
	return syscall.Errno(c.value)
}

// timestamps reports whether the connection uses TCP timestamps (RFC 7323).
func (c *caller) timestamps(fd int32) bool {
	const optTimestamps = 1 // TCPI_OPT_TIMESTAMPS, include/uapi/linux/tcp.h
	errno := c.option(fd, unix.IPPROTO_TCP, unix.TCP_INFO, unsafe.Pointer(&c.info), unsafe.Sizeof(c.info))
	return errno == 0 && c.info.Options&optTimestamps != 0
}

func (c *caller) send(fd int32, b []byte) (int, syscall.Errno) {
	r, errno := c.call(unix.SYS_SENDTO, fd, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), unix.MSG_NOSIGNAL, 0, 0)
	return int(r), errno
}

func (c *caller) receive(fd int32, b []byte) (int, syscall.Errno) {
	r, errno := c.call(unix.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), 0, 0, 0)
	return int(r), errno
}

// watch adds fd to the epoll; data comes back with its events.
func (c *caller) watch(epoll, fd, data int32, events uint32) syscall.Errno {
	c.event = unix.EpollEvent{Events: events, Fd: data}
	_, errno := c.call(unix.SYS_EPOLL_CTL, epoll, unix.EPOLL_CTL_ADD, uintptr(fd), uintptr(unsafe.Pointer(&c.event)), 0, 0)
	return errno
}

func (c *caller) unwatch(epoll, fd int32) {
	c.call(unix.SYS_EPOLL_CTL, epoll, unix.EPOLL_CTL_DEL, uintptr(fd), 0, 0, 0)
}

// accept takes a connection from a listening socket.
func (c *caller) accept(fd int32) (int32, syscall.Errno) {
	r, errno := c.call(unix.SYS_ACCEPT4, fd, 0, 0, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0, 0)
	return int32(r), errno
}

// poll waits up to ns nanoseconds for events. Only a wait that may block uses Go's scheduler.
func (c *caller) poll(epoll int32, events []unix.EpollEvent, ns int64) (int, syscall.Errno) {
	at := uintptr(unsafe.Pointer(unsafe.SliceData(events)))
	c.waits++
	if ns <= 0 {
		r, errno := c.call(unix.SYS_EPOLL_PWAIT, epoll, at, uintptr(len(events)), 0, 0, 0)
		return int(r), errno
	}
	c.count++
	if !c.noWait2 {
		wait := unix.NsecToTimespec(ns)
		r, _, errno := unix.Syscall6(unix.SYS_EPOLL_PWAIT2, uintptr(epoll), at, uintptr(len(events)), uintptr(unsafe.Pointer(&wait)), 0, 0)
		if errno != unix.ENOSYS {
			return int(r), errno
		}
		c.noWait2 = true
	}
	// Rounded up: a wait that ends too early would be repeated at once.
	ms := min((ns+999_999)/1_000_000, 1<<30)
	r, _, errno := unix.Syscall6(unix.SYS_EPOLL_PWAIT, uintptr(epoll), at, uintptr(len(events)), uintptr(ms), 0, 0)
	return int(r), errno
}

// userHz is the rate of ticks in /proc/stat, the same on all Linux architectures.
const userHz = 100

// usage is processor time in seconds: natkit's own, and that of all CPUs, which is 0 without
// /proc/stat.
type usage struct {
	user, system, busy, idle float64
	// others is the share of the machine's CPUs that other processes used.
	others float64
}

func readUsage() (u usage) {
	var ru unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &ru) == nil {
		u.user, u.system = seconds(ru.Utime), seconds(ru.Stime)
	}
	if t, err := collect.ReadCPUTimes(); err == nil {
		u.busy, u.idle = float64(t.All-t.Idle-t.Stolen)/userHz, float64(t.Idle)/userHz
	}
	return u
}

func seconds(t unix.Timeval) float64 { return float64(t.Sec) + float64(t.Usec)/1e6 }

func (u usage) since(before usage) usage {
	return usage{user: u.user - before.user, system: u.system - before.system, busy: u.busy - before.busy, idle: u.idle - before.idle}
}

// report returns the usage of a run that has just ended.
func (u usage) report() load.CPU {
	return load.CPU{UserSeconds: u.user, SystemSeconds: u.system, MachineSeconds: u.busy, OtherShare: u.others, MaxRSSBytes: peakRSS()}
}

// observe notes who used the CPUs in that many seconds. Time is counted in ticks of 10 ms, which
// are too coarse for a short run.
func (u usage) observe(o *load.Observed, seconds float64) {
	if seconds < 0.5 {
		o.BusiestWorker = 0
		return
	}
	own := u.user + u.system
	o.CPUs = runtime.NumCPU()
	o.Others = u.others
	o.Own = own / (seconds * float64(o.CPUs))
	if all := u.busy + u.idle; all > 0 {
		o.Busy = u.busy / all
		o.OthersMost = max(u.busy-own, 0) / all
	}
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

func parsePeak(status []byte) (n int64) {
	_, rest, _ := bytes.Cut(status, []byte("VmHWM:"))
	if _, err := fmt.Sscanf(string(rest[:min(len(rest), 64)]), "%d kB", &n); err != nil {
		return 0
	}
	return n * 1024
}

// reservedFiles are kept free in a worker's table for what is not a connection:
// standard streams, the epoll and event descriptors, Go's own.
const reservedFiles = 64

// fileLimit raises the soft limit of open files to the hard one and returns it.
// It holds per file table, so that workers with tables of their own have it each.
func fileLimit() (int, error) {
	var limit unix.Rlimit
	if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, nil, &limit); err != nil {
		return 0, fmt.Errorf("read the limit of open files: %w", err)
	}
	if limit.Cur < limit.Max {
		raised := unix.Rlimit{Cur: limit.Max, Max: limit.Max}
		if unix.Prlimit(0, unix.RLIMIT_NOFILE, &raised, nil) == nil {
			limit.Cur = limit.Max
		}
	}
	usable := int64(min(limit.Cur, 1<<30)) - reservedFiles
	if usable < 1 {
		return 0, fmt.Errorf("%d open files are allowed, too few for any connection: raise it with `ulimit -n`", limit.Cur)
	}
	return int(usable), nil
}

// privateFiles gives the calling thread, which must be one of [thread.Do], a file table of its own that holds the standard streams, the kept ones and
// the descriptors of Go's poller. Those must stay: the runtime may poll or wake
// itself from any thread, and another file under their number would be written
// to. The rest is closed, because a copy keeps pipes and namespaces alive.
func privateFiles(keep ...int) error {
	if err := startPoller(); err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_FILES); err != nil {
		return fmt.Errorf("give a worker its own file table: %w", err)
	}
	const table = "/proc/thread-self/fd"
	entries, err := os.ReadDir(table)
	if err != nil {
		return nil // without /proc the copies stay open until the worker ends
	}
	for _, e := range entries {
		to, err := os.Readlink(filepath.Join(table, e.Name()))
		fd, numberErr := strconv.Atoi(e.Name())
		if err != nil || numberErr != nil || fd <= 2 || slices.Contains(keep, fd) ||
			strings.HasPrefix(to, "anon_inode:[eventpoll") || strings.HasPrefix(to, "anon_inode:[eventfd") {
			continue
		}
		unix.Close(fd)
	}
	return nil
}

// startPoller makes Go open its poller's descriptors, which it does with the first
// pollable file, so that the table is copied with them. Opened later, they would
// be missing in it, and a garbage collection that a worker takes part in would
// end the program ("netpoll failed").
func startPoller() error {
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make a pipe: %w", err)
	}
	r.Close()
	w.Close()
	return nil
}
