package run

import (
	"encoding/binary"
	"net/netip"
	"syscall"
	"unsafe"

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
