package conntrack

import (
	"net/netip"

	"github.com/natkit/natkit/internal/netlink"
	"github.com/natkit/natkit/internal/unix"
)

// Types of ctnetlink messages (enum cntl_msg_types,
// include/uapi/linux/netfilter/nfnetlink_conntrack.h).
const (
	New         uint16 = unix.NFNL_SUBSYS_CTNETLINK << 8
	Get         uint16 = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1
	Delete      uint16 = unix.NFNL_SUBSYS_CTNETLINK<<8 | 2
	GetStatsCPU uint16 = unix.NFNL_SUBSYS_CTNETLINK<<8 | 4
	GetStats    uint16 = unix.NFNL_SUBSYS_CTNETLINK<<8 | 5
)

// Attributes of a message (enum ctattr_type and the enums of the nested ones,
// same header).
const (
	ctaTupleOrig  = 1
	ctaTupleReply = 2
	ctaStatus     = 3
	ctaProtoInfo  = 4
	ctaHelp       = 5
	ctaNATSrc     = 6
	ctaTimeout    = 7
	ctaMark       = 8
	ctaSent       = 9  // CTA_COUNTERS_ORIG
	ctaReceived   = 10 // CTA_COUNTERS_REPLY
	ctaUse        = 11
	ctaID         = 12
	ctaNATDst     = 13
	ctaZone       = 18
	ctaSecCtx     = 19
	ctaTimestamp  = 20
	ctaMarkMask   = 21
	ctaLabels     = 22

	ctaTupleIP    = 1
	ctaTupleProto = 2
	ctaTupleZone  = 3

	ctaIPv4Src = 1
	ctaIPv4Dst = 2
	ctaIPv6Src = 3
	ctaIPv6Dst = 4

	ctaProtoNum        = 1
	ctaProtoSrcPort    = 2
	ctaProtoDstPort    = 3
	ctaProtoICMPID     = 4
	ctaProtoICMPType   = 5
	ctaProtoICMPCode   = 6
	ctaProtoICMPv6ID   = 7
	ctaProtoICMPv6Type = 8
	ctaProtoICMPv6Code = 9

	ctaProtoInfoTCP  = 1
	ctaProtoInfoDCCP = 2
	ctaProtoInfoSCTP = 3
	ctaProtoState    = 1 // CTA_PROTOINFO_{TCP,DCCP,SCTP}_STATE
	ctaTCPFlagsOrig  = 4 // CTA_PROTOINFO_TCP_FLAGS_ORIGINAL: flags and their mask

	// tcpCloseInit is IP_CT_TCP_FLAG_CLOSE_INIT (nf_conntrack_tcp.h): this end sent the
	// first FIN.
	tcpCloseInit     = 0x04
	ctaDCCPRole      = 2
	ctaSCTPVtagOrig  = 2
	ctaSCTPVtagReply = 3

	ctaTimestampStart = 1
	ctaTimestampStop  = 2

	ctaCountersPackets = 1
	ctaCountersBytes   = 2

	ctaHelpName   = 1
	ctaSecCtxName = 1

	ctaNATv4Min     = 1
	ctaNATv4Max     = 2
	ctaNATProto     = 3
	ctaNATv6Min     = 4
	ctaNATv6Max     = 5
	ctaProtoPortMin = 1
	ctaProtoPortMax = 2
)

// AppendHeader begins a ctnetlink message; netlink.End with the same start (the length of
// b before) ends it.
func AppendHeader(b []byte, kind, flags uint16, seq uint32, family uint8) []byte {
	return netlink.AppendNetfilter(netlink.Begin(b, kind, flags, seq), family, 0)
}

// appendTwoU64 writes a nest of two 64-bit attributes.
func appendTwoU64(b []byte, kind, kindA uint16, a uint64, kindB uint16, z uint64) []byte {
	b, nest := netlink.BeginNest(b, kind)
	return netlink.EndNest(netlink.AppendU64(netlink.AppendU64(b, kindA, a), kindB, z), nest)
}

