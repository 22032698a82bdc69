package run

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"syscall"
	"unsafe"

	"github.com/natkit/natkit/internal/load"
	"golang.org/x/sys/unix"
)

// message is a struct mmsghdr (recvmmsg(2)).
type message struct {
	hdr    unix.Msghdr
	length uint32
}

// messages are buffers for one call of recvmmsg or sendmmsg. The kernel is given
// addresses inside of them: they must not be copied.
type messages struct {
	list    []message
	vectors []unix.Iovec
	names   []sockaddrBytes
	payload []byte // size bytes for each
	control []byte // controlSize bytes for each; empty where it is 0
	size    int
	// controlSize is the room for control messages (cmsg(3)) of each message.
	controlSize int
}

type sockaddrBytes = [unix.SizeofSockaddrInet6]byte

// newMessages has room for n payloads of size bytes.
func newMessages(n, size, controlSize int) *messages {
	m := &messages{
		list: make([]message, n), vectors: make([]unix.Iovec, n), names: make([]sockaddrBytes, n),
		payload: make([]byte, n*size), control: make([]byte, n*controlSize), size: size, controlSize: controlSize,
	}
	for i := range m.list {
		h := &m.list[i].hdr
		m.vectors[i].Base = &m.payload[i*size]
		h.Iov = &m.vectors[i]
		h.SetIovlen(1)
		h.Name = &m.names[i][0]
		if controlSize > 0 {
			h.Control = &m.control[i*controlSize]
		}
	}
	m.clear(n)
	return m
}

// clear makes the first n messages ready to receive: the kernel wrote lengths into
// them.
func (m *messages) clear(n int) {
	for i := range n {
		m.list[i].hdr.Namelen = unix.SizeofSockaddrInet6
		m.list[i].hdr.SetControllen(m.controlSize)
		m.vectors[i].SetLen(m.size)
	}
}

// bytes is what message i holds after a receive.
func (m *messages) bytes(i int) []byte {
	return m.payload[i*m.size:][:min(int(m.list[i].length), m.size)]
}

// room is the whole buffer of message i.
func (m *messages) room(i int) []byte { return m.payload[i*m.size:][:m.size] }

// controls are the control messages of message i after a receive.
func (m *messages) controls(i int) []byte {
	return m.control[i*m.controlSize:][:min(int(m.list[i].hdr.Controllen), m.controlSize)]
}

// from is the sender of message i. An IPv6 address has no zone: it is compared with
// others on the same link only.
func (m *messages) from(i int) netip.AddrPort { return addrPort(&m.names[i]) }

func addrPort(raw *sockaddrBytes) netip.AddrPort {
	port := binary.BigEndian.Uint16(raw[2:])
	if binary.NativeEndian.Uint16(raw[:]) == unix.AF_INET {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(raw[4:8])), port)
	}
	return netip.AddrPortFrom(netip.AddrFrom16([16]byte(raw[8:24])), port)
}

// sendMessages sends the messages from first to last-1 and returns how many the
// kernel took; an error is about the first that it did not take, and comes only
// where that is the first of all.
func (c *caller) sendMessages(fd int32, m *messages, first, last int) (int, syscall.Errno) {
	c.count++
	r, _, e := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(fd), uintptr(unsafe.Pointer(&m.list[first])), uintptr(last-first), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	if e != 0 {
		return 0, e
	}
	return int(r), 0
}

// receiveMessages takes what is there, as many as there is room for.
func (c *caller) receiveMessages(fd int32, m *messages) (int, syscall.Errno) {
	c.count++
	r, _, e := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(&m.list[0])), uintptr(len(m.list)), unix.MSG_DONTWAIT, 0, 0)
	if e != 0 {
		return 0, e
	}
	return int(r), 0
}

// receiveError takes one message of the socket's error queue (ip(7), IP_RECVERR)
// into m's first buffers: the payload is that of the datagram that the error is
// about, as far as the ICMP message carries it.
func (c *caller) receiveError(fd int32, m *messages) syscall.Errno {
	c.count++
	r, _, e := unix.RawSyscall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(&m.list[0].hdr)), unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
	if e != 0 {
		return e
	}
	m.list[0].length = uint32(r)
	return 0
}

