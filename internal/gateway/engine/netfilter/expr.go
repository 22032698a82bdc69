package netfilter

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/ruleset"
	"golang.org/x/sys/unix"
)

// expression is an expr.Any or a raw.
type expression any

// raw is an expression that google/nftables does not have, or not all of.
type raw struct {
	name string
	data attrs
	// what it is called where a kernel lacks it; its name where empty.
	what string
}

func marshal(e expression) ([]byte, error) {
	switch e := e.(type) {
	case expr.Any:
		return expr.Marshal(familyInet, e)
	case raw:
		var b attrs
		b.text(unix.NFTA_EXPR_NAME, e.name)
		b.bytes(unix.NFTA_EXPR_DATA|unix.NLA_F_NESTED, e.data)
		return b, nil
	}
	return nil, fmt.Errorf("%T is no expression", e)
}

// Registers: the four of 16 bytes have the numbers 1 to 4; the same bytes in words are
// 8 to 23 (NFT_REG_1, NFT_REG32_00).
const (
	reg1   = unix.NFT_REG_1
	reg2   = unix.NFT_REG_2
	reg3   = unix.NFT_REG_3
	reg4   = unix.NFT_REG_4
	word00 = unix.NFT_REG32_00
)

// family is a version of IP with what differs.
type family struct {
	v6      bool
	proto   byte   // NFPROTO_*
	bytes   int    // of an address
	saddr   uint32 // offsets in the header
	daddr   uint32
	address nftables.SetDatatype
	icmp    byte
	suffix  string // of names of sets
}

var (
	ip4 = &family{false, unix.NFPROTO_IPV4, 4, 12, 16, nftables.TypeIPAddr, unix.IPPROTO_ICMP, "4"}
	ip6 = &family{true, unix.NFPROTO_IPV6, 16, 8, 24, nftables.TypeIP6Addr, unix.IPPROTO_ICMPV6, "6"}
)

func familyOf(a netip.Addr) *family {
	if a.Is4() {
		return ip4
	}
	return ip6
}

func (f *family) bits() int { return 8 * f.bytes }

// is asks for the version of IP.
func (f *family) is() []expression {
	return []expression{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: reg1}, equal(reg1, []byte{f.proto})}
}

func equal(register uint32, value []byte) expression {
	return &expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: value}
}

func unequal(register uint32, value []byte) expression {
	return &expr.Cmp{Op: expr.CmpOpNeq, Register: register, Data: value}
}

func payload(base expr.PayloadBase, offset, length, register uint32) expression {
	return &expr.Payload{Base: base, Offset: offset, Len: length, DestRegister: register}
}

func immediate(register uint32, value []byte) expression {
	return &expr.Immediate{Register: register, Data: value}
}

func portBytes(v uint16) []byte { return binary.BigEndian.AppendUint16(nil, v) }

// mask are the bytes of a netmask.
func (f *family) mask(bits int) []byte {
	m := make([]byte, f.bytes)
	for i := range bits {
		m[i/8] |= 0x80 >> (i % 8)
	}
	return m
}

// masked keeps the first bits of a register.
func (f *family) masked(register uint32, bits int) expression {
	return &expr.Bitwise{SourceRegister: register, DestRegister: register, Len: uint32(f.bytes), Mask: f.mask(bits), Xor: make([]byte, f.bytes)}
}

// within compares an address of the header with a prefix, as nft(8) does: whole bytes
// alone are loaded and compared. Three of them are none of what the kernel loads without a
// call (nft_payload_fast_ops): there a mask is faster.
func (f *family) within(offset uint32, p netip.Prefix, op expr.CmpOp) []expression {
	value := p.Masked().Addr().AsSlice()
	if p.Bits()%8 == 0 && p.Bits() > 0 && p.Bits() != 24 {
		n := p.Bits() / 8
		return []expression{
			payload(expr.PayloadBaseNetworkHeader, offset, uint32(n), reg1),
			&expr.Cmp{Op: op, Register: reg1, Data: value[:n]},
		}
	}
	return []expression{
		payload(expr.PayloadBaseNetworkHeader, offset, uint32(f.bytes), reg1),
		f.masked(reg1, p.Bits()),
		&expr.Cmp{Op: op, Register: reg1, Data: value},
	}
}

