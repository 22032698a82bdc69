package conntrack

import (
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
	b = appendTuples(b, e, &e.Reply)
	b = appendU32(b, ctaStatus, uint32(e.Status))
	if !e.Fields.Has(NoTimeout) {
		b = appendU32(b, ctaTimeout, e.Timeout)
	}
	b = appendProtoInfo(b, e, !e.Fields.Has(NoState))
	if !e.Fields.Has(NoMark) {
		b = appendU32(b, ctaMark, e.Mark)
	}
	b = appendZone(b, e)
	if e.Use != 0 {
		b = appendU32(b, ctaUse, e.Use)
	}
	if e.ID != 0 {
		b = appendU32(b, ctaID, e.ID)
	}
	b = appendExtensions(b, e)
	return FinishMessage(b, start)
}

// appendExtensions writes what decodeExtension reads.
func appendExtensions(b []byte, e *Entry) []byte {
	if e.Fields.Has(HasCounters) {
		b = appendTwoU64(b, ctaSent, ctaCountersPackets, e.Sent.Packets, ctaCountersBytes, e.Sent.Bytes)
		b = appendTwoU64(b, ctaReceived, ctaCountersPackets, e.Received.Packets, ctaCountersBytes, e.Received.Bytes)
	}
	if e.Start != 0 || e.Stop != 0 {
		b = appendTwoU64(b, ctaTimestamp, ctaTimestampStart, e.Start, ctaTimestampStop, e.Stop)
	}
	if len(e.SecCtx) > 0 {
		b = appendName(b, ctaSecCtx, ctaSecCtxName, e.SecCtx)
	}
	return appendHelperAndLabels(b, e)
}

func appendHelperAndLabels(b []byte, e *Entry) []byte {
	if len(e.Helper) > 0 {
		b = appendName(b, ctaHelp, ctaHelpName, e.Helper)
	}
	if len(e.Labels) > 0 {
		b = appendAttr(b, ctaLabels, e.Labels)
	}
	return b
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
	b = appendTuples(b, e, &mirror)
	// The kernel sets IPS_CONFIRMED before it compares, and refuses with EBUSY a
	// status without it (ctnetlink_change_status).
	b = appendU32(b, ctaStatus, uint32(e.Status|Confirmed))
	b = appendU32(b, ctaTimeout, e.Timeout)
	b = appendProtoInfo(b, e, false)
	if e.Mark != 0 {
		b = appendU32(b, ctaMark, e.Mark)
	}
	b = appendZone(b, e)
	b = appendHelperAndLabels(b, e)
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

// appendProtoInfo writes the state of the protocols that have one; said tells
// whether a zero is one.
func appendProtoInfo(b []byte, e *Entry, said bool) []byte {
	b = appendProtoState(b, ctaProtoInfoTCP, uint8(e.TCPState), said && e.Orig.Proto == unix.IPPROTO_TCP)
	b = appendProtoState(b, ctaProtoInfoSCTP, uint8(e.SCTPState), said && e.Orig.Proto == unix.IPPROTO_SCTP)
	return appendProtoState(b, ctaProtoInfoDCCP, uint8(e.DCCPState), said && e.Orig.Proto == unix.IPPROTO_DCCP)
}

// appendProtoState writes a state that is not zero, and zero where it was said.
// Of SCTP and DCCP the kernel wants more with it (nlattr_to_sctp, nlattr_to_dccp).
func appendProtoState(b []byte, proto uint16, state uint8, said bool) []byte {
	if state == 0 && !said {
		return b
	}
	b, info := beginNest(b, ctaProtoInfo)
	b, nest := beginNest(b, proto)
	b = appendU8(b, ctaProtoState, state)
	switch proto {
	case ctaProtoInfoSCTP:
		b = appendU32(b, ctaSCTPVtagOrig, 0)
		b = appendU32(b, ctaSCTPVtagReply, 0)
	case ctaProtoInfoDCCP:
		b = appendU8(b, ctaDCCPRole, 0)
	}
	b = endNest(b, nest)
	return endNest(b, info)
}

// appendZone writes the zone of both directions; one of a single direction is
// in its tuple.
func appendZone(b []byte, e *Entry) []byte {
	if e.Zone != 0 && e.Zone == e.ReplyZone {
		b = appendU16(b, ctaZone, e.Zone)
	}
	return b
}

func appendTuples(b []byte, e *Entry, reply *Tuple) []byte {
	zone, replyZone := e.Zone, e.ReplyZone
	if zone == replyZone {
		zone, replyZone = 0, 0
	}
	b = appendTuple(b, ctaTupleOrig, &e.Orig, zone)
	return appendTuple(b, ctaTupleReply, reply, replyZone)
}

func appendTuple(b []byte, typ uint16, t *Tuple, zone uint16) []byte {
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
	if zone != 0 {
		b = appendU16(b, ctaTupleZone, zone)
	}
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
