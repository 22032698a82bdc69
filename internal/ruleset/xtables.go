package ruleset

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/unix"
)

// match is a match of x_tables.
func (r *Rule) match(name string, revision uint32, data []byte, ip6 bool) {
	m := &r.Match
	switch {
	case name == "comment":
		text, _, _ := bytes.Cut(data, []byte{0})
		r.Comment = string(text)
	case name == "addrtype" && isLocalDestination(revision, data):
		m.ToLocal = true
	case name == "multiport" && revision == 1 && len(data) >= 48:
		m.multiport(data)
	case name == "tcp" && revision == 0 && len(data) >= 12:
		if data[9] == tcpSYN|tcpRST && data[10] == tcpSYN && data[11] == 0 { // the mask, the flags that are set
			m.SYN = true
		} else if data[9] != 0 {
			c := FlagCondition{Mask: data[9], Set: data[10], Not: data[11]&tcpFlagsNot != 0}
			m.Flags = append(m.Flags, c)
			m.note(c.String())
		}
		m.bothPorts(data, data[11]&3, data[8] == 0) // inverted, option
	case name == "udp" && revision == 0 && len(data) >= 9:
		m.bothPorts(data, data[8], true)
	case name == "conntrack" || name == "state":
		m.connXT(name, revision, data, ip6)
	case name == "set" && len(data) >= 4 && data[3]&ipsetFirstSource != 0: // struct xt_set_info
		m.unknown(notText(data[3]&ipsetInverts != 0) + "match-set src")
	default:
		m.otherXT(name, revision, data, ip6)
	}
}

// ipsetFirstSource is IPSET_DIM_ONE_SRC: the first field of an element is the source. ipsetInverts is IPSET_INV_MATCH.
const (
	ipsetFirstSource = 1 << 1
	ipsetInverts     = 1 << 0
)

// drawsAll reports whether a condition by chance is met by all: one of each, or a probability of 1 (struct
// xt_statistic_info: of 31 bits, of the others one less).
func drawsAll(data []byte) bool {
	if len(data) < 8 || binary.NativeEndian.Uint16(data[2:]) != 0 {
		return false
	}
	number := binary.NativeEndian.Uint32(data[4:])
	return binary.NativeEndian.Uint16(data) != 0 && number == 0 || binary.NativeEndian.Uint16(data) == 0 && number >= 1<<31-1
}

// otherXT reads a match that Judge alone knows.
func (m *Match) otherXT(name string, revision uint32, data []byte, ip6 bool) {
	const random = 0 // XT_STATISTIC_MODE_RANDOM
	switch {
	case (name == "icmp" || name == "icmp6") && revision == 0 && len(data) >= 4:
		m.icmpXT(name, data)
	case (name == "mark" || name == "connmark") && revision == 1 && len(data) >= 9:
		m.markXT(name == "connmark", data)
	case name == "owner" && revision == 1 && len(data) >= 18:
		m.ownerXT(data)
	case name == "dscp" && revision == 0 && len(data) >= 2: // struct xt_dscp_info: the code point, inverted
		c := DSCPCondition{[]uint8{data[0]}, data[1] != 0}
		m.asks(c, notText(c.Not)+"dscp "+nat.DSCPName(data[0]))
		m.Part = true
	case name == "iprange" && revision == 1 && len(data) > 64:
		m.rangeXT(data, ip6)
	case name == "length" && len(data) >= 5:
		m.parts(fmt.Sprintf("-m length %s--length %d:%d", notText(data[4] != 0), binary.NativeEndian.Uint16(data), binary.NativeEndian.Uint16(data[2:])))
	case name == "statistic" && len(data) >= 2:
		m.note("-m statistic --mode " + map[bool]string{true: "random", false: "nth"}[binary.NativeEndian.Uint16(data) == random])
		m.Part = true
		if m.Random = !drawsAll(data); len(data) >= 8 && binary.NativeEndian.Uint16(data[2:]) == 0 {
			if m.Share = binary.NativeEndian.Uint32(data[4:]); binary.NativeEndian.Uint16(data) != random {
				m.Share = uint32(1 << 31 / (uint64(m.Share) + 1)) // of how many, less one
			}
		}
	case name == "time" && m.timesXT(data):
	case slices.Contains([]string{"ttl", "hl", "dscp", "tos", "ecn", "tcpmss", "string", "u32", "connbytes"}, name):
		m.parts(name)
	case name == "recent" && recentHits(data) > 1:
		m.parts(fmt.Sprintf("recent --hitcount %d", recentHits(data)))
		m.Limits = true
	case slices.Contains([]string{"limit", "hashlimit", "connlimit", "quota"}, name):
		m.parts(name + countedPer(name, revision, data))
		m.Limits = true
	default:
		m.unknown(name)
		m.Marked = m.Marked || name == "mark" || name == "connmark"
	}
}

