package dump

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/privilege"
	"golang.org/x/sys/unix"
)

const (
	// datagramMax holds every answer: the kernel fills at most 32 KiB per receive
	// (netlink_dump, net/netlink/af_netlink.c).
	datagramMax = 64 << 10
	// receiveBuffer is asked for; the kernel gives what it may without privilege
	// over the host. It holds the refusals of a batch.
	receiveBuffer = 4 << 20
	// patience is how long a receive blocks before the context is looked at, and
	// silence how long the kernel may not answer at all.
	patience = 100 * time.Millisecond
	silence  = 10 * time.Second
)

// socket is a netfilter netlink socket. Only that of a watcher joins multicast
// groups.
type socket struct {
	fd  int
	seq uint32
}

// dial makes a socket in a namespace; nil is the calling process's.
func dial(ns *netns.Handle) (*socket, error) {
	var s *socket
	open := func() (err error) {
		s, err = newSocket()
		return err
	}
	if ns == nil {
		return s, open()
	}
	err := ns.Do(open)
	return s, err
}

func newSocket() (*socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		why := ""
		if errors.Is(err, unix.EPROTONOSUPPORT) {
			why = " (a kernel without CONFIG_NETFILTER_NETLINK)"
		}
		return nil, fmt.Errorf("open ctnetlink socket: %w%s", err, why)
	}
	s := &socket{fd: fd}
	if err := s.prepare(); err != nil {
		s.close()
		return nil, fmt.Errorf("prepare ctnetlink socket: %w", err)
	}
	return s, nil
}

func (s *socket) prepare() error {
	tv := unix.NsecToTimeval(int64(patience))
	if err := unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
		return err
	}
	if unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer) != nil {
		// Without privilege over the host's namespace net.core.rmem_max bounds it.
		if err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer); err != nil {
			return err
		}
	}
	// An acknowledgement then does not carry the refused message (Linux 4.3).
	_ = unix.SetsockoptInt(s.fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1)
	return unix.Bind(s.fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
}

func (s *socket) close() { unix.Close(s.fd) }

// send gives the kernel whole messages; it handles them before send returns.
func (s *socket) send(b []byte) error {
	for {
		err := unix.Sendto(s.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		if err != unix.EINTR {
			return err
		}
	}
}

// receive waits for one datagram. It stops when ctx ends or the kernel is silent.
func (s *socket) receive(ctx context.Context, buf []byte) ([]byte, error) {
	for quiet := time.Duration(0); quiet < silence; {
		n, err := unix.Read(s.fd, buf)
		switch err {
		case nil:
			return buf[:n], nil
		case unix.EINTR:
		case unix.EAGAIN:
			quiet += patience
		default:
			return nil, err
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("the kernel did not answer for %s", silence)
}

// request is one message without attributes, for all address families.
func (s *socket) request(t conntrack.MessageType, flags uint16) []byte {
	s.seq++
	return conntrack.FinishMessage(conntrack.AppendHeader(nil, t, flags|unix.NLM_F_REQUEST, s.seq, unix.AF_UNSPEC), 0)
}

// filtered is the request for a dump of what f lets through.
func (s *socket) filtered(t conntrack.MessageType, f conntrack.KernelFilter) []byte {
	s.seq++
	b := conntrack.AppendHeader(nil, t, unix.NLM_F_REQUEST|unix.NLM_F_DUMP, s.seq, f.Family)
	return conntrack.FinishMessage(f.Append(b), 0)
}

// explain says what an errno of ctnetlink means where it is not about one entry.
func explain(errno unix.Errno) error {
	switch errno {
	case unix.EPERM:
		return privilege.Denied(errno, privilege.NetAdmin)
	case unix.EINVAL, unix.EOPNOTSUPP:
		return fmt.Errorf("%w (a kernel without CONFIG_NF_CT_NETLINK, or the module nf_conntrack_netlink is not there)", errno)
	default:
		return errno
	}
}
