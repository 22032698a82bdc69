package run

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/netns"
	"golang.org/x/sys/unix"
)

// caller makes system calls that do not block, past Go's scheduler, and counts
// them. It belongs to one thread.
type caller struct {
	count int64
	waits int64 // calls of count that asked epoll: how many depends on the scheduler
	opt   int32 // option values, here so that they are not allocated
	size  uint32
	info  unix.TCPInfo
	wait  unix.Timespec
	event unix.EpollEvent
	// noWait2 is set where epoll_pwait2 (Linux 5.11) is missing.
	noWait2 bool
}

// restart counts from now on: what prepared the run is no part of it.
func (c *caller) restart() { c.count, c.waits = 0, 0 }

func (c *caller) raw(trap, a, b, d uintptr) (uintptr, syscall.Errno) {
	c.count++
	r, _, e := unix.RawSyscall(trap, a, b, d)
	return r, e
}

func (c *caller) socket(family int) (int32, syscall.Errno) {
	r, e := c.raw(unix.SYS_SOCKET, uintptr(family), unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	return int32(r), e
}

func (c *caller) connect(fd int32, to *sockaddr) syscall.Errno {
	_, e := c.raw(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&to.raw)), uintptr(to.size))
	return e
}

func (c *caller) bind(fd int32, to *sockaddr) syscall.Errno {
	_, e := c.raw(unix.SYS_BIND, uintptr(fd), uintptr(unsafe.Pointer(&to.raw)), uintptr(to.size))
	return e
}

func (c *caller) close(fd int32) { c.raw(unix.SYS_CLOSE, uintptr(fd), 0, 0) }

func (c *caller) shutdown(fd int32) syscall.Errno {
	_, e := c.raw(unix.SYS_SHUTDOWN, uintptr(fd), unix.SHUT_WR, 0)
	return e
}

func (c *caller) setOption(fd int32, level, name int, value int32) syscall.Errno {
	c.opt = value
	c.count++
	_, _, e := unix.RawSyscall6(unix.SYS_SETSOCKOPT, uintptr(fd), uintptr(level), uintptr(name), uintptr(unsafe.Pointer(&c.opt)), 4, 0)
	return e
}

// resetOnClose makes close send RST (SO_LINGER with time 0).
func (c *caller) resetOnClose(fd int32) {
	linger := unix.Linger{Onoff: 1}
	c.count++
	unix.RawSyscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_LINGER, uintptr(unsafe.Pointer(&linger)), unsafe.Sizeof(linger), 0)
}

// socketError takes the pending error (SO_ERROR).
func (c *caller) socketError(fd int32) syscall.Errno {
	c.opt, c.size = 0, 4
	c.count++
	_, _, e := unix.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_ERROR, uintptr(unsafe.Pointer(&c.opt)), uintptr(unsafe.Pointer(&c.size)), 0)
	if e != 0 {
		return e
	}
	return syscall.Errno(c.opt)
}

// timestamps reports whether the connection uses TCP timestamps (RFC 7323).
func (c *caller) timestamps(fd int32) bool {
	c.size = uint32(unsafe.Sizeof(c.info))
	c.count++
	_, _, e := unix.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.IPPROTO_TCP, unix.TCP_INFO, uintptr(unsafe.Pointer(&c.info)), uintptr(unsafe.Pointer(&c.size)), 0)
	const optTimestamps = 1 // TCPI_OPT_TIMESTAMPS, include/uapi/linux/tcp.h
	return e == 0 && c.info.Options&optTimestamps != 0
}

func (c *caller) send(fd int32, b []byte) (int, syscall.Errno) {
	c.count++
	r, _, e := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), unix.MSG_NOSIGNAL, 0, 0)
	return int(r), e
}

func (c *caller) receive(fd int32, b []byte) (int, syscall.Errno) {
	c.count++
	r, _, e := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), 0, 0, 0)
	return int(r), e
}

func (c *caller) accept(fd int32) (int32, syscall.Errno) {
	c.count++
	r, _, e := unix.RawSyscall6(unix.SYS_ACCEPT4, uintptr(fd), 0, 0, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0, 0)
	return int32(r), e
}

// watch adds fd to the epoll; data comes back with its events.
func (c *caller) watch(epoll, fd, data int32, events uint32) syscall.Errno {
	c.event = unix.EpollEvent{Events: events, Fd: data}
	c.count++
	_, _, e := unix.RawSyscall6(unix.SYS_EPOLL_CTL, uintptr(epoll), unix.EPOLL_CTL_ADD, uintptr(fd), uintptr(unsafe.Pointer(&c.event)), 0, 0)
	return e
}

func (c *caller) unwatch(epoll, fd int32) {
	c.count++
	unix.RawSyscall6(unix.SYS_EPOLL_CTL, uintptr(epoll), unix.EPOLL_CTL_DEL, uintptr(fd), 0, 0, 0)
}

