package syn

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/frame"
	nlsocket "github.com/natkit/natkit/internal/netlink/socket"
	"golang.org/x/sys/unix"
)

// asker queries TCP sockets of the namespace in which it was made (sock_diag(7)).
type asker struct {
	conn *nlsocket.Conn
	own  map[netip.Addr]bool // addresses
	// known are the answers of listens so far, mostEnds at most.
	known map[netip.AddrPort]bool
	// ports are those of all listeners, in order.
	ports []uint16
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
	if err == nil {
		_, err = a.list()
	}
	if err != nil {
		a.close()
		return nil, fmt.Errorf("query TCP sockets: %w (needs CONFIG_INET_DIAG)", err)
	}
	return a, nil
}

// list finds the listeners of now, and reports whether their ports changed since the last time.
func (a *asker) list() (changed bool, err error) {
	former := a.ports
	a.ports = nil
	defer func() {
		if err != nil {
			a.ports = former
		}
	}()
	for _, any := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		if err := a.findListeners(any); err != nil {
			return false, err
		}
	}
	slices.Sort(a.ports)
	a.ports = slices.Compact(a.ports)
	if slices.Equal(a.ports, former) {
		return false, nil
	}
	clear(a.known)
	return true, nil
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

// Opening lists the connections of this namespace's programs that wait for an answer to their SYN, their own
// end first. It must be called in the namespace.
func Opening() (all []frame.Tuple, err error) {
	const synSent = 2 // TCP_SYN_SENT
	conn, err := nlsocket.Dial(nil, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, fmt.Errorf("query TCP sockets: %w (needs CONFIG_INET_DIAG)", err)
	}
	defer conn.Close()
	for _, any := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		answers, err := conn.Ask(sockDiag, unix.NLM_F_DUMP, request(1<<synSent, netip.AddrPortFrom(any, 0), netip.AddrPort{}))
		if err != nil {
			return nil, fmt.Errorf("query TCP sockets: %w (needs CONFIG_INET_DIAG)", err)
		}
		for _, m := range answers[:min(len(answers), mostEnds)] {
			if len(m.Body) >= answerBytes {
				all = append(all, tupleOf(m.Body))
			}
		}
	}
	return all, nil
}

// tupleOf is the tuple of a socket.
func tupleOf(answer []byte) frame.Tuple {
	remote := netip.AddrFrom16([16]byte(answer[idAt+20:]))
	if answer[0] == unix.AF_INET {
		remote = netip.AddrFrom4([4]byte(answer[idAt+20:]))
	}
	return frame.Tuple{
		Src: netip.AddrPortFrom(boundTo(answer).Unmap(), binary.BigEndian.Uint16(answer[idAt:])),
		Dst: netip.AddrPortFrom(remote.Unmap(), binary.BigEndian.Uint16(answer[idAt+2:])),
	}
}

// findListeners notes the ports of the listeners of a family, and those that are bound to an interface.
func (a *asker) findListeners(any netip.Addr) error {
	answers, err := a.conn.Ask(sockDiag, unix.NLM_F_DUMP, request(1<<stateListen, netip.AddrPortFrom(any, 0), netip.AddrPort{}))
	for _, m := range answers {
		if len(m.Body) < answerBytes {
			continue
		}
		port := binary.BigEndian.Uint16(m.Body[idAt:])
		a.ports = append(a.ports, port)
		if binary.NativeEndian.Uint32(m.Body[idAt+36:]) != 0 {
			a.bound[netip.AddrPortFrom(boundTo(m.Body), port)] = true
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
