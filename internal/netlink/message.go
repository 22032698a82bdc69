// Package netlink reads and writes netlink messages and their attributes. It works on
// bytes; package socket below it has the sockets.
package netlink

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/natkit/natkit/internal/unix"
)

// ErrTruncated is the cause where a length points past the end of what was received.
var ErrTruncated = errors.New("truncated")

// Message is one netlink message. Its Body points into the datagram.
type Message struct {
	Type, Flags uint16
	Seq         uint32
	Body        []byte
}

// Next takes the first message off a datagram.
func Next(datagram []byte) (m Message, rest []byte, err error) {
	if len(datagram) < unix.SizeofNlMsghdr {
		return Message{}, nil, fmt.Errorf("netlink header: %w: %d bytes of %d", ErrTruncated, len(datagram), unix.SizeofNlMsghdr)
	}
	size := binary.NativeEndian.Uint32(datagram)
	if size < unix.SizeofNlMsghdr || uint64(size) > uint64(len(datagram)) {
		return Message{}, nil, fmt.Errorf("netlink message of %d bytes: %w: %d bytes received", size, ErrTruncated, len(datagram))
	}
	m = Message{
		Type:  binary.NativeEndian.Uint16(datagram[4:]),
		Flags: binary.NativeEndian.Uint16(datagram[6:]),
		Seq:   binary.NativeEndian.Uint32(datagram[8:]),
		Body:  datagram[unix.SizeofNlMsghdr:size],
	}
	return m, datagram[min(align(int(size)), len(datagram)):], nil
}

func align(n int) int { return (n + unix.NLMSG_ALIGNTO - 1) &^ (unix.NLMSG_ALIGNTO - 1) }

// Errno returns the error of an NLMSG_ERROR or NLMSG_DONE message; 0 is success, an
// acknowledgement.
func (m Message) Errno() (unix.Errno, error) {
	if len(m.Body) < 4 {
		return 0, fmt.Errorf("netlink acknowledgement: %w", ErrTruncated)
	}
	return unix.Errno(-int32(binary.NativeEndian.Uint32(m.Body))), nil
}

// Refusal is the kernel's answer to one message; an acknowledgement has Errno 0.
type Refusal struct {
	// Seq is the sequence number of the message.
	Seq   uint32
	Errno unix.Errno
	// Text is the kernel's explanation, often empty, and Offset the position in the
	// message that it refers to, 0 if not reported (NETLINK_EXT_ACK, Linux 4.12).
	Text   string
	Offset int
}

func (r Refusal) Error() string {
	if r.Text != "" {
		return fmt.Sprintf("%v (%s)", r.Errno, r.Text)
	}
	return r.Errno.Error()
}

func (r Refusal) Unwrap() error { return r.Errno }

// Answer parses an NLMSG_ERROR message.
func (m Message) Answer() (Refusal, error) {
	if m.Type != unix.NLMSG_ERROR {
		return Refusal{}, fmt.Errorf("netlink message of type %d, expected an acknowledgement", m.Type)
	}
	errno, err := m.Errno()
	r := Refusal{Seq: m.Seq, Errno: errno}
	if err == nil && m.Flags&unix.NLM_F_ACK_TLVS != 0 {
		r.extended(m)
	}
	return r, err
}

// extended reads the attributes behind the error and the refused message, of which only
// the header is there if NLM_F_CAPPED is set (netlink_ack).
func (r *Refusal) extended(m Message) {
	const errorLen = 4
	at := errorLen + unix.SizeofNlMsghdr
	if len(m.Body) < at {
		return
	}
	if m.Flags&unix.NLM_F_CAPPED == 0 {
		at = errorLen + align(int(binary.NativeEndian.Uint32(m.Body[errorLen:])))
	}
	attrs, _ := ParseAttrs(m.Body[min(at, len(m.Body)):])
	r.Text, _, _ = strings.Cut(string(attrs.Get(unix.NLMSGERR_ATTR_MSG)), "\x00")
	if b := attrs.Get(unix.NLMSGERR_ATTR_OFFS); len(b) == 4 {
		r.Offset = int(binary.NativeEndian.Uint32(b))
	}
}

// Begin starts a message; End with the same start (the length of b before) ends it.
func Begin(b []byte, kind, flags uint16, seq uint32) []byte {
	b = binary.NativeEndian.AppendUint32(b, 0)
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = binary.NativeEndian.AppendUint16(b, flags)
	b = binary.NativeEndian.AppendUint32(b, seq)
	return binary.NativeEndian.AppendUint32(b, 0)
}

// AppendNetfilter appends what bodies of netfilter's messages begin with: struct nfgenmsg
// (include/uapi/linux/netfilter/nfnetlink.h), with a family (AF_* or NFPROTO_*).
func AppendNetfilter(b []byte, family uint8, resource uint16) []byte {
	return binary.BigEndian.AppendUint16(append(b, family, unix.NFNETLINK_V0), resource)
}

// SizeofNetfilter is the size of struct nfgenmsg in bytes.
const SizeofNetfilter = 4

// End writes the length of the message that begins at start.
func End(b []byte, start int) []byte {
	binary.NativeEndian.PutUint32(b[start:], uint32(len(b)-start))
	return b
}

// AddFlags adds flags to the message that b begins with.
func AddFlags(b []byte, flags uint16) {
	binary.NativeEndian.PutUint16(b[6:], binary.NativeEndian.Uint16(b[6:])|flags)
}
