package run

import (
	"net/netip"
	"syscall"
	"unsafe"

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

// bytes returns the content of message i after a receive.
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

// sendMessages sends the messages from first to last-1 and returns how many the kernel accepted; an
// error is about the first of them.
func (c *caller) sendMessages(fd int32, m *messages, first, last int) (int, syscall.Errno) {
	r, errno := c.call(unix.SYS_SENDMMSG, fd, uintptr(unsafe.Pointer(&m.list[first])), uintptr(last-first), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(r), 0
}

// receiveMessages receives what is there, as many as there is room for.
func (c *caller) receiveMessages(fd int32, m *messages) (int, syscall.Errno) {
	r, errno := c.call(unix.SYS_RECVMMSG, fd, uintptr(unsafe.Pointer(&m.list[0])), uintptr(len(m.list)), unix.MSG_DONTWAIT, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(r), 0
}

// receiveError receives one message of the socket's error queue (ip(7), IP_RECVERR) into m's first
// buffers: the payload is that of the datagram that the error is about, as far as the ICMP message
// carries it.
func (c *caller) receiveError(fd int32, m *messages) syscall.Errno {
	r, errno := c.call(unix.SYS_RECVMSG, fd, uintptr(unsafe.Pointer(&m.list[0].hdr)), unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT, 0, 0, 0)
	if errno == 0 {
		m.list[0].length = uint32(r)
	}
	return errno
}

// socketDrops returns how many datagrams found no room in the socket's buffer, or were bad
// (SO_MEMINFO, SK_MEMINFO_DROPS; Linux 4.12); 0 if that cannot be read.
func (c *caller) socketDrops(fd int32) uint32 {
	const drops = 8 // SK_MEMINFO_DROPS, include/uapi/linux/sock_diag.h
	var info [drops + 1]uint32
	errno := c.option(fd, unix.SOL_SOCKET, unix.SO_MEMINFO, unsafe.Pointer(&info), unsafe.Sizeof(info))
	if errno != 0 || c.size < uint32(unsafe.Sizeof(info)) {
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