// poll waits up to ns nanoseconds for events. Only a wait that may block goes
// through Go's scheduler.
func (c *caller) poll(epoll int32, events []unix.EpollEvent, ns int64) (int, syscall.Errno) {
	c.count++
	c.waits++
	at := uintptr(unsafe.Pointer(unsafe.SliceData(events)))
	if ns <= 0 {
		r, _, e := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(epoll), at, uintptr(len(events)), 0, 0, 0)
		return int(r), e
	}
	if !c.noWait2 {
		c.wait = unix.NsecToTimespec(ns)
		r, _, e := unix.Syscall6(unix.SYS_EPOLL_PWAIT2, uintptr(epoll), at, uintptr(len(events)), uintptr(unsafe.Pointer(&c.wait)), 0, 0)
		if e != unix.ENOSYS {
			return int(r), e
		}
		c.noWait2 = true
	}
	// Rounded up: a wait that ends too early would be repeated at once.
	ms := min((ns+999_999)/1_000_000, 1<<30)
	r, _, e := unix.Syscall6(unix.SYS_EPOLL_PWAIT, uintptr(epoll), at, uintptr(len(events)), uintptr(ms), 0, 0)
	return int(r), e
}

// sockaddr is a struct sockaddr_in or _in6 as the kernel reads it.
type sockaddr struct {
	raw  [unix.SizeofSockaddrInet6]byte
	size uint8
}

// newSockaddr makes one; scope is the number of the interface that the address
// belongs to, which only link-local addresses have.
func newSockaddr(a netip.AddrPort, scope uint32) sockaddr {
	var s sockaddr
	ip := a.Addr().Unmap()
	binary.BigEndian.PutUint16(s.raw[2:], a.Port())
	if ip.Is4() {
		binary.NativeEndian.PutUint16(s.raw[:], unix.AF_INET)
		b := ip.As4()
		copy(s.raw[4:], b[:])
		s.size = unix.SizeofSockaddrInet4
		return s
	}
	binary.NativeEndian.PutUint16(s.raw[:], unix.AF_INET6)
	b := ip.As16()
	copy(s.raw[8:], b[:])
	binary.NativeEndian.PutUint32(s.raw[24:], scope)
	s.size = unix.SizeofSockaddrInet6
	return s
}

func (s sockaddr) withPort(port uint16) sockaddr {
	binary.BigEndian.PutUint16(s.raw[2:], port)
	return s
}

// addr is the address without the port.
func (s *sockaddr) addr() netip.Addr {
	if s.size == unix.SizeofSockaddrInet4 {
		return netip.AddrFrom4([4]byte(s.raw[4:8]))
	}
	return netip.AddrFrom16([16]byte(s.raw[8:24]))
}

// unspecified makes connect break a connection up, so that the socket can be
// used for another one (connect(2), AF_UNSPEC).
func unspecified() sockaddr {
	var s sockaddr
	binary.NativeEndian.PutUint16(s.raw[:], unix.AF_UNSPEC)
	s.size = unix.SizeofSockaddrInet4
	return s
}

func family(a netip.Addr) int {
	if a.Unmap().Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

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
// contained in user time, stolen time is not counted.
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

// observeCPU fills in who used the CPUs between two instants that many seconds
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
	numbers, err := openFiles()
	if err != nil {
		return nil // without /proc the copies stay open until the worker ends
	}
	link := make([]byte, 64)
	for _, fd := range numbers {
		if fd <= 2 || slices.Contains(keep, fd) {
			continue
		}
		n, err := unix.Readlink("/proc/thread-self/fd/"+strconv.Itoa(fd), link)
		if err != nil {
			continue
		}
		if to := string(link[:n]); !strings.HasPrefix(to, "anon_inode:[eventpoll") && !strings.HasPrefix(to, "anon_inode:[eventfd") {
			unix.Close(fd)
		}
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

// openFiles lists the calling thread's descriptors. It does without package os,
// which hands files to Go's poller.
func openFiles() ([]int, error) {
	dir, err := unix.Open("/proc/thread-self/fd", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(dir)
	var numbers []int
	buf := make([]byte, 8192)
	for {
		n, err := unix.Getdents(dir, buf)
		if err != nil {
			return nil, err
		}
		if n == 0 {
			return numbers, nil
		}
		_, _, names := unix.ParseDirent(buf[:n], -1, nil)
		for _, name := range names {
			if fd, err := strconv.Atoi(name); err == nil && fd != dir {
				numbers = append(numbers, fd)
			}
		}
	}
}

// zoneNumbers finds the interfaces that addresses name, such as fe80::1%eth0, in
// the namespace where they will be used; nil is the caller's.
func zoneNumbers(ns *netns.Handle, addrs []netip.Addr) (map[string]uint32, error) {
	numbers := map[string]uint32{}
	read := func() error {
		for _, a := range addrs {
			zone := a.Zone()
			if _, known := numbers[zone]; known {
				continue
			}
			n, err := zoneNumber(zone)
			if err != nil {
				return fmt.Errorf("address %v: %w", a, err)
			}
			numbers[zone] = n
		}
		return nil
	}
	return numbers, ns.Do(read)
}

// zoneNumber is an interface's index by its name or number, 0 for no zone.
func zoneNumber(zone string) (uint32, error) {
	if zone == "" {
		return 0, nil
	}
	if n, err := strconv.ParseUint(zone, 10, 31); err == nil && n > 0 {
		return uint32(n), nil
	}
	i, err := net.InterfaceByName(zone)
	if err != nil {
		return 0, fmt.Errorf("interface %q: %w; `ip link` shows them", zone, err)
	}
	return uint32(i.Index), nil
}
