package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/netns"
)

// socket speaks nf_tables. It is a plain one because a refusal has to be told by the
// message, and so by the rule of the file, that it is about.
type socket struct{ fd int }

// refusal is the kernel's answer to one message of a batch.
type refusal struct {
	index int // of the message; -1 is the batch itself
	errno unix.Errno
	// text are the kernel's own words, often empty, and offset is the place in the
	// message that they are about; 0 where it does not tell (NETLINK_EXT_ACK).
	text   string
	offset int
}

func (r refusal) Error() string {
	if r.text != "" {
		return fmt.Sprintf("%v (%s)", r.errno, r.text)
	}
	return r.errno.Error()
}

func (r refusal) Unwrap() error { return r.errno }

func dial(ns *netns.Handle) (s socket, err error) {
	open := func() (err error) {
		s.fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
		return err
	}
	if ns == nil {
		err = open()
	} else {
		err = ns.Do(open)
	}
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return s, errors.New("this kernel has no nftables (CONFIG_NETFILTER_NETLINK, CONFIG_NF_TABLES): load nf_tables, or use a kernel that has it")
	}
	if err != nil {
		return s, fmt.Errorf("open a socket to nf_tables: %w", err)
	}
	// Older kernels than those that know these options answer without.
	_ = unix.SetsockoptInt(s.fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1)
	_ = unix.SetsockoptInt(s.fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1)
	return s, nil
}

func (s socket) close() { unix.Close(s.fd) }

// send hands the kernel a batch in one piece, as nf_tables wants a transaction
// (nfnetlink_rcv_batch), and returns what it refused. The kernel is through with it
// when sendmsg returns: all of its answers lie in the socket by then.
func (s socket) send(batch []byte, messages int) ([]refusal, error) {
	if err := s.room(len(batch)); err != nil {
		return nil, err
	}
	if err := unix.Sendto(s.fd, batch, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, fmt.Errorf("send %d kB to nf_tables: %w", len(batch)>>10, err)
	}
	return s.answers(messages)
}

// room makes the send buffer as large as the batch: netlink takes no more in one
// message (netlink_sendmsg). Beyond net.core.wmem_max it needs CAP_NET_ADMIN.
func (s socket) room(size int) error {
	want := size + size/2 + 1<<16
	if unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, want) == nil {
		return nil
	}
	if err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, want); err != nil {
		return fmt.Errorf("make the socket's buffer %d kB large: %w", want>>10, err)
	}
	got, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUF)
	if err == nil && got < size+64 {
		return fmt.Errorf("the rules are %d kB and the socket's buffer %d kB: raise net.core.wmem_max; or, in the initial user namespace, run it as root, or with CAP_NET_ADMIN", size>>10, got>>10)
	}
	return nil
}

// answers reads until nothing is left.
func (s socket) answers(messages int) ([]refusal, error) {
	var all []refusal
	acknowledged := false
	buf := make([]byte, 1<<16)
	for {
		n, _, err := unix.Recvfrom(s.fd, buf, unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EAGAIN) && !acknowledged && len(all) == 0:
			return nil, errors.New("nf_tables did not answer: whether the rules are in force is not known")
		case errors.Is(err, unix.EAGAIN):
			return all, nil
		case errors.Is(err, unix.ENOBUFS): // more refusals than the socket holds
			continue
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return nil, fmt.Errorf("read the answer of nf_tables: %w", err)
		}
		for _, r := range parseAnswers(buf[:n]) {
			if r.errno == 0 {
				acknowledged = true
			} else {
				all = append(all, r)
			}
		}
	}
}

// parseAnswers reads NLMSG_ERROR messages; the sequence numbers are those that
// batchOf gave.
func parseAnswers(b []byte) []refusal {
	var all []refusal
	for len(b) >= 20 {
		n := int(binary.NativeEndian.Uint32(b))
		if n < 20 || n > len(b) {
			break
		}
		if binary.NativeEndian.Uint16(b[4:]) == unix.NLMSG_ERROR {
			sequence := int(binary.NativeEndian.Uint32(b[8:]))
			errno := unix.Errno(-int32(binary.NativeEndian.Uint32(b[16:])))
			r := refusal{index: sequence - firstSequence, errno: errno}
			r.text, r.offset = extAck(b[:n])
			all = append(all, r)
		}
		b = b[min((n+3)&^3, len(b)):]
	}
	return all
}

// extAck is the kernel's text in an answer (NLMSGERR_ATTR_MSG), and the place that it is
// about (NLMSGERR_ATTR_OFFS). The answer carries the header alone of the message
// (NETLINK_CAP_ACK).
func extAck(b []byte) (text string, offset int) {
	const flagTLVs, before, attrMsg, attrOffset = 0x200, 16 + 4 + 16, 1, 2
	if binary.NativeEndian.Uint16(b[6:])&flagTLVs == 0 || len(b) < before {
		return "", 0
	}
	for b = b[before:]; len(b) >= 4; {
		n := int(binary.NativeEndian.Uint16(b))
		if n < 4 || n > len(b) {
			break
		}
		switch kind := binary.NativeEndian.Uint16(b[2:]); {
		case kind == attrMsg:
			text, _, _ = strings.Cut(string(b[4:n]), "\x00")
		case kind == attrOffset && n == 8:
			offset = int(binary.NativeEndian.Uint32(b[4:]))
		}
		b = b[min((n+3)&^3, len(b)):]
	}
	return text, offset
}
