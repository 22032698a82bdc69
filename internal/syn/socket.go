package syn

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"unsafe"

	"github.com/natkit/natkit/internal/frame"
	nlsocket "github.com/natkit/natkit/internal/netlink/socket"
	"github.com/natkit/natkit/internal/netns"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// asker queries TCP sockets of the namespace in which it was made (sock_diag(7)).
type asker struct{ conn *nlsocket.Conn }

func newAsker() (*asker, error) {
	conn, err := nlsocket.Dial(nil, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, fmt.Errorf("ask for sockets: %w (needs CONFIG_INET_DIAG)", err)
	}
	return &asker{conn}, nil
}

func (a *asker) close() {
	if a != nil {
		a.conn.Close()
	}
}

// The layout of struct inet_diag_req_v2 and inet_diag_msg (include/uapi/linux/inet_diag.h).
const (
	requestBytes = 56
	answerBytes  = 72
	sockDiag     = 20 // SOCK_DIAG_BY_FAMILY
	stateListen  = 10 // TCP_LISTEN
	stateAt      = 1
	idAt         = 4 // struct inet_diag_sockid in the answer
	requestIDAt  = 8
)

// request queries sockets of a family in some states; an exact one has a tuple, the local end
// first.
func request(family uint8, states uint32, local, remote netip.AddrPort) []byte {
	b := make([]byte, requestBytes)
	b[0], b[1] = family, unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(b[4:], states)
	id := b[requestIDAt:]
	binary.BigEndian.PutUint16(id[0:], local.Port())
	binary.BigEndian.PutUint16(id[2:], remote.Port())
	put := func(to []byte, a netip.Addr) {
		if a.IsValid() {
			copy(to, a.AsSlice())
		}
	}
	put(id[4:20], local.Addr())
	put(id[20:36], remote.Addr())
	for i := 40; i < 48; i++ { // INET_DIAG_NOCOOKIE
		id[i] = 0xff
	}
	return b
}

func family(a netip.Addr) uint8 {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// state returns that of the socket of a tuple, client first; 0 for none, or if unknown.
func (a *asker) state(t frame.Tuple) uint8 {
	answers, err := a.conn.Ask(sockDiag, 0, request(family(t.Dst.Addr()), ^uint32(0), t.Dst, t.Src))
	if err != nil || len(answers) == 0 || len(answers[0].Body) < answerBytes {
		return 0
	}
	if s := answers[0].Body[stateAt]; s != stateListen {
		return s
	}
	return 0 // the listener answers for tuples that have no socket of their own
}

// listening is where somebody listens.
type listening struct {
	// ends are addresses with ports; ports are those at which all addresses are.
	ends  map[netip.AddrPort]bool
	ports map[uint16]anyOf
	own   map[netip.Addr]bool
}

// anyOf says for which versions of IP a port listens at all addresses.
type anyOf struct{ v4, v6 bool }

// to reports whether a segment to that end meets a listener.
func (l *listening) to(end netip.AddrPort) bool {
	if l.ends[end] {
		return true
	}
	any := l.ports[end.Port()]
	if end.Addr().Is4() && !any.v4 || !end.Addr().Is4() && !any.v6 {
		return false
	}
	return l.own[end.Addr()] || end.Addr().IsLoopback()
}

// listeners reads who listens; the caller is in the namespace.
func (a *asker) listeners() (*listening, error) {
	l := &listening{ends: map[netip.AddrPort]bool{}, ports: map[uint16]anyOf{}, own: map[netip.Addr]bool{}}
	for _, f := range []uint8{unix.AF_INET, unix.AF_INET6} {
		answers, err := a.conn.Ask(sockDiag, unix.NLM_F_DUMP, request(f, 1<<stateListen, netip.AddrPort{}, netip.AddrPort{}))
		if err != nil {
			return nil, fmt.Errorf("list the listening sockets: %w (needs CONFIG_INET_DIAG)", err)
		}
		for _, answer := range answers {
			l.add(answer.Body)
		}
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list the namespace's addresses: %w", err)
	}
	for _, addr := range addrs {
		if n, ok := addr.(*net.IPNet); ok {
			own, _ := netip.AddrFromSlice(n.IP)
			l.own[own.Unmap()] = true
		}
	}
	return l, nil
}

func (l *listening) add(answer []byte) {
	if len(answer) < answerBytes {
		return
	}
	id := answer[idAt:]
	port := binary.BigEndian.Uint16(id)
	if answer[0] == unix.AF_INET {
		l.addEnd(netip.AddrPortFrom(netip.AddrFrom4([4]byte(id[4:])), port), false)
		return
	}
	l.addEnd(netip.AddrPortFrom(netip.AddrFrom16([16]byte(id[4:])), port), true)
}

// addEnd takes an IPv6 socket on all addresses for one of IPv4, too, unless it is IPV6_V6ONLY,
// which the dump does not have.
func (l *listening) addEnd(end netip.AddrPort, both bool) {
	if !end.Addr().IsUnspecified() {
		l.ends[netip.AddrPortFrom(end.Addr().Unmap(), end.Port())] = true
		return
	}
	any := l.ports[end.Port()]
	any.v4, any.v6 = true, any.v6 || both
	l.ports[end.Port()] = any
}

const (
	// batch segments are read by one system call, and mostAtOnce per sample.
	batch      = 64
	mostAtOnce = 1 << 14
	// bufferBytes is the kernel's buffer between two samples: some thousand segments.
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
		return nil, fmt.Errorf("open a packet socket (CONFIG_PACKET): %w", netns.Denied(err, netns.NetRaw))
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

// receive calls fn for waiting packets, from the IP header on, and returns their number.
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
