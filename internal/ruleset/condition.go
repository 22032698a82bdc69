package ruleset

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/unix"
)

// Condition is one that Judge alone decides on.
type Condition interface {
	judge(*Packet) answer
}

// asked is the answer to a condition that is met or not, or the opposite of it.
func asked(met, not bool) answer {
	if met != not {
		return yes
	}
	return no
}

// ICMPCondition asks for messages of a type, or of the codes from First to Last of it; ICMPv6 is of its
// own protocol.
type ICMPCondition struct {
	Protocol          uint8
	Type, First, Last uint8
	Not               bool
}

func (c ICMPCondition) judge(p *Packet) answer {
	switch {
	case p.Protocol != c.Protocol:
		return no
	case !p.ICMP:
		return maybe
	}
	return asked(p.Type == c.Type && c.First <= p.Code && p.Code <= c.Last, c.Not)
}

// marks is the mark of a packet, or of its connection, as far as rules that it met have set it.
type marks struct {
	value, unknown uint32
}

// SetMark is what a rule does to the mark of a packet or, with Connection, of its connection: the bits of
// Mask become those of Value, of the other mark with Copy, or, with From, something that natkit does not
// follow.
type SetMark struct {
	Connection, Copy, From bool
	Value, Mask            uint32
}

// mark takes what a rule sets; what it may set is not known from then on.
func (p *Packet) mark(s SetMark, met answer) {
	m, before := &p.marks[markOf(s.Connection)], p.marks[markOf(s.Connection)]
	other := p.marks[markOf(!s.Connection)]
	switch {
	case s.Copy:
		*m = marks{before.value&^s.Mask | other.value&s.Mask, before.unknown&^s.Mask | other.unknown&s.Mask}
	case s.From:
		m.unknown |= s.Mask
	default:
		*m = marks{before.value&^s.Mask | s.Value&s.Mask, before.unknown &^ s.Mask}
	}
	if met != yes {
		m.unknown |= before.unknown | m.value ^ before.value
	}
}

// Marked returns the mark that rules gave to the packet, and the bits of it that are not known.
func (p *Packet) Marked() (value, unknown uint32) { return p.marks[0].value, p.marks[0].unknown }

// MarkCondition asks for a mark, of which Mask counts.
type MarkCondition struct {
	Connection  bool
	Value, Mask uint32
	Not         bool
}

func (c MarkCondition) judge(p *Packet) answer {
	m := p.marks[markOf(c.Connection)]
	if m.unknown&c.Mask != 0 {
		return maybe
	}
	return asked(m.value&c.Mask == c.Value, c.Not)
}

func markOf(connection bool) int {
	if connection {
		return 1
	}
	return 0
}

// OriginalCondition asks for the destination that the connection's first packet had.
type OriginalCondition struct {
	To    netip.Prefix
	Ports nat.Ports
	Not   bool
}

func (c OriginalCondition) judge(p *Packet) answer {
	address, port := p.original()
	switch {
	case c.To.IsValid() && !address.IsValid(), !c.To.IsValid() && port == 0:
		return maybe
	case c.To.IsValid():
		return asked(c.To.Contains(address), c.Not)
	}
	return asked(c.Ports.First <= port && port <= c.Ports.Last, c.Not)
}

// original returns the destination that the connection's first packet had, as far as it is known.
func (p *Packet) original() (netip.Addr, uint16) {
	switch {
	case p.Conn&ConnDNAT != 0:
		return p.OriginalDst, p.OriginalPort
	case p.Reply:
		return p.Src, p.SrcPort
	}
	return p.Dst, p.DstPort
}

// DirectionCondition asks for answers, or for packets that are none.
type DirectionCondition struct{ Reply bool }

func (c DirectionCondition) judge(p *Packet) answer { return asked(p.Reply == c.Reply, false) }

// PortsCondition asks for one of the ports, or, with Not, for another one.
type PortsCondition struct {
	Ports  []nat.Ports
	Source bool
	Not    bool
}

func (c PortsCondition) judge(p *Packet) answer {
	port := p.DstPort
	if c.Source {
		port = p.SrcPort
	}
	switch {
	case !nat.HasPorts(p.Protocol):
		return no
	case port == 0:
		return maybe
	}
	return asked(slices.ContainsFunc(c.Ports, func(r nat.Ports) bool { return r.First <= port && port <= r.Last }), c.Not)
}

// AddressCondition asks for an address of a range.
type AddressCondition struct {
	nat.AddrRange
	Source, Not bool
}

func (c AddressCondition) judge(p *Packet) answer {
	address := p.Dst
	if c.Source {
		address = p.Src
	}
	if !address.IsValid() {
		return maybe
	}
	return asked(c.First.Compare(address) <= 0 && address.Compare(c.Last) <= 0, c.Not)
}

