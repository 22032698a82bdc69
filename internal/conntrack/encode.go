package conntrack

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Append adds the whole message of type t about e to b, header included, in the
// form in which the kernel dumps entries: both tuples as they are. Delete
// messages in this form remove exactly this entry, its ID compared too. e must
// pass Check.
func Append(b []byte, t MessageType, flags uint16, seq uint32, e *Entry) []byte {
	start := len(b)
	b = AppendHeader(b, t, flags, seq, e.Family)
	b = appendTuple(b, ctaTupleOrig, &e.Orig)
	b = appendTuple(b, ctaTupleReply, &e.Reply)
	b = appendState(b, e, e.Status)
	if e.ID != 0 {
		b = appendU32(b, ctaID, e.ID)
	}
	if e.Start != 0 {
		var nest int
		b, nest = beginNest(b, ctaTimestamp)
		b = appendAttrHeader(b, ctaTimestampStart, 8)
		b = binary.BigEndian.AppendUint64(b, e.Start)
		b = endNest(b, nest)
	}
	return FinishMessage(b, start)
}

// AppendInsert adds the message that makes the kernel create e. Where e's reply
// is not the mirror of its original tuple, the kernel is given the mirror and
// the NAT to do, as it sets IPS_SRC_NAT and IPS_DST_NAT only when it changes the
// reply tuple itself (nf_nat_setup_info, net/netfilter/nf_nat_core.c). e must
// pass Check.
func AppendInsert(b []byte, flags uint16, seq uint32, e *Entry) []byte {
	start := len(b)
	b = AppendHeader(b, New, flags, seq, e.Family)
	mirror := e.Orig.Mirror()
	b = appendTuple(b, ctaTupleOrig, &e.Orig)
	b = appendTuple(b, ctaTupleReply, &mirror)
	// The kernel sets IPS_CONFIRMED before it compares, and refuses with EBUSY a
	// status without it (ctnetlink_change_status).
	b = appendState(b, e, e.Status|Confirmed)
	icmp, port := isICMP(e.Orig.Proto), e.Reply.DstPort
	if icmp { // the kernel takes the identifier where others have the port
		port = e.Reply.ICMPID
	}
	if e.IsSNAT() {
		b = appendNAT(b, ctaNATSrc, e.Reply.Dst, port, true)
	}
	if e.IsDNAT() {
		b = appendNAT(b, ctaNATDst, e.Reply.Src, e.Reply.SrcPort, !icmp)
	}
	return FinishMessage(b, start)
}

func appendState(b []byte, e *Entry, status Status) []byte {
	b = appendU32(b, ctaStatus, uint32(status))
	b = appendU32(b, ctaTimeout, e.Timeout)
	if e.TCPState != TCPNone {
		var info, tcp int
		b, info = beginNest(b, ctaProtoInfo)
		b, tcp = beginNest(b, ctaProtoInfoTCP)
		b = appendU8(b, ctaTCPState, uint8(e.TCPState))
		b = endNest(b, tcp)
		b = endNest(b, info)
	}
	if e.Mark != 0 {
		b = appendU32(b, ctaMark, e.Mark)
	}
	if e.Zone != 0 {
		b = appendU16(b, ctaZone, e.Zone)
	}
	return b
}

func appendTuple(b []byte, typ uint16, t *Tuple) []byte {
	b, tuple := beginNest(b, typ)
	b, ip := beginNest(b, ctaTupleIP)
	if t.Src.Is4() {
		src, dst := t.Src.As4(), t.Dst.As4()
		b = appendAttr(b, ctaIPv4Src, src[:])
		b = appendAttr(b, ctaIPv4Dst, dst[:])
	} else {
		src, dst := t.Src.As16(), t.Dst.As16()
		b = appendAttr(b, ctaIPv6Src, src[:])
		b = appendAttr(b, ctaIPv6Dst, dst[:])
	}
	b = endNest(b, ip)
	b, proto := beginNest(b, ctaTupleProto)
	b = appendU8(b, ctaProtoNum, t.Proto)
	switch {
	case isICMP(t.Proto):
		b = appendICMP(b, t)
	default:
		b = appendU16(b, ctaProtoSrcPort, t.SrcPort)
		b = appendU16(b, ctaProtoDstPort, t.DstPort)
	}
	b = endNest(b, proto)
	return endNest(b, tuple)
}

func appendICMP(b []byte, t *Tuple) []byte {
	id, typ, code := uint16(ctaProtoICMPID), uint16(ctaProtoICMPType), uint16(ctaProtoICMPCode)
	if t.Proto == unix.IPPROTO_ICMPV6 {
		id, typ, code = ctaProtoICMPv6ID, ctaProtoICMPv6Type, ctaProtoICMPv6Code
	}
	b = appendU16(b, id, t.ICMPID)
	b = appendU8(b, typ, t.ICMPType)
	return appendU8(b, code, t.ICMPCode)
}

func appendNAT(b []byte, typ uint16, addr netip.Addr, port uint16, hasPort bool) []byte {
	b, nat := beginNest(b, typ)
	if addr.Is4() {
		a := addr.As4()
		b = appendAttr(b, ctaNATv4Min, a[:])
		b = appendAttr(b, ctaNATv4Max, a[:])
	} else {
		a := addr.As16()
		b = appendAttr(b, ctaNATv6Min, a[:])
		b = appendAttr(b, ctaNATv6Max, a[:])
	}
	if hasPort {
		var ports int
		b, ports = beginNest(b, ctaNATProto)
		b = appendU16(b, ctaProtoPortMin, port)
		b = appendU16(b, ctaProtoPortMax, port)
		b = endNest(b, ports)
	}
	return endNest(b, nat)
}
