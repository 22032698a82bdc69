package conntrack

import (
	"cmp"
	"encoding/binary"
	"net/netip"

	"github.com/natkit/natkit/internal/netlink"
	"github.com/natkit/natkit/internal/unix"
)

// Opt is a value that a filter may ask for; the zero value asks for none.
type Opt[T comparable] struct {
	set   bool
	value T
}

// Is asks for a value.
func Is[T comparable](v T) Opt[T] { return Opt[T]{true, v} }

// Get is the value that is asked for, if one is.
func (o Opt[T]) Get() (T, bool) { return o.value, o.set }

func (o Opt[T]) matches(v T) bool { return !o.set || o.value == v }

// Side is what a filter asks of one direction's tuple.
type Side struct {
	// Src and Dst hold the addresses; the zero prefix holds all.
	Src, Dst netip.Prefix
	// The ports, or keys of GRE.
	SrcPort, DstPort Opt[uint16]
	// Zone is the conntrack zone of this direction, which may be that of both.
	Zone Opt[uint16]
}

// NAT asks for a translation that was made; Addr, where it is not zero, must hold
// the address that is put in place of the real one.
type NAT struct {
	On   bool
	Addr netip.Prefix
	Port Opt[uint16]
}

// Filter chooses entries. All that it asks for must hold; the zero value chooses
// every entry.
type Filter struct {
	// Family is unix.AF_INET, unix.AF_INET6 or 0 for both.
	Family      uint8
	Proto       Opt[uint8]
	Orig, Reply Side
	States      States
	// Status bits must all be set, Unset bits must all be clear.
	Status, Unset Status
	// Mark is what the bits of MarkMask must be; a mask of 0 asks for none.
	Mark, MarkMask uint32
	// Zone is the conntrack zone of both directions.
	Zone Opt[uint16]
	ID   Opt[uint32]
	// ICMPType, ICMPCode and ICMPID are those of ICMP and ICMPv6 in the original
	// direction.
	ICMPType, ICMPCode Opt[uint8]
	ICMPID             Opt[uint16]
	// Labels are bits that must be set.
	Labels Labels
	// SrcNAT, DstNAT and AnyNAT ask for translations of the source, of the
	// destination, of either.
	SrcNAT, DstNAT, AnyNAT NAT
}

// Empty reports whether f chooses every entry. A nil filter does.
func (f *Filter) Empty() bool { return f == nil || *f == Filter{} }

// Match reports whether f chooses e. A nil filter chooses every entry.
func (f *Filter) Match(e *Entry) bool {
	if f == nil {
		return true
	}
	return (f.Family == 0 || f.Family == e.Family) &&
		f.Proto.matches(e.Orig.Proto) &&
		e.Status.Has(f.Status) && e.Status&f.Unset == 0 &&
		e.Mark&f.MarkMask == f.Mark &&
		f.States.matches(e) &&
		f.Orig.matches(&e.Orig, e.Zone) && f.Reply.matches(&e.Reply, e.ReplyZone) &&
		f.Zone.matches(e.Zone) && f.Zone.matches(e.ReplyZone) && f.ID.matches(e.ID) &&
		f.matchesICMP(&e.Orig) && f.Labels.in(e.Labels) && f.matchesNAT(e)
}

func (s *Side) matches(t *Tuple, zone uint16) bool {
	return s.SrcPort.matches(t.SrcPort) && s.DstPort.matches(t.DstPort) && s.Zone.matches(zone) &&
		holds(s.Src, t.Src) && holds(s.Dst, t.Dst)
}

func (f *Filter) matchesICMP(t *Tuple) bool {
	if !f.ICMPType.set && !f.ICMPCode.set && !f.ICMPID.set {
		return true
	}
	return (t.Proto == unix.IPPROTO_ICMP || t.Proto == unix.IPPROTO_ICMPV6) &&
		f.ICMPType.matches(t.ICMPType) && f.ICMPCode.matches(t.ICMPCode) && f.ICMPID.matches(t.ICMPID)
}

// holds reports whether the zero prefix or this one has the address.
func holds(p netip.Prefix, a netip.Addr) bool { return p == netip.Prefix{} || p.Contains(a) }

func (f *Filter) matchesNAT(e *Entry) bool {
	return f.SrcNAT.source(e) && f.DstNAT.destination(e) &&
		(!f.AnyNAT.On || f.AnyNAT.source(e) || f.AnyNAT.destination(e))
}