// interfaceName is a name as the kernel compares it.
func interfaceName(name string) []byte {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, name)
	return b
}

// lookup asks whether what a register has is in a set.
func (s *set) lookup(register uint32, invert bool) expression {
	return &expr.Lookup{SourceRegister: register, SetName: s.reference(), SetID: s.id, Invert: invert}
}

// translate puts what a map has for a register into reg1 and those after it.
func (s *set) translate(register uint32) expression {
	return s.translateTo(reg1, register)
}

// translateTo puts what a map has for a register into another one.
func (s *set) translateTo(into, register uint32) expression {
	return &expr.Lookup{SourceRegister: register, DestRegister: into, IsDestRegSet: true, SetName: s.reference(), SetID: s.id}
}

// verdict does what a verdict map says for a register.
func (s *set) verdict(register uint32) expression {
	return &expr.Lookup{SourceRegister: register, DestRegister: unix.NFT_REG_VERDICT, IsDestRegSet: true, SetName: s.reference(), SetID: s.id}
}

// anyOf compares what load puts into reg1 with some values: it is one of them, or none.
func (t *table) anyOf(load expression, key nftables.SetDatatype, values [][]byte, invert bool) []expression {
	switch {
	case len(values) == 0:
		return nil
	case len(values) == 1 && invert:
		return []expression{load, unequal(reg1, values[0])}
	case len(values) == 1:
		return []expression{load, equal(reg1, values[0])}
	}
	s := &set{key: key}
	for _, v := range values {
		s.elements = append(s.elements, element{key: v})
	}
	return []expression{load, t.anonymous(s).lookup(reg1, invert)}
}

// each are values of one byte.
func each(all []byte) (values [][]byte) {
	for _, b := range all {
		values = append(values, []byte{b})
	}
	return values
}

// interfaces is a condition on names of interfaces: one of them, or none of them.
func (t *table) interfaces(key expr.MetaKey, names []string, invert bool) []expression {
	var values, groups [][]byte
	var patterns []string
	for _, n := range names {
		if group, is := nat.LinkGroup(n); is {
			groups = append(groups, hostUint32(group))
		} else if stem, is := strings.CutSuffix(n, "*"); is {
			patterns = append(patterns, stem)
		} else {
			values = append(values, interfaceName(n))
		}
	}
	load := &expr.Meta{Key: key, Register: reg1}
	byGroup := &expr.Meta{Key: map[expr.MetaKey]expr.MetaKey{expr.MetaKeyIIFNAME: expr.MetaKeyIIFGROUP, expr.MetaKeyOIFNAME: expr.MetaKeyOIFGROUP}[key], Register: reg1}
	grouped := t.anyOf(byGroup, nftables.TypeDevGroup, groups, invert) // beside names only where none of all is asked for
	if len(patterns) == 0 {
		return append(grouped, t.anyOf(load, nftables.TypeIFName, values, invert)...)
	}
	if len(patterns) == 1 && len(values) == 0 {
		op := map[bool]expr.CmpOp{false: expr.CmpOpEq, true: expr.CmpOpNeq}[invert]
		return append(grouped, load, &expr.Cmp{Op: op, Register: reg1, Data: []byte(patterns[0])})
	}
	s := &set{key: nftables.TypeIFName, flags: unix.NFT_SET_INTERVAL}
	for _, v := range values {
		if !slices.ContainsFunc(patterns, func(stem string) bool { return bytes.HasPrefix(v, []byte(stem)) }) {
			s.elements = append(s.elements, span(v, v)...)
		}
	}
	for i, stem := range patterns {
		if !slices.ContainsFunc(slices.Concat(patterns[:i], patterns[i+1:]), func(wider string) bool { return strings.HasPrefix(stem, wider) }) {
			last := interfaceName(stem)
			for n := len(stem); n < len(last); n++ {
				last[n] = 0xff
			}
			s.elements = append(s.elements, span(interfaceName(stem), last)...)
		}
	}
	return append(grouped, load, t.anonymous(s).lookup(reg1, invert))
}