// ownerXT reads struct xt_owner_match_info: users from and to, groups from and to, what is compared, what is inverted.
// What is inverted is met by packets of no program, too (owner_mt).
func (m *Match) ownerXT(data []byte) {
	const user, group = 1 << 0, 1 << 1
	match, inverted := data[16], data[17]
	if match&^(user|group) != 0 || match == 0 {
		m.unknown("owner")
		return
	}
	for i, bit := range []byte{user, group} {
		if match&bit == 0 {
			continue
		}
		not := inverted&bit != 0
		ids := nat.IDs{First: binary.NativeEndian.Uint32(data[8*i:]), Last: binary.NativeEndian.Uint32(data[8*i+4:])}
		m.asks(OwnerCondition{[]nat.IDs{ids}, i == 1, not, not}, fmt.Sprintf("%s--%sid-owner %s", notText(not), []string{"u", "g"}[i], ids))
	}
}

// recentHits is how many packets of an address a rule lets pass before it is met (struct xt_recent_mtinfo: seconds, hits,
// what it does, inverted); 0 where it asks whether the address is on the list.
func recentHits(data []byte) uint32 {
	const check, update = 1 << 0, 1 << 2 // XT_RECENT_CHECK, XT_RECENT_UPDATE
	if len(data) < 10 || data[8]&(check|update) == 0 || data[9] != 0 {
		return 0
	}
	return binary.NativeEndian.Uint32(data[4:])
}

// countedPer is of what a limit has one count each, as far as its options say: struct xt_hashlimit_mtinfo1 to 3
// have the mode behind a name, struct xt_connlimit_info flags behind a mask and a number.
func countedPer(name string, revision uint32, data []byte) string {
	const toPort, fromPort, to, from = 1 << 1, 1 << 3, 1 << 0, 1 << 2 // XT_HASHLIMIT_HASH_*
	const connFlags, connTo = 20, 1 << 1                              // XT_CONNLIMIT_DADDR
	mode := uint32(0)
	switch at := map[uint32]int{1: 16, 2: 272, 3: 272}[revision]; {
	case name == "connlimit" && revision == 1 && len(data) >= connFlags+4:
		if mode = from; binary.NativeEndian.Uint32(data[connFlags:])&connTo != 0 {
			mode = to
		}
	case name == "hashlimit" && at > 0 && len(data) >= at+4:
		mode = binary.NativeEndian.Uint32(data[at:])
	default:
		return ""
	}
	var per []string
	for _, field := range []struct {
		bit  uint32
		name string
	}{{from, "source"}, {to, "destination"}, {fromPort, "source port"}, {toPort, "destination port"}} {
		if mode&field.bit != 0 {
			per = append(per, field.name)
		}
	}
	if len(per) == 0 {
		return " of all together"
	}
	return " per " + strings.Join(per, " and ")
}

// tcpFlagsNot is XT_TCP_INV_FLAGS (include/uapi/linux/netfilter/xt_tcpudp.h).
const tcpFlagsNot = 0x04

// option is the condition in the words of iptables.
func (c FlagCondition) option() string {
	not := map[bool]string{false: "", true: "! "}[c.Not]
	return not + "--tcp-flags " + strings.ToUpper(flagNames(c.Mask, ",", "none")+" "+flagNames(c.Set, ",", "none"))
}