// source looks at what conntrack(8) does: an address or a port that is asked for
// must be one that was put in place of another.
func (n *NAT) source(e *Entry) bool {
	return !n.On || e.IsSNAT() &&
		n.changed(e.Orig.Src, e.Reply.Dst) && n.changedPort(e.Orig.SrcPort, e.Reply.DstPort)
}

func (n *NAT) destination(e *Entry) bool {
	return !n.On || e.IsDNAT() &&
		n.changed(e.Orig.Dst, e.Reply.Src) && n.changedPort(e.Orig.DstPort, e.Reply.SrcPort)
}

func (n *NAT) changed(from, to netip.Addr) bool {
	return n.Addr == netip.Prefix{} || from != to && n.Addr.Contains(to)
}

func (n *NAT) changedPort(from, to uint16) bool {
	return !n.Port.set || from != to && n.Port.value == to
}

// Request returns the part of f that the kernel can apply to a dump itself
// (ctnetlink_alloc_filter, net/netfilter/nf_conntrack_netlink.c): single addresses of IPv4,
// ports of TCP and UDP, protocol, status (Linux 5.15), mark and zone (6.8). A kernel that
// does not know an attribute passes over it, so Match has to check what it lets through.
//
// What is Doubtful may also leave out too much: until Linux 5.16 (5.10.83) the reply
// direction was read by the flags of the original one, and the rest of it compared
// with zeros. Such a kernel passes on no entry that has what was asked for.
//
// Addresses of IPv6 are not asked for: the kernel's comparison has been inverted
// since it came, and was in 6.18 (ctnetlink_filter_match_tuple).
func (f *Filter) Request() Filter {
	if f == nil {
		return Filter{}
	}
	q := Filter{Family: f.family(), Proto: f.Proto, Orig: f.Orig.request(), Reply: f.Reply.request(),
		Status: f.Status, Unset: f.Unset, Mark: f.Mark, MarkMask: f.MarkMask, Zone: f.Zone}
	// Answers come from and go to what a translation has put in place.
	q.Reply.Dst, q.Reply.DstPort = cmp.Or(q.Reply.Dst, single(f.SrcNAT.Addr)), cmp.Or(q.Reply.DstPort, f.SrcNAT.Port)
	q.Reply.Src, q.Reply.SrcPort = cmp.Or(q.Reply.Src, single(f.DstNAT.Addr)), cmp.Or(q.Reply.SrcPort, f.DstNAT.Port)
	return q
}

func (s *Side) request() Side {
	return Side{Src: single(s.Src), Dst: single(s.Dst), SrcPort: s.SrcPort, DstPort: s.DstPort}
}

// single returns a prefix that holds one address of IPv4, and none for others.
func single(p netip.Prefix) netip.Prefix {
	if p.IsSingleIP() && p.Addr().Is4() {
		return p
	}
	return netip.Prefix{}
}

// family is the one asked for, or that of an address that is.
func (f *Filter) family() uint8 {
	for _, p := range []netip.Prefix{f.Orig.Src, f.Orig.Dst, f.Reply.Src, f.Reply.Dst,
		f.SrcNAT.Addr, f.DstNAT.Addr, f.AnyNAT.Addr} {
		switch {
		case f.Family != 0:
			return f.Family
		case p.Addr().Is4():
			return unix.AF_INET
		case p.IsValid():
			return unix.AF_INET6
		}
	}
	return 0
}

// Attributes of a filter (enum ctattr_filter) and the bits of its flags
// (net/netfilter/nf_internals.h).
const (
	ctaFilter           = 25
	ctaStatusMask       = 26
	ctaFilterOrigFlags  = 1
	ctaFilterReplyFlags = 2

	filterSrc     = 1 << 0
	filterDst     = 1 << 1
	filterProto   = 1 << 3
	filterSrcPort = 1 << 4
	filterDstPort = 1 << 5
	filterPorts   = filterSrcPort | filterDstPort
)

