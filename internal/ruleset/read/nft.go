package read

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/privilege"
	"github.com/natkit/natkit/internal/snapshot"
	"golang.org/x/sys/unix"
)

// silence is how long the kernel may tell nothing. A dump of any length goes on for as
// long as it makes progress.
const silence = 20 * time.Second

// dumpBuffer has room for more than the kernel tells in one piece: as much as there is
// room for, 32 kB at most (netlink_recvmsg: max_recvmsg_len). The fewer pieces the better:
// for each of them it goes through a hashed set from its beginning (nft_rhash_walk).
const dumpBuffer = 64 << 10

// conn speaks with nf_tables in one namespace.
type conn struct{ *netlink.Conn }

// dial makes a socket in a namespace; nil is the calling process's.
func dial(ns *netns.Handle) (c conn, err error) {
	err = ns.Do(func() (err error) {
		c.Conn, err = netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{MessageBufferSize: dumpBuffer})
		return err
	})
	if err != nil {
		return c, fmt.Errorf("open a socket to nf_tables: %w", err)
	}
	return c, c.SetDeadline(time.Now().Add(silence))
}

// over reads by a connection of its own, and nothing where the kernel has no nfnetlink.
func over[T any](ns *netns.Handle, read func(conn) (T, error)) (nothing T, err error) {
	c, err := dial(ns)
	if err != nil {
		return nothing, unless(err, unix.EPROTONOSUPPORT)
	}
	defer c.Close()
	return read(c)
}

func nftType(msg int) netlink.HeaderType {
	return netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | msg)
}

// header is an nfgenmsg (include/uapi/linux/netfilter/nfnetlink.h).
func header(family uint8) []byte { return []byte{family, unix.NFNETLINK_V0, 0, 0} }

// ask sends one request and returns the answers.
func (c conn) ask(msg int, family uint8, flags netlink.HeaderFlags, request []byte) ([]netlink.Message, error) {
	asked, err := c.Send(netlink.Message{
		Header: netlink.Header{Type: nftType(msg), Flags: netlink.Request | flags},
		Data:   append(header(family), request...),
	})
	if err == nil {
		err = c.SetDeadline(time.Now().Add(silence))
	}
	if err != nil {
		return nil, err
	}
	var answers []netlink.Message
	for m, err := range c.ReceiveIter() {
		if err != nil {
			return nil, err
		}
		answers = append(answers, m)
		if err := c.SetDeadline(time.Now().Add(silence)); err != nil {
			return nil, err
		}
	}
	return answers, netlink.Validate(asked, answers)
}

// errAbsent: the kernel has no nf_tables, and so no rules of it.
var errAbsent = errors.New("this kernel has no nf_tables")

// explain adds what to do about the kernel's refusal.
func explain(err error) error {
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return privilege.Denied(err, privilege.NetAdmin)
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EPROTONOSUPPORT):
		// nfnetlink_rcv_msg does not know the subsystem.
		return errAbsent
	}
	return err
}

// generation counts the transactions of a namespace's rule set.
func (c conn) generation() (uint32, error) {
	answers, err := c.ask(unix.NFT_MSG_GETGEN, unix.AF_UNSPEC, 0, nil)
	if err != nil {
		return 0, err
	}
	for _, m := range answers {
		if _, a, err := body(m.Data); err == nil && a.has(nftGenID) {
			return a.u32(nftGenID), nil
		}
	}
	return 0, errors.New("the kernel does not tell the generation of its rules")
}

// Generation counts the transactions on the rule set of a namespace (nil: this one); 0
// where the kernel has no nf_tables. Each one that changes something adds 1
// (nf_tables_commit). Needs CAP_NET_ADMIN in that namespace.
func Generation(ns *netns.Handle) (uint32, error) {
	return over(ns, func(c conn) (uint32, error) {
		generation, err := c.generation()
		return generation, unless(explain(err), errAbsent)
	})
}

// settled reads until nobody changed the rules meanwhile, and tells their generation;
// there is false where the kernel has no nf_tables.
func (c conn) settled(read func() error) (generation uint32, there bool, err error) {
	for range attempts {
		before, err := c.generation()
		if err = explain(err); err != nil {
			return 0, false, unless(err, errAbsent)
		}
		readErr := read()
		after, err := c.generation()
		switch {
		case err != nil:
			return 0, false, explain(err)
		case before == after:
			return before, true, explain(readErr)
		}
	}
	return 0, false, fmt.Errorf("another program changed the rules %d times while they were read: try again when it has ended", attempts)
}