// connXT reads struct xt_state_info and xt_conntrack_mtinfo2 and 3, which asks for the state
// alone if no other flag is set (XT_CONNTRACK_STATE_ALIAS is about the name).
func (m *Match) connXT(name string, revision uint32, data []byte, ip6 bool) {
	const flagsAt, invertedAt, stateAt = 146, 148, 150
	const stateFlag, alias, snat, dnat, untracked = 1 << 0, 1 << 13, 1 << 6, 1 << 7, 1 << 8
	switch {
	case name == "state" && revision == 0 && len(data) >= 4:
		m.note(name)
		m.Conn = append(m.Conn, ConnCondition{Any: ConnBits(binary.NativeEndian.Uint32(data))})
	case name == "conntrack" && (revision == 2 || revision == 3) && len(data) >= stateAt+2:
		flags, inverted := binary.NativeEndian.Uint16(data[flagsAt:]), binary.NativeEndian.Uint16(data[invertedAt:])
		if flags&^alias != stateFlag && (revision != 3 || !m.tupleXT(data, flags, inverted, ip6)) {
			m.unknown(name)
			return
		}
		if flags&stateFlag == 0 {
			return
		}
		m.note(name)
		mask := ConnBits(binary.NativeEndian.Uint16(data[stateAt:]))
		any := mask & (ConnInvalid | ConnEstablished | ConnRelated | ConnNew)
		for bit, is := range map[ConnBits]ConnBits{snat: ConnSNAT, dnat: ConnDNAT, untracked: ConnUntracked} {
			if mask&bit != 0 {
				any |= is
			}
		}
		m.Conn = append(m.Conn, ConnCondition{Any: any, Not: inverted&stateFlag != 0})
	default:
		m.unknown(name)
	}
}

// isLocalDestination reads struct xt_addrtype_info and xt_addrtype_info_v1: masks of types
// for source and destination, then flags of 32 bits that invert and limit them (two, or
// one).
func isLocalDestination(revision uint32, data []byte) bool {
	const local = 1 << unix.RTN_LOCAL
	size := map[uint32]int{0: 12, 1: 8}[revision]
	return size != 0 && len(data) >= size &&
		binary.NativeEndian.Uint16(data) == 0 && binary.NativeEndian.Uint16(data[2:]) == local &&
		len(bytes.Trim(data[4:size], "\x00")) == 0
}

// multiport reads struct xt_multiport_v1: what is compared (0: sources, 1: destinations),
// how many ports, 15 of them, which begin a range, inverted.
func (m *Match) multiport(data []byte) {
	const rangesAt, invertedAt = 32, 47
	count := int(data[1])
	ports := map[byte]*[]nat.Ports{0: &m.SourcePorts, 1: &m.Ports}[data[0]]
	if ports == nil || count > 15 || len(*ports) > 0 {
		m.unknown("multiport")
		return
	}
	var all []nat.Ports
	port := func(i int) uint16 { return binary.NativeEndian.Uint16(data[2+2*i:]) }
	for i := 0; i < count; i++ {
		p := nat.Ports{First: port(i), Last: port(i)}
		if data[rangesAt+i] != 0 && i+1 < count {
			i++
			p.Last = port(i)
		}
		all = append(all, p)
	}
	if data[invertedAt] != 0 {
		m.asks(PortsCondition{all, data[0] == 0, true}, "multiport")
		return
	}
	*ports = all
}

// bothPorts is what struct xt_tcp and struct xt_udp begin with: source and destination
// ports, from and to, in the host's byte order. inverted has a bit for each of them, plain is true
// without a condition on TCP's options.
func (m *Match) bothPorts(data []byte, inverted byte, plain bool) {
	at := func(i int) nat.Ports {
		return nat.Ports{First: binary.NativeEndian.Uint16(data[4*i:]), Last: binary.NativeEndian.Uint16(data[4*i+2:])}
	}
	for i, list := range []*[]nat.Ports{&m.SourcePorts, &m.Ports} {
		switch ports := at(i); {
		case inverted>>i&1 != 0:
			m.asks(PortsCondition{[]nat.Ports{ports}, i == 0, true}, fmt.Sprintf("! --%sport %s", []string{"s", "d"}[i], PortsString([]nat.Ports{ports})))
		case ports == nat.AllPorts:
		case ports == nat.Ports{}: // no connection has port 0
			m.unknown("")
		default:
			m.narrow(list, ports)
		}
	}
	if !plain {
		m.parts("--tcp-option")
	}
}

