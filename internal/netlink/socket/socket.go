// Package socket has natkit's netlink sockets. They are plain files, not those of
// github.com/mdlayher/netlink, whose messages are copied one by one: a dump of a million
// connections is read in its datagrams, and a transaction of ten thousand rules is sent
// as it was written and answered by a refusal for each message.
package socket

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"
	"unsafe"

	"github.com/natkit/natkit/internal/netlink"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/permit"
	"golang.org/x/sys/unix"
)

const (
	// DatagramMax holds every answer: the kernel fills at most 32 kB per receive
	// (netlink_dump, net/netlink/af_netlink.c). The fewer pieces the better: for each of
	// them it walks a hashed set of nf_tables from its beginning (nft_rhash_walk).
	DatagramMax = 64 << 10
	// receiveBuffer is requested; without privilege over the host net.core.rmem_max bounds
	// it. It holds the refusals of a batch.
	receiveBuffer = 4 << 20
	// smallest is below every default of net.core.wmem_default.
	smallest = 32 << 10
	// patience is the interval at which a receive checks its context, silence the time
	// after which it gives up.
	patience = 100 * time.Millisecond
	silence  = 20 * time.Second
)

// Conn is a netlink socket in the network namespace in which it was opened. One goroutine
// may send while another receives.
type Conn struct {
	file *os.File
	seq  uint32
	buf  []byte // of Ask and Transact

	family   int               // unix.NETLINK_*
	families map[uint16]string // of generic netlink, by their numbers
}

// Dial opens a socket of a family (unix.NETLINK_*) in a namespace; nil is the calling
// thread's.
func Dial(ns *netns.Handle, family int) (c *Conn, err error) {
	err = ns.Do(func() (err error) {
		c, err = open(family)
		return err
	})
	switch {
	case err == nil:
		return c, nil
	case family == unix.NETLINK_NETFILTER && errors.Is(err, unix.EPROTONOSUPPORT):
		return nil, fmt.Errorf("open netlink socket: %w (a kernel without CONFIG_NETFILTER_NETLINK)", err)
	}
	return nil, fmt.Errorf("open netlink socket: %w", err)
}

func open(family int) (*Conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, family)
	if err != nil {
		return nil, err
	}
	// Kernels before 4.12 and 4.3 do not know these options and answer without them.
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1)
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1)
	c := New(fd)
	c.family = family
	err = c.SetReceiveBuffer(receiveBuffer)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// New returns a Conn over a non-blocking socket, which belongs to it from then on.
func New(fd int) *Conn {
	return &Conn{file: os.NewFile(uintptr(fd), "netlink socket"), family: -1, families: map[uint16]string{}}
}

// Close closes the socket; a receive that waits ends with an error.
func (c *Conn) Close() error { return c.file.Close() }

// NextSeq returns the next sequence number; the first one is 1.
func (c *Conn) NextSeq() uint32 {
	c.seq++
	return c.seq
}

// LastSeq returns what NextSeq returned last.
func (c *Conn) LastSeq() uint32 { return c.seq }

// Send sends whole messages in one piece, as nf_tables requires of a transaction
// (nfnetlink_rcv_batch). The kernel processes them synchronously.
func (c *Conn) Send(messages []byte) error {
	if permit.IsReadOnly() && !c.reads(messages) {
		return permit.Change("send a netlink request that is not one to read")
	}
	if len(messages) > smallest {
		if err := c.room(len(messages)); err != nil {
			return err
		}
	}
	if _, err := c.file.Write(messages); err != nil {
		return fmt.Errorf("send %d kB by netlink: %w", (len(messages)+1023)>>10, unwrapped(err))
	}
	return nil
}

// reads reports whether messages only read. Where that is not known they do not.
func (c *Conn) reads(messages []byte) bool {
	for len(messages) > 0 {
		m, rest, err := netlink.Next(messages)
		if err != nil || !netlink.Reads(c.family, m, c.families[m.Type]) {
			return false
		}
		messages = rest
	}
	return true
}