// unless is err where it is not that one.
func unless(err, that error) error {
	if errors.Is(err, that) {
		return nil
	}
	return err
}

// chains are those of all families.
func (c conn) chains() ([]kernelChain, error) {
	answers, err := c.ask(unix.NFT_MSG_GETCHAIN, unix.AF_UNSPEC, netlink.Dump, nil)
	if err != nil {
		return nil, err
	}
	var all []kernelChain
	for _, m := range answers {
		chain, err := parseChain(m.Data)
		if err != nil {
			return nil, err
		}
		all = append(all, chain)
	}
	return all, nil
}

// tables are the flags of all tables.
func (c conn) tables() (map[tableKey]uint32, error) {
	answers, err := c.ask(unix.NFT_MSG_GETTABLE, unix.AF_UNSPEC, netlink.Dump, nil)
	if err != nil {
		return nil, err
	}
	flags := map[tableKey]uint32{}
	for _, m := range answers {
		family, a, err := body(m.Data)
		if err != nil {
			return nil, fmt.Errorf("parse table: %w", err)
		}
		flags[tableKey{family, a.text(nftTableName)}] = a.u32(nftTableFlags)
	}
	return flags, nil
}

// rules are those of one table, chain by chain, in order.
func (c conn) rules(t tableKey) ([]*kernelRule, error) {
	answers, err := c.ask(unix.NFT_MSG_GETRULE, t.family, netlink.Dump, appendText(nil, nftRuleTable, t.name))
	if err != nil {
		return nil, fmt.Errorf("read rules of table %s: %w", t, err)
	}
	var all []*kernelRule
	for _, m := range answers {
		r, err := parseRule(m.Data)
		if err != nil {
			return nil, err
		}
		if (tableKey{r.family, r.table}) == t { // kernels before 4.6 do not choose
			all = append(all, r)
		}
	}
	return all, nil
}

// verdicts are the chains that a verdict map leads to, by name: the kernel tells the
// elements of a hash in no order.
func (c conn) verdicts(t tableKey, set string) ([]string, error) {
	request := appendText(appendText(nil, nftSetElemListTable, t.name), nftSetElemListSet, set)
	answers, err := c.ask(unix.NFT_MSG_GETSETELEM, t.family, netlink.Dump, request)
	if err != nil {
		return nil, fmt.Errorf("read map %s of table %s: %w", set, t, err)
	}
	var chains []string
	for _, m := range answers {
		some, err := parseVerdicts(m.Data)
		if err != nil {
			return nil, err
		}
		chains = append(chains, some...)
	}
	slices.Sort(chains)
	return chains, nil
}

// links are the names of the interfaces of a namespace by index.
func links(ns *netns.Handle) (map[uint32]string, error) {
	names := map[uint32]string{}
	read := func() error {
		all, err := net.Interfaces()
		for _, l := range all {
			names[uint32(l.Index)] = l.Name
		}
		return err
	}
	return names, ns.Do(read)
}

// setFlags takes the options out of NF_NAT_RANGE_* flags.
func setFlags(r *snapshot.NATRule, flags uint32) {
	r.Random = flags&rangeRandom != 0
	r.FullyRandom = flags&rangeFullyRandom != 0
	r.Persistent = flags&rangePersistent != 0
}

// words are nft's for the translation; inner is what it puts in place of an
// address and ports that are not constant.
func words(r *snapshot.NATRule, family string, netmap bool, inner string) string {
	text := r.Kind
	if family == "inet" && r.First.IsValid() {
		text += map[bool]string{true: " ip", false: " ip6"}[r.First.Is4()]
	}
	if netmap {
		text += " prefix"
	}
	if to := target(r, netmap) + inner; to != "" {
		text += " to " + to
	}
	if options := optionWords(r); options != "" {
		text += " " + options
	}
	return text
}

func optionWords(r *snapshot.NATRule) string {
	var on []string
	for _, o := range []struct {
		on   bool
		name string
	}{{r.Random, "random"}, {r.FullyRandom, "fully-random"}, {r.Persistent, "persistent"}} {
		if o.on {
			on = append(on, o.name)
		}
	}
	return strings.Join(on, ",")
}

func target(r *snapshot.NATRule, netmap bool) string {
	ports := ""
	if r.FirstPort != 0 {
		ports = fmt.Sprintf(":%d", r.FirstPort)
		if r.LastPort != r.FirstPort {
			ports += fmt.Sprintf("-%d", r.LastPort)
		}
	}
	switch {
	case !r.First.IsValid():
		return ports
	case netmap:
		if p := (nat.AddrRange{First: r.First, Last: r.Last}).Prefix(); p.IsValid() {
			return p.String()
		}
	}
	one := func(a netip.Addr) string {
		if a.Is6() && ports != "" {
			return "[" + a.String() + "]"
		}
		return a.String()
	}
	if r.Last == r.First {
		return one(r.First) + ports
	}
	return one(r.First) + "-" + one(r.Last) + ports
}