// XTRange is what the three structures of NAT ranges in x_tables have in common, with
// the offsets of flags and ports in them.
type XTRange struct {
	Flags            uint32
	first, last      netip.Addr
	Ports            nat.Ports
	base             uint16 // 0 where it is not known
	FlagsAt, PortsAt int
}

// ParseXTRange finds the range in a target's data by what its revision holds there
// (xt_nat.c, xt_MASQUERADE.c, xt_REDIRECT.c, xt_NETMAP.c).
func ParseXTRange(name string, revision uint32, b []byte, ip6 bool) (r XTRange, ok bool) {
	size, firstAt, lastAt := 4, 8, 12
	switch twice := name == "SNAT" || name == "DNAT"; {
	case revision == 0 && !ip6: // struct nf_nat_ipv4_multi_range_compat, with a count of 1
		if len(b) < 20 || binary.NativeEndian.Uint32(b) != 1 {
			return r, false
		}
		r.FlagsAt, r.PortsAt = 4, 16
	case revision == 0 && !twice, (revision == 1 || revision == 2) && twice: // struct nf_nat_range, with which nf_nat_range2 begins
		if len(b) < 40 {
			return r, false
		}
		firstAt, lastAt, r.PortsAt = 4, 20, 36
		if ip6 {
			size = 16
		}
	default:
		return r, false
	}
	r.Flags = binary.NativeEndian.Uint32(b[r.FlagsAt:])
	if r.Flags&unix.NF_NAT_RANGE_MAP_IPS != 0 {
		r.first, _ = netip.AddrFromSlice(b[firstAt : firstAt+size])
		r.last, _ = netip.AddrFromSlice(b[lastAt : lastAt+size])
	}
	if r.Flags&unix.NF_NAT_RANGE_PROTO_SPECIFIED != 0 {
		r.Ports = nat.Ports{First: port(b[r.PortsAt:]), Last: port(b[r.PortsAt+2:])}
	}
	if revision == 2 && len(b) >= r.PortsAt+6 { // struct nf_nat_range2
		r.base = port(b[r.PortsAt+4:])
	}
	return r, true
}

// XTKinds are the targets of x_tables that translate.
var XTKinds = map[string]Kind{"MASQUERADE": Masquerade, "SNAT": SNAT, "DNAT": DNAT, "REDIRECT": Redirect, "NETMAP": Netmap}

// target makes the rule do what a target of x_tables does. Those that natkit does not
// know (LOG, MARK) let the packet pass. struct xt_ct_target_info and its later forms begin
// with flags of 16 bits (xt_CT.h), struct xt_tcpmss_info with the number, of which the
// largest stands for the route's (XT_TCPMSS_CLAMP_PMTU).
func (r *Rule) target(name string, revision uint32, data []byte, ip6 bool) {
	const notrack, alias, clamp = 1 << 0, 1 << 1, 0xffff   // XT_CT_NOTRACK, XT_CT_NOTRACK_ALIAS
	const ofAnswers, ofMark, both = 1 << 3, 1 << 4, 3 << 2 // XT_CT_ZONE_*
	number := uint16(0)
	if len(data) >= 2 {
		number = binary.NativeEndian.Uint16(data)
	}
	t := &r.Target
	kind, translates := XTKinds[name]
	t.Kind, t.Name = Pass, name
	switch {
	case translates:
		t.Kind = kind
		t.translation(name, revision, data, ip6, &r.Match)
	case name == "REJECT":
		t.Kind, t.Rejects = Drop, true
	case (name == "TTL" || name == "HL") && len(data) >= 2 && data[0] == 0: // IPT_TTL_SET
		t.hops(data[1], map[bool]string{false: "TTL --ttl-set %d", true: "HL --hl-set %d"}[ip6])
	case name == "NFQUEUE" && len(data) >= 2:
		t.queueXT(revision, data)
	case name == "MARK" || name == "CONNMARK":
		r.Marks = append(r.Marks, setMarkXT(name == "CONNMARK", revision, data))
	case name == notrackAlias, name == "CT" && number&notrack != 0:
		if t.Kind = Notrack; number&alias != 0 {
			t.Name = notrackAlias
		}
	case name == "CT" && len(data) >= 4 && binary.NativeEndian.Uint16(data[2:]) != 0 && number&ofMark == 0:
		var direction []byte
		if number&both != both && number&both != 0 {
			direction = []byte{byte(number & ofAnswers / ofAnswers)}
		}
		t.setZone(binary.NativeEndian.Uint16(data[2:]), direction)
		t.Name = fmt.Sprintf("CT --zone %d", max(t.Zone, t.AnswerZone))
	case name == "TCPMSS" && number == clamp:
		t.Kind, t.Clamp = MSS, true
	case name == "TCPMSS" && number != 0:
		t.Kind, t.Bytes = MSS, number
	}
}

