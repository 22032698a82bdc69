// Package tap reads packets of a network namespace by eBPF programs or packet sockets with filters, by turns of
// some milliseconds, bounded in rate, memory and time.
package tap

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"time"

	"github.com/natkit/natkit/internal/netns"
	"golang.org/x/sys/unix"
)

const (
	mostAtOnce = 1 << 14 // packets per turn
	// bufferBytes is the kernel's buffer between two turns: some thousand packets.
	bufferBytes = 4 << 20
)

// Socket is a packet socket (packet(7)) that does not block. Its filter keeps one in a number of
// connections.
type Socket struct {
	fd     int
	filter Filter
	buf    [KeepBytes]byte
	oob    [64]byte
}

// Packet is one that was received or sent; Data, from the IP header on, holds until the next one.
type Packet struct {
	Version int
	Data    []byte
	// Interface is the index of the one that it came in by, or leaves by if it was Sent.
	Interface int
	Sent      bool
	// Passing is true of a frame for another host, such as one that a bridge forwards.
	Passing bool
	// At is when the kernel saw it; zero if it does not say.
	At time.Time
}

// openSocket makes a socket in the namespace of the calling thread, for received packets alone or all. It has its
// filter before it is bound, so that nothing else ever waits in it.
func openSocket(received bool, samples Samples, filter Filter) (*Socket, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open a packet socket (CONFIG_PACKET): %w", netns.Denied(err, netns.NetRaw))
	}
	s := &Socket{fd: fd, filter: filter}
	if err = s.setUp(received, samples); err != nil {
		s.Close()
		return nil, fmt.Errorf("set up a packet socket: %w", err)
	}
	return s, nil
}

func (s *Socket) setUp(received bool, samples Samples) error {
	if err := s.Attach(samples); err != nil {
		return err
	}
	if unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, bufferBytes) != nil {
		_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, bufferBytes)
	}
	_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1)
	if received {
		// What is sent is cloned for every socket that does not say so (Linux 4.20).
		if err := unix.SetsockoptInt(s.fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1); err != nil {
			return err
		}
	}
	return s.Resume()
}

// noProtocol is an EtherType for local experiments (IEEE 802): a socket that is bound to it receives
// nothing, and costs other packets nothing.
const noProtocol = 0x88b5

// Rest receives nothing until Resume.
func (s *Socket) Rest() error { return s.bind(noProtocol) }

// Resume receives packets of all protocols: a socket of IP alone comes after the protocol's own handler, which
// is given a clone of each packet.
func (s *Socket) Resume() error { return s.bind(unix.ETH_P_ALL) }

func (s *Socket) bind(protocol uint16) error {
	if err := unix.Bind(s.fd, &unix.SockaddrLinklayer{Protocol: bits.ReverseBytes16(protocol)}); err != nil {
		return fmt.Errorf("bind a packet socket: %w", err)
	}
	return nil
}

// Attach replaces the filter by one for one in so many connections.
func (s *Socket) Attach(samples Samples) error {
	filter, err := s.filter(samples)
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

// Receive calls fn for waiting packets and returns their number.
func (s *Socket) Receive(fn func(*Packet)) (n int, err error) {
	for ; n < mostAtOnce; n++ {
		got, oob, _, from, err := unix.Recvmsg(s.fd, s.buf[:], s.oob[:], 0)
		switch {
		case errors.Is(err, unix.ENETDOWN): // an interface was removed or went down; others go on
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
			return n, nil
		case err != nil:
			return n, fmt.Errorf("read a packet socket: %w", err)
		case got > 0:
			p := Packet{Version: int(s.buf[0] >> 4), Data: s.buf[:got], At: timeOf(s.oob[:oob])}
			if link, ok := from.(*unix.SockaddrLinklayer); ok {
				p.Interface, p.Sent, p.Passing = link.Ifindex, link.Pkttype == unix.PACKET_OUTGOING, link.Pkttype == unix.PACKET_OTHERHOST
			}
			fn(&p)
		}
	}
	return n, nil
}

// timeOf reads SCM_TIMESTAMPNS.
func timeOf(oob []byte) time.Time {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return time.Time{}
	}
	for _, m := range messages {
		if m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SCM_TIMESTAMPNS && len(m.Data) >= 16 {
			return time.Unix(int64(binary.NativeEndian.Uint64(m.Data)), int64(binary.NativeEndian.Uint64(m.Data[8:])))
		}
	}
	return time.Time{}
}

// Lost returns the number of packets that found no room since the last call.
func (s *Socket) Lost() uint64 {
	stats, err := unix.GetsockoptTpacketStats(s.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
	if err != nil {
		return 0
	}
	return uint64(stats.Drops)
}

// Close closes the socket.
func (s *Socket) Close() { unix.Close(s.fd) }