// never is a condition that no packet of IP meets.
type never struct{}

func (never) judge(*Packet) answer { return no }

// asks adds a condition for Judge alone; what is its text.
func (m *Match) asks(c Condition, what string) {
	m.note(what)
	m.Conditions = append(m.Conditions, c)
}

// parts notes a condition that some packets of a connection meet and others do not: by their length, or
// by chance.
func (m *Match) parts(what string) {
	m.note(what)
	m.Part, m.Loose = true, true
}

// OwnerCondition asks for what programs of users send, or, with Group, of groups; with Not for what programs of others
// send and, with Ownerless, for what no program of this host sends.
type OwnerCondition struct {
	Of                    []nat.IDs
	Group, Not, Ownerless bool
}

func (c OwnerCondition) judge(*Packet) answer { return maybe }

func (c OwnerCondition) plain(m *nat.Match, own bool) bool {
	is, not := &m.Users, &m.NotUsers
	if c.Group {
		is, not = &m.Groups, &m.NotGroups
	}
	if !c.Not {
		return only(is, c.Of)
	}
	*not = nat.Union(*not, c.Of)
	return own || !c.Ownerless
}

// DSCPCondition asks for code points (RFC 2474), or, with Not, for others.
type DSCPCondition struct {
	Points []uint8
	Not    bool
}

func (c DSCPCondition) judge(*Packet) answer { return maybe }

func (c DSCPCondition) plain(m *nat.Match, _ bool) bool {
	if c.Not {
		m.NotDSCP = nat.Union(m.NotDSCP, c.Points)
		return true
	}
	return only(&m.DSCP, c.Points)
}

// ProtocolCondition asks for another protocol.
type ProtocolCondition struct{ Not uint8 }

func (c ProtocolCondition) judge(p *Packet) answer { return asked(p.Protocol == c.Not, true) }

func (c ProtocolCondition) plain(m *nat.Match, _ bool) bool {
	m.NotServices = nat.Union(m.NotServices, []nat.Service{{Protocol: c.Not, Ports: nat.AllPorts}})
	return true
}

func (c MarkCondition) plain(m *nat.Match, _ bool) bool {
	k := nat.Mark{Value: c.Value, Mask: c.Mask}
	switch {
	case c.Connection, c.Value&^c.Mask != 0, c.Mask == 0:
		return false
	case c.Not:
		m.NotMarks = nat.Union(m.NotMarks, []nat.Mark{k})
		return true
	}
	both, ok := (&nat.Match{Mark: m.Mark}).And(&nat.Match{Mark: k})
	m.Mark = both.Mark
	return ok
}

func (c PortsCondition) plain(m *nat.Match, _ bool) bool {
	for _, p := range c.Ports {
		m.NotServices = nat.Union(m.NotServices, []nat.Service{{Protocol: m.Protocol, Ports: p}})
	}
	return c.Not && !c.Source && nat.HasPorts(m.Protocol)
}

func (c AddressCondition) plain(m *nat.Match, _ bool) bool {
	is, not := &m.To, &m.NotTo
	if c.Source {
		is, not = &m.From, &m.NotFrom
	}
	if c.Not {
		*not = nat.Union(*not, c.Prefixes())
		return true
	}
	before := *is
	*is = nil
	for _, p := range c.Prefixes() {
		for _, o := range before {
			if both, ok := nat.CommonPrefix(o, p); ok {
				*is = append(*is, both)
			}
		}
		if len(before) == 0 {
			*is = append(*is, p)
		}
	}
	return len(*is) > 0
}

// only sets a condition that there is none of so far, or leaves the same.
func only[T comparable](field *[]T, list []T) bool {
	same := len(*field) == 0 || slices.Equal(*field, list)
	*field = list
	return same
}

// WithoutShare is the match of all packets of which a share meets m.
func (m *Match) WithoutShare() Match {
	all := *m
	if m.Share > 0 {
		all.Share, all.Random = 0, false
		all.Unknown = slices.DeleteFunc(slices.Clone(m.Unknown), func(text string) bool { return strings.Contains(text, "statistic") })
		if len(all.Unknown) == 0 {
			all.Unknown, all.Part = nil, false
		}
	}
	return all
}

// Plain makes conditions of a match that packets at the begin of a connection meet all of, and of those that nat.Match
// has fields for, the fields. It leaves the match as it is if that is not possible for each. own is true where all
// packets are of programs on this host.
func (m *Match) Plain(own bool) {
	if len(m.Unknown) == 0 || m.Share > 0 || m.Opaque || m.Loose || m.Limits || m.Random || len(m.Flags)+len(m.Sets) > 0 {
		return
	}
	one := m.Match
	for _, c := range m.Conditions {
		p, is := c.(interface{ plain(*nat.Match, bool) bool })
		if !is || !p.plain(&one, own) {
			return
		}
	}
	for _, c := range m.Conn {
		if !c.met(ConnNew) {
			return
		}
	}
	*m = Match{Match: one, SYN: m.SYN, Nearly: m.Nearly}
}