// prefixOf is an address with a netmask; not valid where the mask has holes.
func prefixOf(addr, mask []byte) netip.Prefix {
	a, ok := netip.AddrFromSlice(addr)
	if !ok || len(mask) != len(addr) {
		return netip.Prefix{}
	}
	bits, ended := 0, false
	for _, m := range mask {
		for bit := 7; bit >= 0; bit-- {
			switch set := m>>bit&1 == 1; {
			case set && ended:
				return netip.Prefix{}
			case set:
				bits++
			default:
				ended = true
			}
		}
	}
	return netip.PrefixFrom(a, bits)
}

// natRange is what the three structures of ranges in x_tables have in common.
type natRange struct {
	flags                 uint32
	first, last           netip.Addr
	firstPort, lastPort   uint16
	flagsAt, portsAt, end int // offsets in the structure
}

// parseCompatRange reads struct nf_nat_ipv4_multi_range_compat: a count, which
// is 1, then flags, addresses and ports.
func parseCompatRange(b []byte) (natRange, bool) {
	if len(b) < 20 || binary.NativeEndian.Uint32(b) != 1 {
		return natRange{}, false
	}
	n := natRange{flags: binary.NativeEndian.Uint32(b[4:]), flagsAt: 4, portsAt: 16, end: 20}
	n.setAddrs(b[8:12], b[12:16])
	n.setPorts(b)
	return n, true
}

// parseRange reads struct nf_nat_range, with which nf_nat_range2 begins.
func parseRange(b []byte, ip6 bool) (natRange, bool) {
	if len(b) < 40 {
		return natRange{}, false
	}
	n := natRange{flags: binary.NativeEndian.Uint32(b), portsAt: 36, end: 40}
	size := 4
	if ip6 {
		size = 16
	}
	n.setAddrs(b[4:4+size], b[20:20+size])
	n.setPorts(b)
	return n, true
}

func (n *natRange) setAddrs(first, last []byte) {
	if n.flags&rangeMapIPs != 0 {
		n.first, _ = netip.AddrFromSlice(first)
		n.last, _ = netip.AddrFromSlice(last)
	}
}

func (n *natRange) setPorts(b []byte) {
	if n.flags&rangePorts != 0 {
		n.firstPort, n.lastPort = beUint16(b[n.portsAt:]), beUint16(b[n.portsAt+2:])
	}
}

// xtRange finds the range in a target's data by what its revision holds there
// (xt_nat.c, xt_MASQUERADE.c, xt_REDIRECT.c, xt_NETMAP.c).
func xtRange(name string, revision uint32, data []byte, ip6 bool) (natRange, bool) {
	switch {
	case revision == 0 && !ip6:
		return parseCompatRange(data)
	case revision == 0 && name != "SNAT" && name != "DNAT", (revision == 1 || revision == 2) && (name == "SNAT" || name == "DNAT"):
		return parseRange(data, ip6)
	}
	return natRange{}, false
}

// xtKinds are the targets of x_tables that translate.
var xtKinds = map[string]string{
	"MASQUERADE": snapshot.NATMasquerade, "SNAT": snapshot.NATSource,
	"DNAT": snapshot.NATDest, "REDIRECT": snapshot.NATRedirect, "NETMAP": snapshot.NATDest,
}

// target makes the step one that translates as an x_tables target does. What the
// data hold that is not known makes it partial.
func (s *step) target(name string, revision uint32, data []byte, family string) {
	kind, known := xtKinds[name]
	if name == "REJECT" {
		s.refuse("reject")
	}
	if !known {
		s.other = name
		s.besides(name, data)
		return // LOG, MARK and the like let the packet pass on
	}
	s.translates, s.rule.Kind = true, kind
	n, ok := xtRange(name, revision, data, family == "ip6")
	r := &s.rule
	if !ok {
		r.Partial, r.Text = true, kind
		return
	}
	r.First, r.Last, r.FirstPort, r.LastPort = n.first, n.last, n.firstPort, n.lastPort
	setFlags(r, n.flags)
	s.netmap, s.shifts = name == "NETMAP", n.flags&rangeOffset != 0
	r.Text = words(r, family, s.netmap, "")
}