// appendName writes a nest of one string.
func appendName(b []byte, kind, inner uint16, name []byte) []byte {
	b, nest := netlink.BeginNest(b, kind)
	return netlink.EndNest(netlink.AppendText(b, inner, name), nest)
}

// Append adds the whole message about e to b, header included, in the
// form in which the kernel dumps entries: both tuples as they are. Delete
// messages in this form remove exactly this entry, its ID compared too. e must
// pass Check.
func Append(b []byte, kind, flags uint16, seq uint32, e *Entry) []byte {
	start := len(b)
	b = AppendHeader(b, kind, flags, seq, e.Family)
	b = appendTuples(b, e, &e.Reply)
	b = netlink.AppendU32(b, ctaStatus, uint32(e.Status))
	if !e.Fields.Has(NoTimeout) {
		b = netlink.AppendU32(b, ctaTimeout, e.Timeout)
	}
	b = appendProtoInfo(b, e, !e.Fields.Has(NoState))
	if !e.Fields.Has(NoMark) {
		b = netlink.AppendU32(b, ctaMark, e.Mark)
	}
	b = appendZone(b, e)
	if e.Use != 0 {
		b = netlink.AppendU32(b, ctaUse, e.Use)
	}
	if e.ID != 0 {
		b = netlink.AppendU32(b, ctaID, e.ID)
	}
	b = appendExtensions(b, e)
	return netlink.End(b, start)
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
		b = netlink.AppendAttr(b, ctaLabels, e.Labels)
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
	b = netlink.AppendU32(b, ctaStatus, uint32(e.Status|Confirmed))
	b = netlink.AppendU32(b, ctaTimeout, e.Timeout)
	b = appendProtoInfo(b, e, false)
	if e.Mark != 0 {
		b = netlink.AppendU32(b, ctaMark, e.Mark)
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
	return netlink.End(b, start)
}

// appendProtoInfo writes the state of the protocols that have one. With zero set, a
// state of zero is written too.
func appendProtoInfo(b []byte, e *Entry, zero bool) []byte {
	b = appendProtoState(b, ctaProtoInfoTCP, uint8(e.TCPState), zero && e.Orig.Proto == unix.IPPROTO_TCP)
	b = appendProtoState(b, ctaProtoInfoSCTP, e.SCTPState, zero && e.Orig.Proto == unix.IPPROTO_SCTP)
	return appendProtoState(b, ctaProtoInfoDCCP, e.DCCPState, zero && e.Orig.Proto == unix.IPPROTO_DCCP)
}

// appendProtoState writes a state; zero only if zero is set. For SCTP and DCCP the
// kernel requires further attributes (nlattr_to_sctp, nlattr_to_dccp).
func appendProtoState(b []byte, proto uint16, state uint8, zero bool) []byte {
	if state == 0 && !zero {
		return b
	}
	b, info := netlink.BeginNest(b, ctaProtoInfo)
	b, nest := netlink.BeginNest(b, proto)
	b = netlink.AppendU8(b, ctaProtoState, state)
	switch proto {
	case ctaProtoInfoSCTP:
		b = netlink.AppendU32(b, ctaSCTPVtagOrig, 0)
		b = netlink.AppendU32(b, ctaSCTPVtagReply, 0)
	case ctaProtoInfoDCCP:
		b = netlink.AppendU8(b, ctaDCCPRole, 0)
	}
	b = netlink.EndNest(b, nest)
	return netlink.EndNest(b, info)
}

// appendZone writes the zone of both directions; one of a single direction is
// in its tuple.
func appendZone(b []byte, e *Entry) []byte {
	if e.Zone != 0 && e.Zone == e.ReplyZone {
		b = netlink.AppendU16(b, ctaZone, e.Zone)
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
	b, tuple := netlink.BeginNest(b, typ)
	b, ip := netlink.BeginNest(b, ctaTupleIP)
	if t.Src.Is4() {
		src, dst := t.Src.As4(), t.Dst.As4()
		b = netlink.AppendAttr(b, ctaIPv4Src, src[:])
		b = netlink.AppendAttr(b, ctaIPv4Dst, dst[:])
	} else {
		src, dst := t.Src.As16(), t.Dst.As16()
		b = netlink.AppendAttr(b, ctaIPv6Src, src[:])
		b = netlink.AppendAttr(b, ctaIPv6Dst, dst[:])
	}
	b = netlink.EndNest(b, ip)
	b, proto := netlink.BeginNest(b, ctaTupleProto)
	b = netlink.AppendU8(b, ctaProtoNum, t.Proto)
	switch {
	case isICMP(t.Proto):
		b = appendICMP(b, t)
	default:
		b = netlink.AppendU16(b, ctaProtoSrcPort, t.SrcPort)
		b = netlink.AppendU16(b, ctaProtoDstPort, t.DstPort)
	}
	b = netlink.EndNest(b, proto)
	if zone != 0 {
		b = netlink.AppendU16(b, ctaTupleZone, zone)
	}
	return netlink.EndNest(b, tuple)
}

func appendICMP(b []byte, t *Tuple) []byte {
	id, typ, code := uint16(ctaProtoICMPID), uint16(ctaProtoICMPType), uint16(ctaProtoICMPCode)
	if t.Proto == unix.IPPROTO_ICMPV6 {
		id, typ, code = ctaProtoICMPv6ID, ctaProtoICMPv6Type, ctaProtoICMPv6Code
	}
	b = netlink.AppendU16(b, id, t.ICMPID)
	b = netlink.AppendU8(b, typ, t.ICMPType)
	return netlink.AppendU8(b, code, t.ICMPCode)
}

func appendNAT(b []byte, typ uint16, addr netip.Addr, port uint16, hasPort bool) []byte {
	b, nat := netlink.BeginNest(b, typ)
	if addr.Is4() {
		a := addr.As4()
		b = netlink.AppendAttr(b, ctaNATv4Min, a[:])
		b = netlink.AppendAttr(b, ctaNATv4Max, a[:])
	} else {
		a := addr.As16()
		b = netlink.AppendAttr(b, ctaNATv6Min, a[:])
		b = netlink.AppendAttr(b, ctaNATv6Max, a[:])
	}
	if hasPort {
		var ports int
		b, ports = netlink.BeginNest(b, ctaNATProto)
		b = netlink.AppendU16(b, ctaProtoPortMin, port)
		b = netlink.AppendU16(b, ctaProtoPortMax, port)
		b = netlink.EndNest(b, ports)
	}
	return netlink.EndNest(b, nat)
}

// Key is what the kernel needs to find one entry and no other.
type Key struct {
	Orig Tuple
	// Zone is that of the original direction; the kernel compares it there alone.
	Zone uint16
	ID   uint32
}

// Key is the one of e.
func (e *Entry) Key() Key { return Key{e.Orig, e.Zone, e.ID} }

// AppendDelete adds the message that deletes the entry of k, if its ID is still
// the same (ctnetlink_del_conntrack).
func AppendDelete(b []byte, flags uint16, seq uint32, k *Key) []byte {
	start := len(b)
	b = AppendHeader(b, Delete, flags, seq, k.Orig.Family())
	b = appendTuple(b, ctaTupleOrig, &k.Orig, 0)
	if k.Zone != 0 {
		b = netlink.AppendU16(b, ctaZone, k.Zone)
	}
	if k.ID != 0 {
		b = netlink.AppendU32(b, ctaID, k.ID)
	}
	return netlink.End(b, start)
}

// Family is unix.AF_INET or unix.AF_INET6.
func (t *Tuple) Family() uint8 {
	if t.Src.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}