// protocols asks for one of several.
func (t *table) protocols(all ...byte) []expression {
	return t.anyOf(&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg1}, nftables.TypeInetProto, each(all), false)
}

// icmpTypes asks for an ICMP message of one of several types.
func (t *table) icmpTypes(f *family, types ...byte) []expression {
	key := nftables.TypeICMPType
	if f.v6 {
		key = nftables.TypeICMP6Type
	}
	return append(t.protocols(f.icmp), t.anyOf(payload(expr.PayloadBaseTransportHeader, 0, 1, reg1), key, each(types), false)...)
}

// byInterfaces are the conditions on interfaces.
func (t *table) byInterfaces(m *nat.Match) []expression {
	return slices.Concat(t.interfaces(expr.MetaKeyIIFNAME, m.In, false), t.interfaces(expr.MetaKeyIIFNAME, m.NotIn, true),
		t.interfaces(expr.MetaKeyOIFNAME, m.Out, false), t.interfaces(expr.MetaKeyOIFNAME, m.NotOut, true))
}

// portsWithin compares a port with a range.
func portsWithin(load expression, p nat.Ports) []expression {
	if p.First == p.Last {
		return []expression{load, equal(reg1, portBytes(p.First))}
	}
	return []expression{load, &expr.Cmp{Op: expr.CmpOpGte, Register: reg1, Data: portBytes(p.First)}, &expr.Cmp{Op: expr.CmpOpLte, Register: reg1, Data: portBytes(p.Last)}}
}

// span are the elements of an interval set for the values from first to last: that behind the last one is the end.
func span(first, last []byte) []element {
	end := slices.Clone(last)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i]++; end[i] != 0 {
			return []element{{key: first}, {key: end, end: true}}
		}
	}
	return []element{{key: first}} // to the last value that there is
}

// further are the conditions on what is neither an interface nor the place of an address.
func (t *table) further(f *family, m *nat.Match) []expression {
	all := slices.Concat(t.inZone(m), t.addresses(f, f.saddr, m.NotFrom, true), t.notServices(m.NotServices))
	if m.Mark.Mask != 0 {
		all = append(all, markIs(m.Mark, expr.CmpOpEq)...)
	}
	for _, k := range m.NotMarks {
		all = append(all, markIs(k, expr.CmpOpNeq)...)
	}
	for _, x := range m.Members {
		all = append(all, t.member(f, x)...)
	}
	return slices.Concat(all, t.owners(expr.MetaKeySKUID, m.Users, false), t.owners(expr.MetaKeySKUID, m.NotUsers, true),
		t.owners(expr.MetaKeySKGID, m.Groups, false), t.owners(expr.MetaKeySKGID, m.NotGroups, true),
		t.codePoints(f, m.DSCP, false), t.codePoints(f, m.NotDSCP, true),
		t.hours(m.Hours, false), t.hours(m.NotHours, true), t.days(m.Days, false), t.days(m.NotDays, true))
}

// notServices compares protocol and port with the services that are excepted; a service of all ports is its protocol.
func (t *table) notServices(all []nat.Service) (exprs []expression) {
	s := &set{key: concat(nftables.TypeInetProto, nftables.TypeInetService)}
	for _, one := range all {
		if one.Ports == nat.AllPorts {
			exprs = append(exprs, &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg1}, unequal(reg1, []byte{one.Protocol}))
			continue
		}
		for port := int(one.Ports.First); port <= int(one.Ports.Last); port++ {
			s.elements = append(s.elements, element{key: appendPadded(appendPadded(nil, []byte{one.Protocol}), portBytes(uint16(port)))})
		}
	}
	if len(s.elements) == 0 {
		return exprs
	}
	return append(exprs, part{field: protocol}.loadAll(nil, word00), part{field: destinationPort}.loadAll(nil, word00+1), t.anonymous(s).lookup(reg1, true))
}

