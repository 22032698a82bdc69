package conntrack

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// KernelFilter is what the kernel is asked to leave out of a dump
// (ctnetlink_alloc_filter, net/netfilter/nf_conntrack_netlink.c). The zero value
// of a field asks for nothing. A kernel that does not know an attribute passes
// over it, so the answer may hold more than was asked for, never less: what some
// kernels get wrong is not asked of any, namely
//   - addresses of IPv6, whose comparison was added inverted in Linux 5.8, and
//   - the reply direction, which until 5.16 (5.10.83) was read by the flags of
//     the original one.
type KernelFilter struct {
	// Family is unix.AF_INET or unix.AF_INET6.
	Family uint8
	// Src and Dst are addresses of the original direction (CTA_FILTER, Linux 5.8).
	// Only those of IPv4 are asked for.
	Src, Dst netip.Addr
	// Proto and, of TCP and UDP, the ports of the original direction (CTA_FILTER).
	// The kernel looks at them only where Family is set.
	Proto            uint8
	SrcPort, DstPort uint16
	// Status is what the bits of StatusMask must be (CTA_STATUS_MASK, Linux 5.15).
	Status, StatusMask Status
	// Mark is what the bits of MarkMask must be (Linux 3.4).
	Mark, MarkMask uint32
	// Zone is asked for by CTA_ZONE, which filters since Linux 6.8.
	Zone uint16
}

// Attributes of a filter (enum ctattr_filter) and the bits of its flags
// (net/netfilter/nf_internals.h).
const (
	ctaFilter          = 25
	ctaStatusMask      = 26
	ctaFilterOrigFlags = 1

	filterSrc     = 1 << 0
	filterDst     = 1 << 1
	filterProto   = 1 << 3
	filterSrcPort = 1 << 4
	filterDstPort = 1 << 5
)

// Append adds the attributes to a dump request, whose header carries Family.
func (f *KernelFilter) Append(b []byte) []byte {
	if f.MarkMask != 0 {
		b = AppendMarkFilter(b, f.Mark, f.MarkMask)
	}
	if f.StatusMask != 0 {
		b = appendU32(b, ctaStatus, uint32(f.Status))
		b = appendU32(b, ctaStatusMask, uint32(f.StatusMask))
	}
	if f.Zone != 0 {
		b = appendU16(b, ctaZone, f.Zone)
	}
	if flags := f.flags(); flags != 0 {
		b = f.appendTuple(b, flags)
		var nest int
		b, nest = beginNest(b, ctaFilter)
		// The flags alone are in the host's byte order (ctnetlink_parse_filter).
		b = binary.NativeEndian.AppendUint32(appendAttrHeader(b, ctaFilterOrigFlags, 4), flags)
		b = endNest(b, nest)
	}
	return b
}

// Passes are the filters of the dumps that together hold what f lets through. It
// is f alone, but for ports without a family, at which the kernel would not look: to
// walk the table twice costs less than to receive all of it. Each has Family set
// then.
func (f KernelFilter) Passes() []KernelFilter {
	four, six := f, f
	four.Family, six.Family = unix.AF_INET, unix.AF_INET6
	if f.Family != 0 || four.flags()&(filterSrcPort|filterDstPort) == 0 {
		return []KernelFilter{f}
	}
	return []KernelFilter{four, six}
}

// flags says what of the original tuple is to be compared.
func (f *KernelFilter) flags() (flags uint32) {
	set := func(on bool, flag uint32) {
		if on {
			flags |= flag
		}
	}
	if f.Family != unix.AF_INET && f.Family != unix.AF_INET6 {
		return 0 // the kernel refuses a tuple without a family
	}
	set(f.Family == unix.AF_INET && f.Src.Is4(), filterSrc)
	set(f.Family == unix.AF_INET && f.Dst.Is4(), filterDst)
	set(f.Proto != 0, filterProto)
	if f.Proto == unix.IPPROTO_TCP || f.Proto == unix.IPPROTO_UDP {
		set(f.SrcPort != 0, filterSrcPort)
		set(f.DstPort != 0, filterDstPort)
	}
	return flags
}

// appendTuple adds what flags name.
func (f *KernelFilter) appendTuple(b []byte, flags uint32) []byte {
	b, tuple := beginNest(b, ctaTupleOrig)
	if flags&(filterSrc|filterDst) != 0 {
		var ip int
		b, ip = beginNest(b, ctaTupleIP)
		if flags&filterSrc != 0 {
			a := f.Src.As4()
			b = appendAttr(b, ctaIPv4Src, a[:])
		}
		if flags&filterDst != 0 {
			a := f.Dst.As4()
			b = appendAttr(b, ctaIPv4Dst, a[:])
		}
		b = endNest(b, ip)
	}
	if flags&filterProto != 0 {
		var proto int
		b, proto = beginNest(b, ctaTupleProto)
		b = appendU8(b, ctaProtoNum, f.Proto)
		if flags&filterSrcPort != 0 {
			b = appendU16(b, ctaProtoSrcPort, f.SrcPort)
		}
		if flags&filterDstPort != 0 {
			b = appendU16(b, ctaProtoDstPort, f.DstPort)
		}
		b = endNest(b, proto)
	}
	return endNest(b, tuple)
}