// room makes the send buffer as large as the messages: netlink does not accept more
// (netlink_sendmsg). Beyond net.core.wmem_max it requires CAP_NET_ADMIN.
func (c *Conn) room(size int) error {
	want := size + size/2 + 1<<16
	return c.control(func(fd int) error {
		if err := setBuffer(fd, unix.SO_SNDBUFFORCE, unix.SO_SNDBUF, want); err != nil {
			return fmt.Errorf("set the socket's send buffer to %d kB: %w", want>>10, err)
		}
		got, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF)
		if err == nil && got < size+64 {
			return fmt.Errorf("the messages have %d kB and the socket's send buffer %d kB: raise net.core.wmem_max; or, in the initial user namespace, run it as root, or with CAP_NET_ADMIN", size>>10, got>>10)
		}
		return nil
	})
}

// SetReceiveBuffer sets the size of the receive buffer in bytes, as far as this process
// may.
func (c *Conn) SetReceiveBuffer(bytes int) error {
	return c.control(func(fd int) error { return setBuffer(fd, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, bytes) })
}

func setBuffer(fd, force, option, bytes int) error {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, bytes) == nil {
		return nil
	}
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, option, bytes)
}

// Receive waits for one datagram. It ends with the context, and with an error after 20 s
// without one. It does not allocate.
func (c *Conn) Receive(ctx context.Context, buf []byte) ([]byte, error) {
	for quiet := time.Duration(0); quiet < silence; quiet += patience {
		b, err := c.Poll(buf)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return b, err
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("the kernel did not answer for %s", silence)
}

// Poll waits for one datagram for 100 ms, after which it returns os.ErrDeadlineExceeded.
func (c *Conn) Poll(buf []byte) ([]byte, error) {
	if err := c.file.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	n, err := c.file.Read(buf)
	if err != nil {
		return nil, unwrapped(err)
	}
	return buf[:n], nil
}

// unwrapped removes what package os adds to an error.
func unwrapped(err error) error {
	if inner := errors.Unwrap(err); inner != nil {
		return inner
	}
	return err
}

// Ask sends one request, of NLM_F_REQUEST and the given flags, and returns the messages of
// its answer: one, or all of a dump. The kernel's error is a netlink.Refusal.
func (c *Conn) Ask(kind, flags uint16, body []byte) ([]netlink.Message, error) {
	b := netlink.Begin(nil, kind, unix.NLM_F_REQUEST|flags, c.NextSeq())
	if err := c.Send(netlink.End(append(b, body...), 0)); err != nil {
		return nil, err
	}
	buf, dump := c.buffer(), flags&unix.NLM_F_DUMP == unix.NLM_F_DUMP
	var all []netlink.Message
	for {
		got, err := c.Receive(context.Background(), buf)
		if err != nil {
			return nil, err
		}
		end := false
		if all, end, err = appendAnswers(all, bytes.Clone(got), c.seq, dump); end || err != nil {
			return all, err
		}
	}
}

// AskGeneric asks a family of generic netlink, which it looks up by its name (that loads no module): it sends a command
// with attributes (struct genlmsghdr), and returns the attributes of each answer.
func (c *Conn) AskGeneric(family string, version, command byte, flags uint16, attributes []byte) ([]netlink.Attrs, error) {
	found, err := c.askGeneric(unix.GENL_ID_CTRL, 1, unix.CTRL_CMD_GETFAMILY, 0, netlink.AppendText(nil, unix.CTRL_ATTR_FAMILY_NAME, family))
	if err == nil && (len(found) != 1 || len(found[0].Get(unix.CTRL_ATTR_FAMILY_ID)) != 2) {
		err = netlink.ErrTruncated
	}
	if err != nil {
		return nil, fmt.Errorf("generic netlink family %s: %w", family, err)
	}
	id := binary.NativeEndian.Uint16(found[0].Get(unix.CTRL_ATTR_FAMILY_ID))
	c.families[id] = family
	return c.askGeneric(id, version, command, flags, attributes)
}

func (c *Conn) askGeneric(id uint16, version, command byte, flags uint16, attributes []byte) (all []netlink.Attrs, err error) {
	answers, err := c.Ask(id, flags, append([]byte{command, version, 0, 0}, attributes...))
	if err != nil {
		return nil, err
	}
	for _, m := range answers {
		if len(m.Body) < unix.GENL_HDRLEN {
			return nil, netlink.ErrTruncated
		}
		attrs, err := netlink.ParseAttrs(m.Body[unix.GENL_HDRLEN:])
		if err != nil {
			return nil, err
		}
		all = append(all, attrs)
	}
	return all, nil
}

func (c *Conn) buffer() []byte {
	if c.buf == nil {
		c.buf = make([]byte, DatagramMax)
	}
	return c.buf
}

// appendAnswers adds the messages of a datagram that answer the request seq; end is true
// after the last one. Only dumps have an end: other answers may have NLM_F_MULTI all the
// same (ctnetlink_stat_ct_fill_info).
func appendAnswers(all []netlink.Message, datagram []byte, seq uint32, dump bool) (_ []netlink.Message, end bool, err error) {
	for len(datagram) > 0 {
		m, rest, err := netlink.Next(datagram)
		if err != nil {
			return nil, false, err
		}
		datagram = rest
		switch {
		case m.Seq != seq: // of a request before, whose answers were not all read
		case m.Type == unix.NLMSG_ERROR:
			r, err := m.Answer()
			if err == nil && r.Errno != 0 {
				err = r
			}
			return all, true, err
		case m.Type == unix.NLMSG_DONE:
			return all, true, doneError(m)
		default:
			all = append(all, m)
			end = !dump
		}
	}
	return all, end, nil
}

// doneError returns the error of a dump. NLMSG_DONE has carried it since Linux 4.15;
// before that it may be empty.
func doneError(m netlink.Message) error {
	if errno, err := m.Errno(); err == nil && errno != 0 {
		return netlink.Refusal{Seq: m.Seq, Errno: errno}
	}
	return nil
}

// Transact sends messages, of which the last one must request an acknowledgement, and
// returns what the kernel refused, in order: an errno for each message. The kernel
// processes them synchronously: all answers are queued when Send returns. If the receive
// buffer could not hold them all, the error is unix.ENOBUFS, and the refusals are the
// first ones.
func (c *Conn) Transact(messages []byte) (refused []netlink.Refusal, err error) {
	if err := permit.Change("send a netlink transaction"); err != nil {
		return nil, err
	}
	if err := c.Send(messages); err != nil {
		return nil, err
	}
	buf, answered, overflow := c.buffer(), false, error(nil)
	for {
		n, err := c.queued(buf)
		switch {
		case errors.Is(err, unix.ENOBUFS):
			overflow = err
		case errors.Is(err, unix.EAGAIN) && !answered && overflow == nil:
			return nil, errors.New("the kernel did not answer: whether it did what was requested is not known")
		case errors.Is(err, unix.EAGAIN):
			return refused, overflow
		case err != nil:
			return nil, fmt.Errorf("receive the kernel's answer: %w", err)
		}
		for got := buf[:n]; len(got) > 0; {
			m, rest, err := netlink.Next(got)
			if err != nil {
				return nil, err
			}
			got = rest
			r, err := m.Answer()
			if err != nil {
				return nil, err
			}
			answered = true
			if r.Errno != 0 {
				refused = append(refused, r)
			}
		}
	}
}

// queued reads a datagram that is there already; unix.EAGAIN if there is none.
func (c *Conn) queued(buf []byte) (n int, err error) {
	rawErr := c.control(func(fd int) error {
		for {
			if n, err = unix.Read(fd, buf); err != unix.EINTR {
				n = max(n, 0)
				return nil
			}
		}
	})
	return n, cmp.Or(rawErr, err)
}

// Join subscribes to a multicast group (unix.NFNLGRP_*).
func (c *Conn) Join(group int) error {
	return c.control(func(fd int) error {
		return unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, group)
	})
}

// Empty reports whether no datagram is queued.
func (c *Conn) Empty() (empty bool) {
	_ = c.control(func(fd int) error {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		empty = err == nil && n == 0
		return nil
	})
	return empty
}

// Drops returns how many messages the full receive buffer has refused so far (sk_drops of
// the socket, which netlink_overrun counts; SO_MEMINFO, Linux 4.12); 0 where that is not
// known.
func (c *Conn) Drops() (drops uint32) {
	_ = c.control(func(fd int) error {
		var info [unix.SK_MEMINFO_VARS]uint32
		size := uint32(unsafe.Sizeof(info))
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_MEMINFO,
			uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
		if errno == 0 && size >= uint32(unsafe.Sizeof(info)) {
			drops = info[unix.SK_MEMINFO_DROPS]
		}
		return nil
	})
	return drops
}

// control calls fn with the descriptor.
func (c *Conn) control(fn func(fd int) error) (err error) {
	raw, rawErr := c.file.SyscallConn()
	if rawErr == nil {
		rawErr = raw.Control(func(fd uintptr) { err = fn(int(fd)) })
	}
	return cmp.Or(rawErr, err)
}
