package netfilter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/privilege"
	"golang.org/x/sys/unix"
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
	err = ns.Do(func() (err error) {
		s.fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
		return err
	})
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

// brings says which options of the kernel's configuration bring something.
var brings = map[string]string{
	"table":        "CONFIG_NF_TABLES, CONFIG_NF_TABLES_INET",
	"chain nat":    "CONFIG_NFT_NAT, and Linux 5.2 for tables of family inet",
	"chain filter": "CONFIG_NF_TABLES_INET",
	"nat":          "CONFIG_NFT_NAT",
	"nat prefix":   "Linux 5.8",
	"masq":         "CONFIG_NFT_MASQ",
	"hash":         "CONFIG_NFT_HASH",
	"connlimit":    "CONFIG_NFT_CONNLIMIT",
	"ct":           "CONFIG_NFT_CT",
	"notrack":      "CONFIG_NFT_CT",
	"fib":          "CONFIG_NFT_FIB_INET",
	"counter":      "CONFIG_NF_TABLES",
	"flowtable":    "CONFIG_NF_FLOW_TABLE, CONFIG_NF_FLOW_TABLE_INET",
	"flow_offload": "CONFIG_NFT_FLOW_OFFLOAD",
}

// Missing is something that a plan needs and this kernel lacks.
type Missing struct {
	// About is the rule of the file, or its key: "nat[3] snat", "flowtable".
	About string
	// What is the kernel's word for it, Needs the options or version that bring it.
	What, Needs string
	err         error
}

func (m *Missing) Error() string {
	return fmt.Sprintf("%s: this kernel has no nftables %s: it needs %s (%v)", m.About, m.What, m.Needs, m.err)
}

func (m *Missing) Unwrap() error { return m.err }

// Refused is something of a plan that the kernel does not take.
type Refused struct {
	// About is as in Missing, Why in words.
	About, Why string
	err        error
}

func (r *Refused) Error() string { return fmt.Sprintf("%s: %s: %v", r.About, r.Why, r.err) }

func (r *Refused) Unwrap() error { return r.err }

// Rule is the rule of the file that it is about; false where that is none, or several.
func (m *Missing) Rule() (gateway.Ref, bool) { return gateway.ParseRef(m.About) }

// Rule is as Missing's.
func (r *Refused) Rule() (gateway.Ref, bool) { return gateway.ParseRef(r.About) }

// inWords says in one line why the kernel refused a transaction: which rule it was and,
// where something is missing, what brings it.
func inWords(ns *netns.Handle, messages []message, refused []refusal) error {
	if len(refused) == 0 {
		return nil
	}
	first := refused[0] // the others follow from it
	switch {
	case errors.Is(first, unix.EPERM):
		return privilege.Denied(first, privilege.NetAdmin)
	case first.index < 0 && lacks(first):
		return &Missing{"the gateway", "tables", brings["table"], first}
	case first.index < 0 || first.index >= len(messages):
		return fmt.Errorf("the kernel refuses: %w", first)
	}
	m := messages[first.index]
	if lacks(first) {
		if what := culprit(ns, messages, first.index); brings[what] != "" {
			return &Missing{m.at(first.offset), what, brings[what], first}
		}
	}
	return &Refused{m.at(first.offset), why(m, first), first}
}

func why(m message, r refusal) string {
	switch {
	case errors.Is(r, unix.ENOMEM), errors.Is(r, unix.ENOBUFS):
		return "no memory for the rules"
	case len(m.elements) > 0 && (errors.Is(r, unix.EEXIST) || errors.Is(r, unix.EBUSY)): // nft_add_set_elem: the key is there, with other data; EBUSY is of Linux 5.4
		return "another rule of the file says something else of the same packets"
	case errors.Is(r, unix.EBUSY):
		return "something else uses it, apply again"
	}
	return "the kernel refuses it"
}

// lacks tells the errors of what is not there.
func lacks(err error) bool {
	return slices.ContainsFunc([]error{unix.ENOENT, unix.EOPNOTSUPP, unix.EAFNOSUPPORT, unix.EPROTONOSUPPORT, unix.EINVAL, unix.ENOSYS},
		func(e error) bool { return errors.Is(err, e) })
}

// culprit is what of a message the kernel does not know. Of a rule it is found by
// trying: its first expression, its first two, and so on, in transactions without an
// end, which change nothing.
func culprit(ns *netns.Handle, messages []message, index int) string {
	m := messages[index]
	if m.rule == nil {
		return strings.Join(m.exprs, "")
	}
	before := slices.DeleteFunc(slices.Clone(messages[:index]), func(m message) bool { return m.rule != nil })
	for n := range m.rule.exprs {
		part := *m.rule
		part.exprs = part.exprs[:n+1]
		try, err := part.message()
		if err != nil {
			return ""
		}
		if refused, err := probe(ns, append(slices.Clone(before), try)); err != nil || len(refused) > 0 {
			return nameOf(m.rule.exprs[n])
		}
	}
	return ""
}

// probe asks what the kernel would refuse of a transaction, without carrying it out.
func probe(ns *netns.Handle, messages []message) ([]refusal, error) {
	s, err := dial(ns)
	if err != nil {
		return nil, err
	}
	defer s.close()
	return s.send(batchOf(messages, 0, false), len(messages))
}