// notrackAlias is what CT --notrack was called before, and what iptables deletes a rule by that was added so: since
// revision 2 of CT it is a flag of its own (xt_CT.h).
const notrackAlias = "NOTRACK"

// hops sets how many hops a packet may still take.
func (t *Target) hops(n uint8, words string) {
	t.Hops, t.SetsHops, t.Name = n, true, fmt.Sprintf(words, n)
}

// queueXT reads struct xt_NFQ_info and its later forms: the first queue, how many, flags.
func (t *Target) queueXT(revision uint32, data []byte) {
	const bypass = 1
	t.Queued, t.Queue.First = true, binary.NativeEndian.Uint16(data)
	t.Queue.Last = t.Queue.First
	if revision >= 1 && len(data) >= 4 {
		t.Queue.Last += max(binary.NativeEndian.Uint16(data[2:]), 1) - 1
	}
	t.Bypass = revision >= 2 && len(data) >= 6 && binary.NativeEndian.Uint16(data[4:])&bypass != 0
	t.Name = "NFQUEUE --queue-num " + PortsString([]nat.Ports{t.Queue})
}

// setMarkXT reads struct xt_mark_tginfo2 and xt_connmark_tginfo1 and 2: of a mark the value and its mask,
// of a connection's these, the packet's mask and what to do.
func setMarkXT(connection bool, revision uint32, data []byte) SetMark {
	const set, restores, all = 0, 2, ^uint32(0)
	mode := map[uint32]int{1: 12, 2: 14}[revision]
	switch {
	case !connection && revision == 2 && len(data) >= 8:
		return SetMark{Value: binary.NativeEndian.Uint32(data), Mask: binary.NativeEndian.Uint32(data[4:])}
	case !connection || mode == 0 || len(data) <= mode:
		return SetMark{Connection: connection, From: true, Mask: all}
	case data[mode] == set:
		return SetMark{Connection: true, Value: binary.NativeEndian.Uint32(data), Mask: binary.NativeEndian.Uint32(data[4:])}
	}
	return SetMark{Connection: data[mode] != restores, Copy: true, Mask: all}
}

func (t *Target) translation(name string, revision uint32, data []byte, ip6 bool, m *Match) {
	n, ok := ParseXTRange(name, revision, data, ip6)
	if !ok {
		m.unknown("revision " + fmt.Sprint(revision) + " of " + name)
		return
	}
	t.First, t.Last, t.Ports = n.first, n.last, n.Ports
	t.setFlags(n.Flags)
	if t.Name = name; n.Flags&unix.NF_NAT_RANGE_PROTO_OFFSET != 0 {
		t.shifted(n.base)
	}
}

// Layout holds the offsets of the fields of struct ipt_entry and struct ip6t_entry
// (include/uapi/linux/netfilter_ipv4/ip_tables.h and its twin) on 64-bit kernels. Both
// begin with source, destination and their masks.
type Layout struct {
	Family                   string
	addr                     int // bytes of an address
	proto, flags, inverted   int
	targetOffset, nextOffset int
	packets                  int // the counter
	size                     int
	gotoFlag, otherFlag      byte // IPT_F_GOTO; IPT_F_FRAG, IP6T_F_TOS
}

// The two layouts.
var (
	LayoutIP4 = Layout{"ip", 4, 80, 82, 83, 88, 90, 96, 112, 2, 1}
	LayoutIP6 = Layout{"ip6", 16, 128, 131, 132, 140, 142, 152, 168, 4, 2}
)

