package conntrack

import (
	"encoding/binary"
	"errors"
	"fmt"

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
