package netfilter

import (
	"cmp"
	"errors"
	"fmt"
	"github.com/google/nftables/expr"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/netlink"
	"github.com/natkit/natkit/internal/netlink/socket"
	"github.com/natkit/natkit/internal/netns"
	"golang.org/x/sys/unix"
)

// send sends a whole transaction, or, without its end, a try of one, and returns what the
// kernel refused of the messages.
func send(ns *netns.Handle, messages []message, generation uint32, end bool) ([]netlink.Refusal, error) {
	s, err := socket.Dial(ns, unix.NETLINK_NETFILTER)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil, errors.New("this kernel has no nftables (CONFIG_NETFILTER_NETLINK, CONFIG_NF_TABLES): load nf_tables, or use a kernel that has it")
	}
	if err != nil {
		return nil, err
	}
	defer s.Close()
	refused, err := s.Transact(batchOf(messages, generation, end))
	if len(refused) > 0 { // the first ones, where the socket does not hold them all
		return refused, nil
	}
	return nil, err
}

// indexOf is the message that a refusal is about; -1 is the batch itself.
func indexOf(r netlink.Refusal) int { return int(r.Seq) - firstSequence }

// brings says which options of the kernel's configuration bring something.
var brings = map[string]string{
	"table":        "CONFIG_NF_TABLES, CONFIG_NF_TABLES_INET",
	"chain nat":    "CONFIG_NFT_NAT, and Linux 5.2 for tables of family inet",
	"chain filter": "CONFIG_NF_TABLES_INET",
	"chain route":  "CONFIG_NF_TABLES_INET, and Linux 5.2 for tables of family inet",
	"nat":          "CONFIG_NFT_NAT",
	"nat prefix":   "Linux 5.8",
	"masq":         "CONFIG_NFT_MASQ",
	"hash":         "CONFIG_NFT_HASH",
	"numgen":       "CONFIG_NFT_NUMGEN",
	"connlimit":    "CONFIG_NFT_CONNLIMIT",
	"ct":           "CONFIG_NFT_CT",
	"ct zone":      "CONFIG_NFT_CT, CONFIG_NF_CONNTRACK_ZONES",
	"notrack":      "CONFIG_NFT_CT",
	"fib":          "CONFIG_NFT_FIB_INET",
	"counter":      "CONFIG_NF_TABLES",
	"log":          "CONFIG_NFT_LOG, CONFIG_NF_LOG_SYSLOG (before Linux 5.13 CONFIG_NF_LOG_IPV4, CONFIG_NF_LOG_IPV6)",
	"limit":        "CONFIG_NFT_LIMIT",
	"meta hour":    "Linux 5.4",
	"objref":       "CONFIG_NFT_OBJREF",
	"helper ftp":   "CONFIG_NF_CONNTRACK_FTP, CONFIG_NF_NAT_FTP",
	"helper tftp":  "CONFIG_NF_CONNTRACK_TFTP, CONFIG_NF_NAT_TFTP",
	"helper sip":   "CONFIG_NF_CONNTRACK_SIP, CONFIG_NF_NAT_SIP",
	"helper pptp":  "CONFIG_NF_CONNTRACK_PPTP, CONFIG_NF_NAT_PPTP",
	"flowtable":    "CONFIG_NF_FLOW_TABLE, CONFIG_NF_FLOW_TABLE_INET",
	"reject":       "CONFIG_NFT_REJECT_INET, and Linux 5.9 before routing",
	"flow_offload": "CONFIG_NFT_FLOW_OFFLOAD",
}

// nameOf is what the kernel calls an expression; natkit's errors do as well.
func nameOf(e expression) string {
	switch e := e.(type) {
	case raw:
		return cmp.Or(e.what, e.name)
	case *expr.NAT:
		if e.Prefix {
			return "nat prefix"
		}
		return "nat"
	case *expr.Hash:
		return "hash"
	case *expr.Numgen:
		return "numgen"
	case *expr.Dynset:
		return "connlimit"
	case *expr.FlowOffload:
		return "flow_offload"
	case *expr.Ct:
		if e.Key == expr.CtKeyZONE {
			return "ct zone"
		}
		return "ct"
	case *expr.Notrack:
		return "notrack"
	case *expr.Fib:
		return "fib"
	case *expr.Counter:
		return "counter"
	case *expr.Reject:
		return "reject"
	case *expr.Meta:
		if e.Key == metaTimeDay || e.Key == metaTimeHour {
			return "meta hour"
		}
	case *expr.Objref:
		return "objref"
	case *expr.Log:
		return "log"
	case *expr.Limit:
		return "limit"
	}
	return ""
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
func inWords(ns *netns.Handle, messages []message, refused []netlink.Refusal) error {
	if len(refused) == 0 {
		return nil
	}
	first := refused[0] // the others follow from it
	at := indexOf(first)
	switch {
	case errors.Is(first, unix.EPERM):
		return netns.Denied(first, netns.NetAdmin)
	case at < 0 && lacks(first):
		return &Missing{"the gateway", "tables", brings["table"], first}
	case at < 0 || at >= len(messages):
		return fmt.Errorf("the kernel refuses: %w", first)
	}
	m := messages[at]
	if lacks(first) {
		if what := culprit(ns, messages, at); brings[what] != "" {
			return &Missing{m.at(first.Offset), what, brings[what], first}
		}
	}
	return &Refused{m.at(first.Offset), why(m, first), first}
}

func why(m message, r netlink.Refusal) string {
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

// lacks reports whether an error means that something does not exist or is not supported.
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
		if refused, err := send(ns, append(slices.Clone(before), try), 0, false); err != nil || len(refused) > 0 {
			return nameOf(m.rule.exprs[n])
		}
	}
	return ""
}
