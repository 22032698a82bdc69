package conntrack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// MessageType is a ctnetlink message (enum cntl_msg_types,
// include/uapi/linux/netfilter/nfnetlink_conntrack.h).
type MessageType uint8

// The messages in use.
const (
	New         MessageType = 0
	Get         MessageType = 1
	Delete      MessageType = 2
	GetStatsCPU MessageType = 4
	GetStats    MessageType = 5
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

const (
	headerLen   = unix.SizeofNlMsghdr // 16
	nfgenLen    = 4                   // struct nfgenmsg, include/uapi/linux/netfilter/nfnetlink.h
	attrHdrLen  = unix.SizeofNlAttr   // 4
	attrTypeMax = 0x3fff              // NLA_TYPE_MASK: without NLA_F_NESTED and NLA_F_NET_BYTEORDER
	nested      = unix.NLA_F_NESTED
)

// Message is one netlink message. Its Body points into the datagram.
type Message struct {
	Type, Flags uint16
	Seq         uint32
	Body        []byte
}

// Is reports whether m is the ctnetlink message t.
func (m Message) Is(t MessageType) bool { return m.Type == nlType(t) }

func nlType(t MessageType) uint16 { return unix.NFNL_SUBSYS_CTNETLINK<<8 | uint16(t) }

// errTruncated is the cause where a length points past the end of what came.
var errTruncated = errors.New("truncated")

// Next takes the first message off a datagram.
func Next(datagram []byte) (m Message, rest []byte, err error) {
	if len(datagram) < headerLen {
		return Message{}, nil, fmt.Errorf("netlink header: %w: %d bytes of %d", errTruncated, len(datagram), headerLen)
	}
	size := binary.NativeEndian.Uint32(datagram)
	if size < headerLen || uint64(size) > uint64(len(datagram)) {
		return Message{}, nil, fmt.Errorf("netlink message of %d bytes: %w: %d bytes came", size, errTruncated, len(datagram))
	}
	m = Message{
		Type:  binary.NativeEndian.Uint16(datagram[4:]),
		Flags: binary.NativeEndian.Uint16(datagram[6:]),
		Seq:   binary.NativeEndian.Uint32(datagram[8:]),
		Body:  datagram[headerLen:size],
	}
	return m, datagram[min(align4(int(size)), len(datagram)):], nil
}

// Errno is the error that an NLMSG_ERROR or NLMSG_DONE message carries; 0 is
// success, an acknowledgement.
func (m Message) Errno() (unix.Errno, error) {
	if len(m.Body) < 4 {
		return 0, fmt.Errorf("netlink acknowledgement: %w", errTruncated)
	}
	return unix.Errno(-int32(binary.NativeEndian.Uint32(m.Body))), nil
}

// Answer is the sequence number of the request that an NLMSG_ERROR message
// answers, and its error; 0 is an acknowledgement.
func (m Message) Answer() (seq uint32, errno unix.Errno, err error) {
	if m.Type != unix.NLMSG_ERROR {
		return 0, 0, fmt.Errorf("netlink message of type %d where an acknowledgement was due", m.Type)
	}
	errno, err = m.Errno()
	return m.Seq, errno, err
}

// AddFlags adds flags to the message that b begins with.
func AddFlags(b []byte, flags uint16) {
	binary.NativeEndian.PutUint16(b[6:], binary.NativeEndian.Uint16(b[6:])|flags)
}

func align4(n int) int { return (n + 3) &^ 3 }

// nextAttr takes the first attribute off b, which must not be empty. Attribute
// headers are in the host's byte order, contents in the network's.
func nextAttr(b []byte) (typ uint16, value, rest []byte, err error) {
	if len(b) < attrHdrLen {
		return 0, nil, nil, errTruncated
	}
	size := int(binary.NativeEndian.Uint16(b))
	if size < attrHdrLen || size > len(b) {
		return 0, nil, nil, errTruncated
	}
	typ = binary.NativeEndian.Uint16(b[2:]) & attrTypeMax
	return typ, b[attrHdrLen:size], b[min(align4(size), len(b)):], nil
}

// AppendHeader begins a ctnetlink message; FinishMessage with the same start
// (the length of b before) ends it.
func AppendHeader(b []byte, t MessageType, flags uint16, seq uint32, family uint8) []byte {
	b = binary.NativeEndian.AppendUint32(b, 0)
	b = binary.NativeEndian.AppendUint16(b, nlType(t))
	b = binary.NativeEndian.AppendUint16(b, flags)
	b = binary.NativeEndian.AppendUint32(b, seq)
	b = binary.NativeEndian.AppendUint32(b, 0)
	return append(b, family, unix.NFNETLINK_V0, 0, 0)
}

// FinishMessage writes the length of the message that begins at start.
func FinishMessage(b []byte, start int) []byte {
	binary.NativeEndian.PutUint32(b[start:], uint32(len(b)-start))
	return b
}

// AppendMarkFilter adds the attributes by which the kernel chooses entries with
// mark&mask == the given mark.
func AppendMarkFilter(b []byte, mark, mask uint32) []byte {
	b = appendU32(b, ctaMark, mark)
	return appendU32(b, ctaMarkMask, mask)
}

func appendAttr(b []byte, typ uint16, value []byte) []byte {
	b = appendAttrHeader(b, typ, len(value))
	b = append(b, value...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

func appendAttrHeader(b []byte, typ uint16, size int) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(attrHdrLen+size))
	return binary.NativeEndian.AppendUint16(b, typ)
}

func appendU8(b []byte, typ uint16, v uint8) []byte {
	return append(appendAttrHeader(b, typ, 1), v, 0, 0, 0)
}

func appendU16(b []byte, typ uint16, v uint16) []byte {
	return append(appendAttrHeader(b, typ, 2), byte(v>>8), byte(v), 0, 0)
}

func appendU32(b []byte, typ uint16, v uint32) []byte {
	return binary.BigEndian.AppendUint32(appendAttrHeader(b, typ, 4), v)
}

// appendTwoU64 writes a nest of two 64-bit attributes.
func appendTwoU64(b []byte, typ, typeA uint16, a uint64, typeB uint16, z uint64) []byte {
	b, nest := beginNest(b, typ)
	b = binary.BigEndian.AppendUint64(appendAttrHeader(b, typeA, 8), a)
	b = binary.BigEndian.AppendUint64(appendAttrHeader(b, typeB, 8), z)
	return endNest(b, nest)
}

// appendName writes a nest of one string, with the NUL that ends it.
func appendName(b []byte, typ, inner uint16, name []byte) []byte {
	b, nest := beginNest(b, typ)
	b = append(appendAttrHeader(b, inner, len(name)+1), name...)
	for b = append(b, 0); len(b)%4 != 0; {
		b = append(b, 0)
	}
	return endNest(b, nest)
}

// beginNest opens a nested attribute; endNest with its return value closes it.
func beginNest(b []byte, typ uint16) ([]byte, int) {
	return appendAttrHeader(b, typ|nested, 0), len(b)
}

func endNest(b []byte, start int) []byte {
	binary.NativeEndian.PutUint16(b[start:], uint16(len(b)-start))
	return b
}

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
		b = appendU16(b, ctaZone, k.Zone)
	}
	if k.ID != 0 {
		b = appendU32(b, ctaID, k.ID)
	}
	return FinishMessage(b, start)
}

// Family is unix.AF_INET or unix.AF_INET6.
func (t *Tuple) Family() uint8 {
	if t.Src.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}