// datagramSocket makes a UDP socket that does not block.
func (c *caller) datagramSocket(family int) (int32, syscall.Errno) {
	r, e := c.raw(unix.SYS_SOCKET, uintptr(family), unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	return int32(r), e
}

// socketDrops is how many datagrams found no room in the socket's buffer, or were
// bad (SO_MEMINFO, SK_MEMINFO_DROPS; Linux 4.12); 0 where that cannot be asked.
func (c *caller) socketDrops(fd int32) uint32 {
	const drops = 8 // SK_MEMINFO_DROPS, include/uapi/linux/sock_diag.h
	var info [drops + 1]uint32
	c.size = uint32(unsafe.Sizeof(info))
	c.count++
	_, _, e := unix.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_MEMINFO, uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&c.size)), 0)
	if e != 0 || c.size < uint32(unsafe.Sizeof(info)) {
		return 0
	}
	return info[drops]
}

// bufferBytes is what a socket of datagrams may keep. Memory is taken only for what
// waits there.
const bufferBytes = 8 << 20

// growBuffers gives the socket bufferBytes, as much as the machine's limits
// (net.core.rmem_max, wmem_max) allow without CAP_NET_ADMIN.
func (c *caller) growBuffers(fd int32) {
	if c.setOption(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, bufferBytes) != 0 {
		c.setOption(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, bufferBytes)
	}
	if c.setOption(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, bufferBytes) != 0 {
		c.setOption(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, bufferBytes)
	}
}

// read takes what has arrived. Where the mask says that the FIN is there
// (EPOLLRDHUP) and the response is complete, nothing more is asked of the kernel.
func (w *worker) read(i int32, c *conn, mask uint32) {
	if c.state == draining && mask&unix.EPOLLRDHUP != 0 && mask&unix.EPOLLERR == 0 {
		w.stamp()
		w.finish(i, c)
		return
	}
	for {
		n, errno := w.sys.receive(c.fd, w.buf)
		switch {
		case errno == unix.EAGAIN:
			return
		case errno != 0:
			w.fail(i, c.readPhase(), load.Reason(errno))
			return
		}
		w.stamp()
		if n == 0 {
			w.endOfStream(i, c)
			return
		}
		if !w.feed(i, c, w.buf[:n]) {
			return
		}
		switch {
		case c.state == draining && (mask&unix.EPOLLRDHUP != 0 || !w.serverCloses(c)):
			w.finish(i, c)
			return
		case n == len(w.buf) || mask&unix.EPOLLRDHUP != 0:
			// There may be more: the buffer was full, or the FIN follows.
		default:
			return
		}
	}
}

func (c *conn) readPhase() load.PhaseIndex {
	if c.state == waiting {
		return load.InWait
	}
	return load.InRead
}

// feed hands received bytes to the parser; false where the request has failed.
func (w *worker) feed(i int32, c *conn, b []byte) bool {
	w.tally.Received += int64(len(b))
	switch c.state {
	case waiting:
		c.first = w.now
		c.state = reading
		if w.server == "" {
			w.server = serverName(b)
		}
	case draining:
		w.fail(i, load.InReply, load.Surplus)
		return false
	}
	n, bad := c.resp.Feed(b)
	if bad == 0 && n < len(b) {
		bad = load.Surplus
	}
	if bad != 0 {
		w.fail(i, load.InReply, bad)
		return false
	}
	if c.resp.Done() {
		c.state = draining
	}
	return true
}

// serverName is the Server header of a response's first bytes, at most 64 of its.
func serverName(head []byte) string {
	const name = "\nserver:"
	for at := bytes.IndexByte(head, '\n'); at >= 0 && at+len(name) < len(head); {
		line := head[at:]
		if bytes.EqualFold(line[:len(name)], []byte(name)) {
			value, _, _ := bytes.Cut(line[len(name):], []byte("\n"))
			value = bytes.TrimSpace(value)
			return printable(value[:min(len(value), 64)])
		}
		next := bytes.IndexByte(line[1:], '\n')
		if next < 0 {
			break
		}
		at += next + 1
	}
	return ""
}

// printable leaves out what could steer a terminal.
func printable(b []byte) string {
	return string(bytes.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return -1
		}
		return r
	}, b))
}

func (w *worker) endOfStream(i int32, c *conn) {
	if c.state == draining {
		w.finish(i, c)
		return
	}
	switch bad := c.resp.End(); bad {
	case 0:
		w.finish(i, c)
	case load.ClosedEarly:
		w.fail(i, load.InWait, bad)
	default:
		w.fail(i, load.InRead, bad)
	}
}
