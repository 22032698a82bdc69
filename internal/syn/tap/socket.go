package tap

import (
	"fmt"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/privilege"
)

const (
	// batch segments are taken by one system call, and mostAtOnce at one look.
	batch      = 64
	mostAtOnce = 1 << 14
	// bufferBytes is what waits in the kernel between two looks, its own bookkeeping
	// included: some thousand segments.
	bufferBytes = 4 << 20
)

// socket is a packet socket (packet(7)) that does not block.
type socket struct {
	fd int
	// version is that of IP where the socket has one only.
	version  int
	messages [batch]message
	vectors  [batch]unix.Iovec
	buffers  [batch][keepBytes]byte
}

// message is a struct mmsghdr (recvmmsg(2)).
type message struct {
	hdr    unix.Msghdr
	length uint32
}

// newSocket has its filter before it is bound, so that nothing else ever waits in it.
func newSocket(protocol uint16, filter []bpf.RawInstruction) (*socket, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open a packet socket (CONFIG_PACKET): %w", privilege.Denied(err, privilege.NetRaw))
	}
	s := &socket{fd: fd}
	for i := range s.messages {
		s.vectors[i].Base = &s.buffers[i][0]
		s.vectors[i].SetLen(keepBytes)
		s.messages[i].hdr.Iov = &s.vectors[i]
		s.messages[i].hdr.SetIovlen(1)
	}
	if err = s.attach(filter); err == nil {
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, bufferBytes) != nil {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, bufferBytes)
		}
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: bigEndian(protocol)})
	}
	if err != nil {
		s.close()
		return nil, fmt.Errorf("set up a packet socket: %w", err)
	}
	return s, nil
}

func bigEndian(v uint16) uint16 {
	b := [2]byte{byte(v >> 8), byte(v)}
	return *(*uint16)(unsafe.Pointer(&b))
}

// attach replaces the filter.
func (s *socket) attach(filter []bpf.RawInstruction) error {
	program := make([]unix.SockFilter, len(filter))
	for i, in := range filter {
		program[i] = unix.SockFilter{Code: in.Op, Jt: in.Jt, Jf: in.Jf, K: in.K}
	}
	prog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	if err := unix.SetsockoptSockFprog(s.fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &prog); err != nil {
		return fmt.Errorf("attach a filter to a packet socket: %w", err)
	}
	return nil
}

// receive passes on what waits, from the IP header on, and tells how much that was.
func (s *socket) receive(fn func(version int, b []byte)) (n int, err error) {
	for n < mostAtOnce {
		got, _, errno := unix.Syscall6(unix.SYS_RECVMMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&s.messages[0])), batch, unix.MSG_DONTWAIT, 0, 0)
		switch errno {
		case 0:
		case unix.EAGAIN, unix.EINTR:
			return n, nil
		case unix.ENETDOWN: // an interface went away or down; others go on
			continue
		default:
			return n, fmt.Errorf("read a packet socket: %w", errno)
		}
		for i := range int(got) {
			if b := s.buffers[i][:min(int(s.messages[i].length), keepBytes)]; len(b) > 0 {
				fn(int(b[0]>>4), b)
			}
		}
		n += int(got)
		if got < batch {
			return n, nil
		}
	}
	return n, nil
}

// lost is how many segments found no room since it was last asked.
func (s *socket) lost() uint64 {
	if s == nil {
		return 0
	}
	stats, err := unix.GetsockoptTpacketStats(s.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
	if err != nil {
		return 0
	}
	return uint64(stats.Drops)
}

func (s *socket) close() {
	if s != nil {
		unix.Close(s.fd)
	}
}