// markIs compares skb->mark.
func markIs(k nat.Mark, op expr.CmpOp) []expression {
	return append(part{field: markField, bits: int(k.Mask)}.load(nil, reg1), &expr.Cmp{Op: op, Register: reg1, Data: hostUint32(k.Value & k.Mask)})
}

// NFT_META_TIME_* of linux/netfilter/nf_tables.h (Linux 5.4).
const (
	metaTimeDay  expr.MetaKey = 31
	metaTimeHour expr.MetaKey = 32
)

// hours is a condition on the second of the day, which the kernel compares in UTC (nft_meta_hour).
func (t *table) hours(list []nat.Hours, invert bool) []expression {
	all := make([]nat.IDs, len(list))
	for i, h := range list {
		all[i] = nat.IDs(h)
	}
	return t.numbers(metaTimeHour, nftables.TypeTimeHour, all, invert)
}

// days is a condition on the day of the week: Sunday is 0, as in time.Weekday. The kernel takes its own time zone off
// (nft_meta_weekday, sys_tz), which is UTC but on machines whose hardware clock runs in local time.
func (t *table) days(list []time.Weekday, invert bool) []expression {
	var values [][]byte
	for _, d := range list {
		values = append(values, []byte{byte(d)})
	}
	return t.anyOf(&expr.Meta{Key: metaTimeDay, Register: reg1}, nftables.TypeTimeDay, values, invert)
}

// owners is a condition on the owner of the socket; a packet without one does not meet it, inverted or not.
func (t *table) owners(key expr.MetaKey, list []nat.IDs, invert bool) []expression {
	return t.numbers(key, map[expr.MetaKey]nftables.SetDatatype{expr.MetaKeySKUID: nftables.TypeUID, expr.MetaKeySKGID: nftables.TypeGID}[key], list, invert)
}

// numbers is a condition on a number of 32 bits that a meta key loads: in one of the ranges, or in none of them.
func (t *table) numbers(key expr.MetaKey, kind nftables.SetDatatype, list []nat.IDs, invert bool) []expression {
	load := &expr.Meta{Key: key, Register: reg1}
	switch {
	case len(list) == 0:
		return nil
	case len(list) == 1 && list[0].First == list[0].Last && invert:
		return []expression{load, unequal(reg1, hostUint32(list[0].First))}
	case len(list) == 1 && list[0].First == list[0].Last:
		return []expression{load, equal(reg1, hostUint32(list[0].First))}
	}
	in := []expression{load, &expr.Byteorder{SourceRegister: reg1, DestRegister: reg1, Op: expr.ByteorderHton, Len: 4, Size: 4}}
	bytes := func(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }
	if len(list) == 1 {
		op := map[bool]expr.CmpOp{false: expr.CmpOpEq, true: expr.CmpOpNeq}[invert]
		return append(in, &expr.Range{Op: op, Register: reg1, FromData: bytes(list[0].First), ToData: bytes(list[0].Last)})
	}
	s := &set{key: kind, flags: unix.NFT_SET_INTERVAL}
	for _, i := range joinIDs(list) {
		s.elements = append(s.elements, span(bytes(i.First), bytes(i.Last))...)
	}
	return append(in, t.anonymous(s).lookup(reg1, invert))
}

// joinIDs makes one range of those that overlap or touch, as the kernel refuses overlaps.
func joinIDs(list []nat.IDs) (all []nat.IDs) {
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b nat.IDs) int { return cmp.Compare(a.First, b.First) })
	for _, i := range list {
		if n := len(all) - 1; n >= 0 && uint64(i.First) <= uint64(all[n].Last)+1 {
			all[n].Last = max(all[n].Last, i.Last)
			continue
		}
		all = append(all, i)
	}
	return all
}

// codePoints is a condition on the DSCP, where it stands in the header.
func (t *table) codePoints(f *family, list []uint8, invert bool) []expression {
	if len(list) == 0 {
		return nil
	}
	var values [][]byte
	for _, p := range list {
		values = append(values, f.codePoint(p))
	}
	mask := f.codePoint(63)
	masked := &expr.Bitwise{SourceRegister: reg1, DestRegister: reg1, Len: uint32(len(mask)), Mask: mask, Xor: make([]byte, len(mask))}
	return append([]expression{f.loadDSCP(reg1)}, t.anyOf(masked, dscpType(f), values, invert)...)
}

