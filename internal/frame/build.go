package frame

import (
	"encoding/binary"
	"net/netip"

	"github.com/natkit/natkit/internal/unix"
)

// Lengths of headers on the wire, in bytes.
const (
	EthernetLen = 14
	FCSLen      = 4
	VLANLen     = 4
	IPv4Len     = 20
	IPv6Len     = 40
	UDPLen      = 8
	TCPLen      = 20
)

// IP is the header of a packet to build.
type IP struct {
	// Source and Destination are of one family, which is the packet's.
	Source, Destination netip.Addr
	Protocol            uint8
	// TTL is the hop limit with IPv6; 64 where it is 0.
	TTL  uint8
	DSCP uint8
	// DontFragment and Options are IPv4's; Options is padded to words of four bytes.
	DontFragment bool
	Options      []byte
	// Identification is IPv4's; that of fragments stands in Fragment.
	Identification uint16
	// Fragment makes one of the packet; with IPv6 by a Fragment header.
	Fragment Fragment
}

// Append appends the packet with a payload, which is a whole segment or, as Fragment says,
// a part of one.
func (p IP) Append(b, payload []byte) []byte {
	if p.TTL == 0 {
		p.TTL = 64
	}
	if p.Source.Is4() {
		return p.append4(b, payload)
	}
	return p.append6(b, payload)
}

func (p IP) append4(b, payload []byte) []byte {
	const dontFragment, moreFragments = 0x4000, 0x2000
	options := p.Options
	for len(options)%4 != 0 {
		options = append(options[:len(options):len(options)], optionEndOfList)
	}
	id, flags := p.Identification, uint16(p.Fragment.Offset/8)
	if p.Fragment.Is() {
		id = uint16(p.Fragment.Identification)
	}
	if p.DontFragment {
		flags |= dontFragment
	}
	if p.Fragment.More {
		flags |= moreFragments
	}
	start := len(b)
	b = append(b, byte(4<<4|(IPv4Len+len(options))/4), p.DSCP<<2)
	b = binary.BigEndian.AppendUint16(b, uint16(IPv4Len+len(options)+len(payload)))
	b = binary.BigEndian.AppendUint16(b, id)
	b = binary.BigEndian.AppendUint16(b, flags)
	b = append(b, p.TTL, p.Protocol, 0, 0)
	b = append(b, p.Source.AsSlice()...)
	b = append(b, p.Destination.AsSlice()...)
	b = append(b, options...)
	binary.BigEndian.PutUint16(b[start+10:], checksum(b[start:]))
	return append(b, payload...)
}

func (p IP) append6(b, payload []byte) []byte {
	next, length := p.Protocol, len(payload)
	if p.Fragment.Is() {
		next, length = unix.IPPROTO_FRAGMENT, length+8
	}
	b = binary.BigEndian.AppendUint32(b, 6<<28|uint32(p.DSCP)<<22)
	b = binary.BigEndian.AppendUint16(b, uint16(length))
	b = append(b, next, p.TTL)
	b = append(b, p.Source.AsSlice()...)
	b = append(b, p.Destination.AsSlice()...)
	if p.Fragment.Is() {
		at := uint16(p.Fragment.Offset)
		if p.Fragment.More {
			at |= 1
		}
		b = append(b, p.Protocol, 0)
		b = binary.BigEndian.AppendUint16(b, at)
		b = binary.BigEndian.AppendUint32(b, p.Fragment.Identification)
	}
	return append(b, payload...)
}

// AppendUDP appends a datagram, with checksum 0 if without is set.
func AppendUDP(b []byte, t Tuple, payload []byte, without bool) []byte {
	start := len(b)
	b = binary.BigEndian.AppendUint16(b, t.Src.Port())
	b = binary.BigEndian.AppendUint16(b, t.Dst.Port())
	b = binary.BigEndian.AppendUint16(b, uint16(UDPLen+len(payload)))
	b = append(append(b, 0, 0), payload...)
	if without {
		return b
	}
	check := SegmentChecksum(t.Src.Addr(), t.Dst.Addr(), unix.IPPROTO_UDP, b[start:])
	if check == 0 {
		check = 0xffff
	}
	binary.BigEndian.PutUint16(b[start+6:], check)
	return b
}

// AppendTCP appends a segment with the ports of t and the sequence numbers, flags, window,
// urgent pointer and options (padded) of h.
func AppendTCP(b []byte, t Tuple, h TCP, payload []byte) []byte {
	options := h.Options
	for len(options)%4 != 0 {
		options = append(options[:len(options):len(options)], optionEndOfList)
	}
	start := len(b)
	b = binary.BigEndian.AppendUint16(b, t.Src.Port())
	b = binary.BigEndian.AppendUint16(b, t.Dst.Port())
	b = binary.BigEndian.AppendUint32(b, h.SequenceNumber)
	b = binary.BigEndian.AppendUint32(b, h.AcknowledgmentNumber)
	b = append(b, byte((TCPLen+len(options))/4<<4), uint8(h.Flags))
	b = binary.BigEndian.AppendUint16(b, h.Window)
	b = append(b, 0, 0)
	b = binary.BigEndian.AppendUint16(b, h.UrgentPointer)
	b = append(append(b, options...), payload...)
	binary.BigEndian.PutUint16(b[start+16:], SegmentChecksum(t.Src.Addr(), t.Dst.Addr(), unix.IPPROTO_TCP, b[start:]))
	return b
}

// AppendICMP appends an ICMP message, or an ICMPv6 message between IPv6 addresses.
func AppendICMP(b []byte, source, destination netip.Addr, h ICMP, payload []byte) []byte {
	start := len(b)
	b = append(b, h.Type, h.Code, 0, 0)
	b = binary.BigEndian.AppendUint32(b, h.Rest)
	b = append(b, payload...)
	check := checksum(b[start:])
	if source.Is6() {
		check = SegmentChecksum(source, destination, unix.IPPROTO_ICMPV6, b[start:])
	}
	binary.BigEndian.PutUint16(b[start+2:], check)
	return b
}

// Tuple is the addresses and ports of a packet.
type Tuple struct {
	Src netip.AddrPort `json:"source"`
	Dst netip.AddrPort `json:"destination"`
}

// EtherTypes (include/uapi/linux/if_ether.h).
const (
	EtherTypeIPv4 = 0x0800
	EtherTypeIPv6 = 0x86dd
	// EtherTypeVLAN begins an 802.1Q tag.
	EtherTypeVLAN = 0x8100
	// EtherTypeSVLAN begins a provider's tag (802.1ad), which has one more behind it.
	EtherTypeSVLAN = 0x88a8
)

// Append appends an Ethernet header, with an 802.1Q tag unless vlan is 0.
func (l Link) Append(b []byte, vlan, etherType uint16) []byte {
	b = append(append(b, l.Destination[:]...), l.Source[:]...)
	if vlan != 0 {
		b = binary.BigEndian.AppendUint16(b, EtherTypeVLAN)
		b = binary.BigEndian.AppendUint16(b, vlan)
	}
	return binary.BigEndian.AppendUint16(b, etherType)
}