const (
	nameBytes = unix.IFNAMSIZ
	xtHeader  = 32 // struct xt_entry_match and xt_entry_target: size, name, revision
)

// LegacyInfo is struct ipt_getinfo.
type LegacyInfo struct {
	validHooks uint32
	entry      [unix.NF_INET_NUMHOOKS]uint32
	Size       uint32 // of the rules, in bytes
}

// LegacyInfoSize is the size of struct ipt_getinfo: a name of 32 bytes, the valid hooks,
// five entries and five ends of them, the number of rules, their size.
const LegacyInfoSize = 84

// ParseLegacyInfo parses the answer to IPT_SO_GET_INFO.
func ParseLegacyInfo(b []byte) (i LegacyInfo, err error) {
	if len(b) < LegacyInfoSize {
		return i, errLegacy
	}
	i.validHooks = binary.NativeEndian.Uint32(b[32:])
	for hook := range i.entry {
		i.entry[hook] = binary.NativeEndian.Uint32(b[36+4*hook:])
	}
	i.Size = binary.NativeEndian.Uint32(b[80:])
	return i, nil
}

// legacyEntry is one rule of a blob; target is where its target begins.
type legacyEntry struct {
	l              *Layout
	offset, target int
	b              []byte
	x              extension
}

var errLegacy = errors.New("a rule's size does not fit what holds it")

func (l *Layout) entries(blob []byte) (all []legacyEntry, err error) {
	for at := 0; at < len(blob); {
		rest := blob[at:]
		if len(rest) < l.size {
			return nil, errLegacy
		}
		target := int(binary.NativeEndian.Uint16(rest[l.targetOffset:]))
		next := int(binary.NativeEndian.Uint16(rest[l.nextOffset:]))
		if target < l.size || next < target+xtHeader || next > len(rest) {
			return nil, errLegacy
		}
		e := legacyEntry{l: l, offset: at, target: target, b: rest[:next]}
		if e.x, err = parseExtension(e.b[target:]); err != nil {
			return nil, err
		}
		all = append(all, e)
		at += next
	}
	return all, nil
}

// extension is a match or a target.
type extension struct {
	name     string
	revision uint32
	data     []byte
}

func parseExtension(b []byte) (extension, error) {
	if len(b) < xtHeader {
		return extension{}, errLegacy
	}
	size := int(binary.NativeEndian.Uint16(b))
	if size < xtHeader || size > len(b) {
		return extension{}, errLegacy
	}
	return extension{cString(b[2:31]), uint32(b[31]), b[xtHeader:size]}, nil
}

func cString(b []byte) string {
	text, _, _ := bytes.Cut(b, []byte{0})
	return string(text)
}

// ParseLegacy parses the blob of a table (IPT_SO_GET_ENTRIES).
func ParseLegacy(l *Layout, name string, info LegacyInfo, blob []byte) (*Table, error) {
	all, err := l.entries(blob)
	if err != nil {
		return nil, fmt.Errorf("parse table %s (%s): %w", name, l.Family, err)
	}
	t := &Table{Source: "iptables-legacy", Family: l.Family, Name: name}
	first := map[int]string{} // the chain that begins at an offset
	for hook, at := range info.entry {
		if info.validHooks>>hook&1 == 1 {
			chain := strings.ToUpper(HookNames[hook])
			first[int(at)] = chain
			t.builtin(chain)
		}
	}
	for i, e := range all { // a target ERROR, which no packet reaches, begins a chain
		if e.x.name == "ERROR" && i+1 < len(all) {
			first[all[i+1].offset] = cString(e.x.data)
		}
	}
	var current *Chain
	for _, e := range all {
		if name := first[e.offset]; name != "" {
			current = t.Chain(name)
		}
		if e.x.name == "ERROR" || current == nil {
			current = nil
			continue
		}
		r, err := e.rule(first)
		if err != nil {
			return nil, fmt.Errorf("parse table %s (%s): %w", name, l.Family, err)
		}
		current.Rules = append(current.Rules, r)
	}
	t.policies()
	return t, nil
}

