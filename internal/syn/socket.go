package syn

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"net"
	"net/netip"

	"github.com/natkit/natkit/internal/frame"
	nlsocket "github.com/natkit/natkit/internal/netlink/socket"
	"github.com/natkit/natkit/internal/netns"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// asker queries TCP sockets of the namespace in which it was made (sock_diag(7)).
type asker struct {
	conn *nlsocket.Conn
	own  map[netip.Addr]bool // addresses
	// known are the answers of listens so far, mostEnds at most.
	known map[netip.AddrPort]bool
	// bound are the ends of the listeners that are bound to an interface, which a query for an end
	// does not find.
	bound map[netip.AddrPort]bool
}

const mostEnds = 1 << 12

// newAsker requires that the caller is in the namespace.
func newAsker() (*asker, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list the namespace's addresses: %w", err)
	}
	a := &asker{own: map[netip.Addr]bool{}, known: map[netip.AddrPort]bool{}, bound: map[netip.AddrPort]bool{}}
	for _, addr := range addrs {
		if n, ok := addr.(*net.IPNet); ok {
			own, _ := netip.AddrFromSlice(n.IP)
			a.own[own.Unmap()] = true
		}
	}
	a.conn, err = nlsocket.Dial(nil, unix.NETLINK_SOCK_DIAG)
	for _, any := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		if err == nil {
			err = a.findBound(any)
		}
	}
	if err != nil {
		a.close()
		return nil, fmt.Errorf("query TCP sockets: %w (needs CONFIG_INET_DIAG)", err)
	}
	return a, nil
}

func (a *asker) close() {
	if a != nil && a.conn != nil {
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

// request queries sockets in some states; an exact one has a tuple, the local end first.
func request(states uint32, local, remote netip.AddrPort) []byte {
	b := make([]byte, requestBytes)
	b[0], b[1] = unix.AF_INET6, unix.IPPROTO_TCP
	if local.Addr().Is4() {
		b[0] = unix.AF_INET
	}
	binary.NativeEndian.PutUint32(b[4:], states)
	id := b[requestIDAt:]
	binary.BigEndian.PutUint16(id[0:], local.Port())
	binary.BigEndian.PutUint16(id[2:], remote.Port())
	copy(id[4:20], local.Addr().AsSlice())
	copy(id[20:36], remote.Addr().AsSlice())
	for i := 40; i < 48; i++ { // INET_DIAG_NOCOOKIE
		id[i] = 0xff
	}
	return b
}

// findBound notes the listeners of a family that are bound to an interface.
func (a *asker) findBound(any netip.Addr) error {
	answers, err := a.conn.Ask(sockDiag, unix.NLM_F_DUMP, request(1<<stateListen, netip.AddrPortFrom(any, 0), netip.AddrPort{}))
	for _, m := range answers {
		if len(m.Body) >= answerBytes && binary.NativeEndian.Uint32(m.Body[idAt+36:]) != 0 {
			a.bound[netip.AddrPortFrom(boundTo(m.Body), binary.BigEndian.Uint16(m.Body[idAt:]))] = true
		}
	}
	return err
}

// boundTo is the local address of a socket.
func boundTo(answer []byte) netip.Addr {
	if answer[0] == unix.AF_INET {
		return netip.AddrFrom4([4]byte(answer[idAt+4:]))
	}
	return netip.AddrFrom16([16]byte(answer[idAt+4:]))
}

// find returns the state of the socket that receives the segments of a tuple, local end first, and
// the address that it is bound to; 0 for none, or if unknown.
func (a *asker) find(local, remote netip.AddrPort) (state uint8, bound netip.Addr) {
	answers, err := a.conn.Ask(sockDiag, 0, request(^uint32(0), local, remote))
	if err != nil || len(answers) == 0 || len(answers[0].Body) < answerBytes {
		return 0, bound
	}
	return answers[0].Body[stateAt], boundTo(answers[0].Body)
}

// state returns that of the socket of a tuple, client first; 0 for none, or if unknown.
func (a *asker) state(t frame.Tuple) uint8 {
	state, _ := a.find(t.Dst, t.Src)
	if state == stateListen { // the listener answers for tuples that have no socket of their own
		return 0
	}
	return state
}

// listens reports whether a segment to an end is for a listening socket: one bound to that address,
// or one of all addresses if that address is the namespace's.
func (a *asker) listens(end netip.AddrPort) bool {
	known, ok := a.known[end]
	if !ok {
		state, bound := a.find(end, netip.AddrPort{})
		own := a.own[end.Addr()] || end.Addr().IsLoopback()
		known = state == stateListen && (!bound.IsUnspecified() || own) || a.bound[end] || own &&
			(a.bound[netip.AddrPortFrom(netip.IPv4Unspecified(), end.Port())] || a.bound[netip.AddrPortFrom(netip.IPv6Unspecified(), end.Port())])
		if len(a.known) == mostEnds {
			clear(a.known)
		}
		a.known[end] = known
	}
	return known
}

const (
	mostAtOnce = 1 << 14 // segments per sample
	// bufferBytes is the kernel's buffer between two samples: some thousand segments.
	bufferBytes = 4 << 20
)

// socket is a packet socket (packet(7)) that does not block. Its filter keeps one in a number of
// connections.
type socket struct {
	fd     int
	filter func(sample int) ([]bpf.RawInstruction, error)
	buf    [keepBytes]byte
}

// newSocket has its filter before it is bound, so that nothing else ever waits in it.
func newSocket(protocol uint16, sample int, filter func(sample int) ([]bpf.RawInstruction, error)) (*socket, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open a packet socket (CONFIG_PACKET): %w", netns.Denied(err, netns.NetRaw))
	}
	s := &socket{fd: fd, filter: filter}
	if err = s.attach(sample); err == nil {
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, bufferBytes) != nil {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, bufferBytes)
		}
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: bits.ReverseBytes16(protocol)})
	}
	if err != nil {
		s.close()
		return nil, fmt.Errorf("set up a packet socket: %w", err)
	}
	return s, nil
}

// attach replaces the filter by one for one in sample connections.
func (s *socket) attach(sample int) error {
	filter, err := s.filter(sample)
	if err != nil {
		return err
	}
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
	for ; n < mostAtOnce; n++ {
		got, err := unix.Read(s.fd, s.buf[:])
		switch {
		case errors.Is(err, unix.ENETDOWN): // an interface was removed or went down; others go on
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
			return n, nil
		case err != nil:
			return n, fmt.Errorf("read a packet socket: %w", err)
		case got > 0:
			fn(int(s.buf[0]>>4), s.buf[:got])
		}
	}
	return n, nil
}

// lost returns the number of segments that found no room since the last call.
func (s *socket) lost() uint64 {
	stats, err := unix.GetsockoptTpacketStats(s.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
	if err != nil {
		return 0
	}
	return uint64(stats.Drops)
}

func (s *socket) close() { unix.Close(s.fd) }
