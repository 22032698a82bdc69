package packet

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// EtherTypes (include/uapi/linux/if_ether.h).
const (
	EtherTypeIPv4 = 0x0800
	EtherTypeIPv6 = 0x86dd
	// EtherTypeVLAN begins an 802.1Q tag.
	EtherTypeVLAN = 0x8100
	// EtherTypeSVLAN begins a provider's tag (802.1ad), which has one more behind it.
	EtherTypeSVLAN = 0x88a8
)

// Build appends to b one of the frames that s describes: headers, token and zeros,
// length bytes in all, without FCS, but never less than HeaderLen. flags are those
// of a TCP segment. t has addresses of the family that s says.
//
// It is written to be obviously right, and is what the generator's eBPF program is
// compared with.
func Build(b []byte, link Link, s *Spec, t Tuple, token Token, length int, flags TCPFlags) []byte {
	b = appendEthernet(b, link, s)
	length = max(length, s.HeaderLen()) - EthernetLen
	if s.VLAN != 0 {
		length -= VLANLen
	}
	if s.IPv6 {
		length -= IPv6Len
		b = appendIPv6(b, s, t, length)
	} else {
		length -= IPv4Len
		b = appendIPv4(b, s, t, length)
	}
	if s.Protocol == unix.IPPROTO_TCP {
		return appendTCP(b, t, token, length, flags)
	}
	return appendUDP(b, t, token, length)
}

func appendEthernet(b []byte, link Link, s *Spec) []byte {
	b = append(b, link.Destination[:]...)
	b = append(b, link.Source[:]...)
	if s.VLAN != 0 {
		b = binary.BigEndian.AppendUint16(b, EtherTypeVLAN)
		b = binary.BigEndian.AppendUint16(b, s.VLAN)
	}
	if s.IPv6 {
		return binary.BigEndian.AppendUint16(b, EtherTypeIPv6)
	}
	return binary.BigEndian.AppendUint16(b, EtherTypeIPv4)
}

// appendIPv4 writes a header without options (RFC 791) for a payload of the given
// length. The identification is 0, as RFC 6864 allows where fragmentation is not.
func appendIPv4(b []byte, s *Spec, t Tuple, payload int) []byte {
	const dontFragment = 0x4000
	start := len(b)
	b = append(b, 4<<4|IPv4Len/4, s.DSCP<<2)
	b = binary.BigEndian.AppendUint16(b, uint16(IPv4Len+payload))
	b = binary.BigEndian.AppendUint16(b, 0)
	b = binary.BigEndian.AppendUint16(b, dontFragment)
	b = append(b, s.HopLimit, s.Protocol, 0, 0)
	b = append(b, t.Src.Addr().AsSlice()...)
	b = append(b, t.Dst.Addr().AsSlice()...)
	binary.BigEndian.PutUint16(b[start+10:], checksum(b[start:]))
	return b
}

// appendIPv6 writes a header (RFC 8200) for a payload of the given length.
func appendIPv6(b []byte, s *Spec, t Tuple, payload int) []byte {
	trafficClass := uint32(s.DSCP << 2)
	b = binary.BigEndian.AppendUint32(b, 6<<28|trafficClass<<20)
	b = binary.BigEndian.AppendUint16(b, uint16(payload))
	b = append(b, s.Protocol, s.HopLimit)
	b = append(b, t.Src.Addr().AsSlice()...)
	return append(b, t.Dst.Addr().AsSlice()...)
}

// appendUDP writes a datagram (RFC 768) of the given length, header included.
func appendUDP(b []byte, t Tuple, token Token, length int) []byte {
	start := len(b)
	b = binary.BigEndian.AppendUint16(b, t.Src.Port())
	b = binary.BigEndian.AppendUint16(b, t.Dst.Port())
	b = binary.BigEndian.AppendUint16(b, uint16(length))
	b = append(b, 0, 0)
	b = appendPayload(b, token, length-UDPLen)
	datagram := b[start:]
	check := SegmentChecksum(t.Src.Addr(), t.Dst.Addr(), unix.IPPROTO_UDP, datagram)
	if check == 0 { // would say that there is none
		check = 0xffff
	}
	binary.BigEndian.PutUint16(datagram[6:], check)
	return b
}

// appendTCP writes a segment (RFC 9293) of the given length, header included. It
// lies at the start of its flow's sequence space, as if it were sent again and
// again.
func appendTCP(b []byte, t Tuple, token Token, length int, flags TCPFlags) []byte {
	start := len(b)
	b = binary.BigEndian.AppendUint16(b, t.Src.Port())
	b = binary.BigEndian.AppendUint16(b, t.Dst.Port())
	b = binary.BigEndian.AppendUint32(b, sequenceNumber(token.Flow, flags))
	if flags&ACK != 0 {
		b = binary.BigEndian.AppendUint32(b, 1)
	} else {
		b = binary.BigEndian.AppendUint32(b, 0)
	}
	b = append(b, TCPLen/4<<4, uint8(flags))
	b = binary.BigEndian.AppendUint16(b, 0xffff) // window
	b = append(b, 0, 0, 0, 0)                    // checksum, urgent pointer
	b = appendPayload(b, token, length-TCPLen)
	segment := b[start:]
	binary.BigEndian.PutUint16(segment[16:], SegmentChecksum(t.Src.Addr(), t.Dst.Addr(), unix.IPPROTO_TCP, segment))
	return b
}

// sequenceNumber is the initial sequence number of a flow for its SYN, and one more
// for all other segments. 0x9e3779b1 (2^32 divided by the golden ratio) lays flows
// far apart.
func sequenceNumber(flow uint32, flags TCPFlags) uint32 {
	initial := flow * 0x9e3779b1
	if flags&SYN != 0 {
		return initial
	}
	return initial + 1
}

// appendPayload writes the token, and zeros behind it.
func appendPayload(b []byte, token Token, length int) []byte {
	start := len(b)
	b = append(b, make([]byte, length)...)
	token.Put(b[start:])
	return b
}