// policies takes the last rule off each chain: its policy, or the return.
func (t *Table) policies() {
	for _, c := range t.Chains {
		last := len(c.Rules) - 1
		if last < 0 {
			continue
		}
		if c.Hook != "" {
			c.Policy = map[bool]string{true: "accept", false: "drop"}[c.Rules[last].Target.Kind == Accept]
			c.Packets, c.Counted = c.Rules[last].Packets, true
		}
		c.Rules = c.Rules[:last]
	}
}

func (e *legacyEntry) rule(first map[int]string) (*Rule, error) {
	r := &Rule{Target: Target{Kind: Pass}, Counted: true, Packets: binary.NativeEndian.Uint64(e.b[e.l.packets:])}
	e.conditions(&r.Match)
	for at := e.l.size; at < e.target; {
		x, err := parseExtension(e.b[at:e.target])
		if err != nil {
			return nil, err
		}
		r.match(x.name, x.revision, x.data, e.l.Family == "ip6")
		at += xtHeader + len(x.data)
	}
	if e.x.name == "" {
		e.standard(r, first)
	} else {
		r.target(e.x.name, e.x.revision, e.x.data, e.l.Family == "ip6")
	}
	r.Match.settle()
	return r, nil
}

// standard is a verdict: the offset of a chain unless it is negative.
func (e *legacyEntry) standard(r *Rule, first map[int]string) {
	const drop, returns = -1, -5 // -NF_DROP-1, XT_RETURN
	if len(e.x.data) < 4 {
		r.Match.unknown("")
		return
	}
	v := int32(binary.NativeEndian.Uint32(e.x.data))
	switch chain := first[int(v)]; {
	case v == drop:
		r.Target.Kind = Drop
	case v == returns:
		r.Target.Kind = Return
	case v < 0:
		r.Target.Kind = Accept
	case chain != "":
		r.Target.Kind, r.Target.Chains = Jump, []string{chain}
		if e.b[e.l.flags]&e.l.gotoFlag != 0 {
			r.Target.Kind = Goto
		}
	}
}

// conditions are addresses, interfaces and protocol, which every rule has.
func (e *legacyEntry) conditions(m *Match) {
	a := e.l.addr
	m.setPrefix(&m.From, prefixOf(e.b[:a], e.b[2*a:3*a]))
	m.setPrefix(&m.To, prefixOf(e.b[a:2*a], e.b[3*a:4*a]))
	names := e.b[4*a:]
	m.In = Some(legacyInterface(names, names[2*nameBytes:]))
	m.Out = Some(legacyInterface(names[nameBytes:], names[3*nameBytes:]))
	m.Protocol = uint8(binary.NativeEndian.Uint16(e.b[e.l.proto:]))
	if e.b[e.l.flags]&e.l.otherFlag != 0 {
		m.unknown("fragments or type of service")
	}
	m.invert(e.b[e.l.inverted])
}

// invert takes back the conditions that are inverted (IPT_INV_*). One that every packet
// meets is inverted to one that none does.
func (m *Match) invert(flags byte) {
	if flags&0x01 != 0 {
		takeBack(m, &m.NotIn, &m.In)
	}
	if flags&0x02 != 0 {
		takeBack(m, &m.NotOut, &m.Out)
	}
	if flags&0x08 != 0 {
		takeBack(m, &m.NotFrom, &m.From)
	}
	if flags&0x10 != 0 {
		takeBack(m, &m.NotTo, &m.To)
	}
	if protocol := m.Protocol; flags&0x40 != 0 {
		m.Protocol = 0
		m.asks(ProtocolCondition{protocol}, "! -p "+nat.ProtocolName(protocol))
	}
	if flags&^0x5b != 0 {
		m.unknown("fragments inverted")
	}
}

func takeBack[T any](m *Match, not, is *[]T) {
	if len(*is) == 0 {
		m.unknown("none of all addresses or interfaces")
	}
	*not, *is = *is, nil
}

// legacyInterface is a name; the mask determines how much of it is compared.
func legacyInterface(name, mask []byte) string {
	compared := 0
	for compared < nameBytes && mask[compared] != 0 {
		compared++
	}
	n, _, exact := bytes.Cut(name[:compared], []byte{0})
	if compared == 0 || exact || compared == nameBytes {
		return string(n)
	}
	return string(n) + "*"
}
