package conntrack

import (
	"encoding/binary"
	"net/netip"

	"github.com/natkit/natkit/internal/netlink"
	"golang.org/x/sys/unix"
)

// KernelFilter is what the kernel is asked to leave out of a dump
// (ctnetlink_alloc_filter, net/netfilter/nf_conntrack_netlink.c). The zero value
// of a field asks for nothing. A kernel that does not know an attribute passes
// over it, so the answer may hold more than was asked for.
//
// What is Doubtful may also leave out too much: until Linux 5.16 (5.10.83) the reply
// direction was read by the flags of the original one, and the rest of it compared
// with zeros. Such a kernel passes on no entry that has what was asked for. One that
// does shows that a kernel gets it right.
//
// Addresses of IPv6 are not asked for: the kernel's comparison has been inverted
// since it came, and was in 6.18 (ctnetlink_filter_match_tuple).
type KernelFilter struct {
	// Family is unix.AF_INET or unix.AF_INET6.
	Family uint8
	// Proto and the directions (CTA_FILTER, Linux 5.8) are looked at only where
	// Family is set.
	Proto       uint8
	Orig, Reply KernelTuple
	// Status is what the bits of StatusMask must be (CTA_STATUS_MASK, Linux 5.15).
	Status, StatusMask Status
	// Mark is what the bits of MarkMask must be (Linux 3.4).
	Mark, MarkMask uint32
	// Zone is asked for by CTA_ZONE, which filters since Linux 6.8.
	Zone uint16
}

// KernelTuple is what is asked of one direction: addresses of IPv4, and ports of TCP
// and UDP.
type KernelTuple struct {
	Src, Dst         netip.Addr
	SrcPort, DstPort uint16
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
	filterAddrs   = filterSrc | filterDst
	filterPorts   = filterSrcPort | filterDstPort
)

// Append adds the attributes to a dump request, whose header carries Family.
func (f *KernelFilter) Append(b []byte) []byte {
	if f.MarkMask != 0 {
		b = AppendMarkFilter(b, f.Mark, f.MarkMask)
	}
	if f.StatusMask != 0 {
		b = netlink.AppendU32(b, ctaStatus, uint32(f.Status))
		b = netlink.AppendU32(b, ctaStatusMask, uint32(f.StatusMask))
	}
	if f.Zone != 0 {
		b = netlink.AppendU16(b, ctaZone, f.Zone)
	}
	return f.appendTuples(b)
}

func (f *KernelFilter) appendTuples(b []byte) []byte {
	orig, reply := f.origFlags(), f.replyFlags()
	if orig|reply == 0 {
		return b
	}
	if orig != 0 {
		b = f.appendTuple(b, ctaTupleOrig, &f.Orig, orig)
	}
	if reply != 0 {
		b = f.appendTuple(b, ctaTupleReply, &f.Reply, reply)
	}
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

// Passes are the filters of the dumps that together hold what f lets through. It
// is f alone, but for ports without a family, at which the kernel would not look: to
// walk the table twice costs less than to receive all of it. Each has Family set
// then.
func (f KernelFilter) Passes() []KernelFilter {
	four, six := f, f
	four.Family, six.Family = unix.AF_INET, unix.AF_INET6
	if f.Family != 0 || (four.origFlags()|four.replyFlags())&filterPorts == 0 {
		return []KernelFilter{f}
	}
	return []KernelFilter{four, six}
}

// Doubtful reports whether some kernels let too little through, and what is left of
// f that all get right.
func (f KernelFilter) Doubtful() (without KernelFilter, doubtful bool) {
	without = f
	without.Reply = KernelTuple{}
	for _, pass := range f.Passes() {
		doubtful = doubtful || pass.replyFlags() != 0
	}
	return without, doubtful
}

// origFlags and replyFlags say what of a tuple is to be compared; the protocol is
// the same in both directions.
func (f *KernelFilter) origFlags() uint32 {
	flags := f.flags(&f.Orig)
	if f.Proto != 0 && f.hasFamily() {
		flags |= filterProto
	}
	return flags
}

func (f *KernelFilter) replyFlags() uint32 { return f.flags(&f.Reply) }

// hasFamily: the kernel refuses a tuple without one.
func (f *KernelFilter) hasFamily() bool { return f.Family == unix.AF_INET || f.Family == unix.AF_INET6 }

func (f *KernelFilter) flags(t *KernelTuple) (flags uint32) {
	set := func(on bool, flag uint32) {
		if on {
			flags |= flag
		}
	}
	if !f.hasFamily() {
		return 0
	}
	set(f.Family == unix.AF_INET && t.Src.Is4(), filterSrc)
	set(f.Family == unix.AF_INET && t.Dst.Is4(), filterDst)
	if f.Proto == unix.IPPROTO_TCP || f.Proto == unix.IPPROTO_UDP {
		// A port is read behind a protocol only (ctnetlink_parse_tuple_proto).
		set(t.SrcPort != 0, filterProto|filterSrcPort)
		set(t.DstPort != 0, filterProto|filterDstPort)
	}
	return flags
}

// appendTuple adds what flags name.
func (f *KernelFilter) appendTuple(b []byte, typ uint16, t *KernelTuple, flags uint32) []byte {
	b, tuple := netlink.BeginNest(b, typ)
	if flags&filterAddrs != 0 {
		b = t.appendAddrs(b, flags)
	}
	if flags&filterProto != 0 {
		var proto int
		b, proto = netlink.BeginNest(b, ctaTupleProto)
		b = netlink.AppendU8(b, ctaProtoNum, f.Proto)
		if flags&filterSrcPort != 0 {
			b = netlink.AppendU16(b, ctaProtoSrcPort, t.SrcPort)
		}
		if flags&filterDstPort != 0 {
			b = netlink.AppendU16(b, ctaProtoDstPort, t.DstPort)
		}
		b = netlink.EndNest(b, proto)
	}
	return netlink.EndNest(b, tuple)
}

func (t *KernelTuple) appendAddrs(b []byte, flags uint32) []byte {
	b, ip := netlink.BeginNest(b, ctaTupleIP)
	if flags&filterSrc != 0 {
		a := t.Src.As4()
		b = netlink.AppendAttr(b, ctaIPv4Src, a[:])
	}
	if flags&filterDst != 0 {
		a := t.Dst.As4()
		b = netlink.AppendAttr(b, ctaIPv4Dst, a[:])
	}
	return netlink.EndNest(b, ip)
}
