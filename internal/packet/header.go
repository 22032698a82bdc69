package packet

import (
	"encoding/binary"
	"net/netip"
)

// Ethernet is the header of a frame with its tags (IEEE 802.3, 802.1Q).
type Ethernet struct {
	Link
	// Tags are four bytes for each tag, the outermost first; see VLAN.
	Tags []byte
	// EtherType is that of the payload, behind all tags. Below 0x600 it is a length,
	// and LLC follows.
	EtherType uint16
}

// VLAN is a tag (IEEE 802.1Q, section 9.6).
type VLAN struct {
	TPID uint16 // EtherTypeVLAN or EtherTypeSVLAN
	PCP  uint8  // priority code point
	DEI  bool   // drop eligible indicator
	VID  uint16 // VLAN identifier
}

// VLANs is the number of tags.
func (e *Ethernet) VLANs() int { return len(e.Tags) / VLANLen }

// VLAN is the i-th tag, counted from 0, the outermost, to less than VLANs.
func (e *Ethernet) VLAN(i int) VLAN {
	tag := e.Tags[i*VLANLen : (i+1)*VLANLen]
	tci := binary.BigEndian.Uint16(tag[2:])
	return VLAN{
		TPID: binary.BigEndian.Uint16(tag),
		PCP:  uint8(tci >> 13),
		DEI:  tci&(1<<12) != 0,
		VID:  tci & 0xfff,
	}
}

// IPv4 is a header (RFC 791) besides what Frame tells of both versions.
type IPv4 struct {
	IHL            uint8 // header length in words of four bytes
	DSCP           uint8 // RFC 2474
	ECN            uint8 // RFC 3168
	TotalLength    uint16
	Identification uint16
	DontFragment   bool
	TTL            uint8
	HeaderChecksum uint16
	Options        []byte
}

// IPv6 is a header (RFC 8200) besides what Frame tells of both versions.
type IPv6 struct {
	DSCP          uint8
	ECN           uint8
	FlowLabel     uint32
	PayloadLength uint16
	// NextHeader is the type of the first extension header, if there is one.
	NextHeader uint8
	HopLimit   uint8
	// Extensions are the extension headers up to the one before the transport
	// header, as they lie in the packet.
	Extensions []byte
}

// Fragment tells where a packet's payload lies in that of the whole packet. The zero
// value is a packet that is whole.
type Fragment struct {
	// Identification is that of the IPv4 header or of the IPv6 Fragment header; 0
	// in packets that are not fragments.
	Identification uint32
	Offset         int  // in bytes
	More           bool // fragments follow
}

// Is reports whether the packet is a fragment. A Fragment header with neither an
// offset nor a successor makes none (RFC 6946).
func (f Fragment) Is() bool { return f.Offset != 0 || f.More }

// TCP is a header (RFC 9293).
type TCP struct {
	SourcePort           uint16
	DestinationPort      uint16
	SequenceNumber       uint32
	AcknowledgmentNumber uint32
	DataOffset           uint8 // header length in words of four bytes
	Reserved             uint8
	Flags                TCPFlags
	Window               uint16 // as it stands there, not scaled
	Checksum             uint16
	UrgentPointer        uint16
	Options              []byte // see Option
}

// UDP is a header (RFC 768).
type UDP struct {
	SourcePort      uint16
	DestinationPort uint16
	Length          uint16
	Checksum        uint16
}

// ICMP is a header of ICMP (RFC 792) or ICMPv6 (RFC 4443).
type ICMP struct {
	Type, Code uint8
	Checksum   uint16
	// Rest is the second word: identifier and sequence number of a query, the MTU
	// or a pointer of an error.
	Rest uint32
}

// Identifier is that of an echo message.
func (i *ICMP) Identifier() uint16 { return uint16(i.Rest >> 16) }

// SequenceNumber is that of an echo message.
func (i *ICMP) SequenceNumber() uint16 { return uint16(i.Rest) }

// Frame is a parsed frame. Its slices are parts of the bytes that were parsed, and
// hold as long as those do.
type Frame struct {
	Ethernet Ethernet
	// Version is that of IP, 4 or 6: which of IPv4 and IPv6 is filled in; 0 where
	// the frame carries something else.
	Version             uint8
	IPv4                IPv4
	IPv6                IPv6
	Source, Destination netip.Addr
	// Protocol is what follows IP and its extension headers (IPPROTO_…).
	Protocol uint8
	Fragment Fragment
	// Transport is Protocol where its header was parsed (IPPROTO_TCP, IPPROTO_UDP,
	// IPPROTO_ICMP, IPPROTO_ICMPV6): which of TCP, UDP and ICMP is filled in. It is
	// 0 for other protocols, and for fragments behind the first one, which have no
	// such header.
	Transport uint8
	TCP       TCP
	UDP       UDP
	ICMP      ICMP
	// Payload is what follows the innermost header that was parsed, without padding.
	Payload []byte
	// Missing is how many bytes of the IP payload are not there although the length
	// field has them, as in a capture that keeps only the start of packets.
	Missing int
	// Trailer is what follows the IP packet: the padding of short frames, or FCS.
	Trailer []byte

	header  []byte // of IPv4, with its options
	segment []byte // transport header and payload
	// unverifiable says that the transport checksum covers what is not in segment:
	// a final destination that a Routing header still has, or a header that is cut.
	unverifiable bool
}

// Tuple is the addresses and the ports; ports are 0 where there are none.
func (f *Frame) Tuple() Tuple {
	source, destination := f.ports()
	return Tuple{netip.AddrPortFrom(f.Source, source), netip.AddrPortFrom(f.Destination, destination)}
}