// Append adds the attributes of a Request to that of a dump, whose header has Family.
func (f *Filter) Append(b []byte) []byte {
	if f.MarkMask != 0 {
		b = netlink.AppendU32(b, ctaMark, f.Mark)
		b = netlink.AppendU32(b, ctaMarkMask, f.MarkMask)
	}
	if mask := f.Status | f.Unset; mask != 0 {
		b = netlink.AppendU32(b, ctaStatus, uint32(f.Status))
		b = netlink.AppendU32(b, ctaStatusMask, uint32(mask))
	}
	if f.Zone.value != 0 {
		b = netlink.AppendU16(b, ctaZone, f.Zone.value)
	}
	orig, reply := f.flags(&f.Orig), f.flags(&f.Reply)
	if f.Proto.value != 0 && f.Family != 0 {
		orig |= filterProto
	}
	if orig|reply == 0 {
		return b
	}
	b = f.appendSide(b, ctaTupleOrig, &f.Orig, orig)
	b = f.appendSide(b, ctaTupleReply, &f.Reply, reply)
	b, nest := netlink.BeginNest(b, ctaFilter)
	b = appendFlags(b, ctaFilterOrigFlags, orig)
	b = appendFlags(b, ctaFilterReplyFlags, reply)
	return netlink.EndNest(b, nest)
}

// appendFlags is in the host's byte order, unlike all others (ctnetlink_parse_filter).
func appendFlags(b []byte, typ uint16, flags uint32) []byte {
	if flags == 0 {
		return b
	}
	return binary.NativeEndian.AppendUint32(netlink.AppendAttrHeader(b, typ, 4), flags)
}

// flags returns the parts of a side that the kernel compares. It refuses a tuple without a family,
// and reads a port behind a protocol only (ctnetlink_parse_tuple_proto).
func (f *Filter) flags(s *Side) (flags uint32) {
	add := func(on bool, flag uint32) {
		if on {
			flags |= flag
		}
	}
	add(f.Family == unix.AF_INET && s.Src.IsValid(), filterSrc)
	add(f.Family == unix.AF_INET && s.Dst.IsValid(), filterDst)
	if f.Family != 0 && (f.Proto.value == unix.IPPROTO_TCP || f.Proto.value == unix.IPPROTO_UDP) {
		add(s.SrcPort.value != 0, filterProto|filterSrcPort)
		add(s.DstPort.value != 0, filterProto|filterDstPort)
	}
	return flags
}

// appendSide adds what flags name.
func (f *Filter) appendSide(b []byte, typ uint16, s *Side, flags uint32) []byte {
	if flags == 0 {
		return b
	}
	b, tuple := netlink.BeginNest(b, typ)
	b, ip := netlink.BeginNest(b, ctaTupleIP)
	if flags&filterSrc != 0 {
		b = netlink.AppendAttr(b, ctaIPv4Src, s.Src.Addr().AsSlice())
	}
	if flags&filterDst != 0 {
		b = netlink.AppendAttr(b, ctaIPv4Dst, s.Dst.Addr().AsSlice())
	}
	if flags&(filterSrc|filterDst) != 0 {
		b = netlink.EndNest(b, ip)
	} else {
		b = b[:ip]
	}
	if flags&filterProto != 0 {
		var proto int
		b, proto = netlink.BeginNest(b, ctaTupleProto)
		b = netlink.AppendU8(b, ctaProtoNum, f.Proto.value)
		if flags&filterSrcPort != 0 {
			b = netlink.AppendU16(b, ctaProtoSrcPort, s.SrcPort.value)
		}
		if flags&filterDstPort != 0 {
			b = netlink.AppendU16(b, ctaProtoDstPort, s.DstPort.value)
		}
		b = netlink.EndNest(b, proto)
	}
	return netlink.EndNest(b, tuple)
}

// Passes returns the requests of the dumps that together hold what f lets through: f
// alone, or one of each family where it has ports without a family, at which the kernel
// would not look. To walk the table twice costs less than to receive all of it.
func (f Filter) Passes() []Filter {
	four, six := f, f
	four.Family, six.Family = unix.AF_INET, unix.AF_INET6
	if f.Family != 0 || (four.flags(&four.Orig)|four.flags(&four.Reply))&filterPorts == 0 {
		return []Filter{f}
	}
	return []Filter{four, six}
}

// Doubtful reports whether some kernels let too little of a request through, and returns
// what is left of it that all get right.
func (f Filter) Doubtful() (without Filter, doubtful bool) {
	without = f
	without.Reply = Side{}
	for _, pass := range f.Passes() {
		doubtful = doubtful || pass.flags(&pass.Reply) != 0
	}
	return without, doubtful
}