// loadDSCP loads the bytes that have the DSCP; in IPv6 it begins after the four bits of the version.
func (f *family) loadDSCP(register uint32) expression {
	if f.v6 {
		return payload(expr.PayloadBaseNetworkHeader, 0, 2, register)
	}
	return payload(expr.PayloadBaseNetworkHeader, 1, 1, register)
}

// codePoint is a DSCP at its place in these bytes.
func (f *family) codePoint(p uint8) []byte {
	if f.v6 {
		return portBytes(uint16(p) << 6)
	}
	return []byte{p << 2}
}

// dscpType is that of sets of what codePoints compares, by which nft(8) shows their names.
func dscpType(f *family) nftables.SetDatatype {
	t := nftables.TypeDSCP
	if f.v6 {
		t.Bytes = 2
	}
	return t
}

// anonymous adds a set that belongs to one rule; where rules share such sets, one of
// the same content that there is, or one with a name. Maps of intervals that touch
// only pass the kernel's check without a name (nft_rbtree).
func (t *table) anonymous(s *set) *set {
	s.flags |= unix.NFT_SET_CONSTANT
	s.size = uint32(len(s.elements))
	if t.shared == nil || s.flags&unix.NFT_SET_MAP != 0 {
		s.flags |= unix.NFT_SET_ANONYMOUS
		if s.flags&unix.NFT_SET_MAP == 0 {
			t.shareable++
		}
		return t.add(s)
	}
	content := fmt.Sprint(s.key, s.data, s.flags, s.elements)
	if t.shared[content] == nil {
		s.name = fmt.Sprintf("shared-%d", len(t.shared)+1)
		t.shared[content] = t.add(s)
	}
	return t.shared[content]
}

// addresses is a condition on an address of the header: in one of the prefixes, or in
// none of them.
func (t *table) addresses(f *family, offset uint32, prefixes []netip.Prefix, invert bool) []expression {
	op := expr.CmpOpEq
	if invert {
		op = expr.CmpOpNeq
	}
	switch len(prefixes) {
	case 0:
		return nil
	case 1:
		return f.within(offset, prefixes[0], op)
	}
	s := &set{key: f.address, flags: unix.NFT_SET_INTERVAL, elements: intervals(prefixes)}
	return []expression{payload(expr.PayloadBaseNetworkHeader, offset, uint32(f.bytes), reg1), t.anonymous(s).lookup(reg1, invert)}
}

// intervals are the elements of an interval set: each interval's first address, and as
// its end the address after its last. Prefixes that overlap or touch become one
// interval, as the kernel refuses overlaps.
func intervals(prefixes []netip.Prefix) (all []element) {
	var ranges nat.AddrRanges
	for _, p := range prefixes {
		ranges = append(ranges, nat.RangeOf(p))
	}
	for i, r := range ranges.Join() {
		if i == 0 && !r.First.IsUnspecified() { // nft(8) marks what lies before the first
			all = append(all, element{key: make([]byte, r.First.BitLen()/8), end: true})
		}
		all = append(all, element{key: r.First.AsSlice()})
		if next := r.Last.Next(); next.IsValid() {
			all = append(all, element{key: next.AsSlice(), end: true})
		}
	}
	return all
}

// Table is the name of natkit's own table, of family inet.
const Table = ruleset.GatewayTable

// MarkChain is a chain of natkit's table that no hook and no rule leads to. Its rules
// say by their comments what the table is, in a form that every kernel keeps
// (tables have no comments of their own before 5.10).
const MarkChain = "natkit-mark"

// digestWords begin the comment (user data of a rule) that the writer leaves in
// MarkChain for a plan.
const digestWords = "digest "

func comment(text string) []byte { return userdata.AppendString(nil, userdata.TypeComment, text) }