func notText(not bool) string {
	if not {
		return "! "
	}
	return ""
}

// icmpXT reads struct ipt_icmp and ip6t_icmp: the type, the codes from and to, inverted.
func (m *Match) icmpXT(name string, data []byte) {
	const every = 0xff
	not := data[3]&1 != 0
	if data[0] == every && name == "icmp" && !not {
		return
	}
	c := ICMPCondition{unix.IPPROTO_ICMP, data[0], data[1], data[2], not}
	text := fmt.Sprintf("%s--icmp-type %d", notText(not), data[0])
	if name == "icmp6" {
		c.Protocol, text = unix.IPPROTO_ICMPV6, fmt.Sprintf("%s--icmpv6-type %d", notText(not), data[0])
	}
	if c.First == c.Last {
		text += fmt.Sprintf("/%d", c.First)
	}
	m.asks(c, text)
}

// markXT reads struct xt_mark_mtinfo1 and xt_connmark_mtinfo1: the mark, its mask, inverted.
func (m *Match) markXT(connection bool, data []byte) {
	c := MarkCondition{connection, binary.NativeEndian.Uint32(data), binary.NativeEndian.Uint32(data[4:]), data[8] != 0}
	text := fmt.Sprintf("%s--mark 0x%x", notText(c.Not), c.Value)
	if c.Mask != ^uint32(0) {
		text += fmt.Sprintf("/0x%x", c.Mask)
	}
	if connection {
		text = "connmark " + text
	}
	m.Marked = true
	m.asks(c, text)
}

// rangeXT reads struct xt_iprange_mtinfo: sources from and to, destinations from and to, flags.
func (m *Match) rangeXT(data []byte, ip6 bool) {
	const source, destination, notSource, notDestination = 1, 2, 1 << 4, 1 << 5
	size := map[bool]int{false: 4, true: 16}[ip6]
	address := func(i int) netip.Addr { a, _ := netip.AddrFromSlice(data[16*i : 16*i+size]); return a }
	if flags := data[64]; flags&source != 0 {
		c := AddressCondition{nat.AddrRange{First: address(0), Last: address(1)}, true, flags&notSource != 0}
		m.asks(c, fmt.Sprintf("%s--src-range %s-%s", notText(c.Not), c.First, c.Last))
	}
	if flags := data[64]; flags&destination != 0 {
		c := AddressCondition{nat.AddrRange{First: address(2), Last: address(3)}, false, flags&notDestination != 0}
		m.asks(c, fmt.Sprintf("%s--dst-range %s-%s", notText(c.Not), c.First, c.Last))
	}
}

// tupleXT reads what struct xt_conntrack_mtinfo3 asks for beside the state: a destination before
// translation, a direction.
func (m *Match) tupleXT(data []byte, flags, inverted uint16, ip6 bool) (known bool) {
	const state, alias, origDst, origDstPort, direction = 1 << 0, 1 << 13, 1 << 3, 1 << 9, 1 << 12
	const dstAt, dstMaskAt, portAt, lastPortAt = 32, 48, 140, 156
	if flags&^(state|alias|origDst|origDstPort|direction) != 0 || len(data) < lastPortAt+2 {
		return false
	}
	size := map[bool]int{false: 4, true: 16}[ip6]
	if flags&origDst != 0 {
		c := OriginalCondition{To: prefixOf(data[dstAt:dstAt+size], data[dstMaskAt:dstMaskAt+size]), Not: inverted&origDst != 0}
		if !c.To.IsValid() {
			return false
		}
		m.asks(c, notText(c.Not)+"--ctorigdst "+c.To.String())
	}
	if flags&origDstPort != 0 {
		c := OriginalCondition{Ports: nat.Ports{First: binary.NativeEndian.Uint16(data[portAt:])}, Not: inverted&origDstPort != 0}
		c.Ports.Last = max(c.Ports.First, binary.NativeEndian.Uint16(data[lastPortAt:]))
		m.asks(c, fmt.Sprintf("%s--ctorigdstport %s", notText(c.Not), c.Ports))
	}
	if flags&direction != 0 { // inverted: answers
		reply := inverted&direction != 0
		m.asks(DirectionCondition{reply}, "--ctdir "+map[bool]string{false: "ORIGINAL", true: "REPLY"}[reply])
	}
	return true
}
