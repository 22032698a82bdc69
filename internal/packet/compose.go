package packet

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// IP is a packet to compose, as free as a test of a forwarder needs it. Build makes
// frames of many flows instead.
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

// Append composes the packet around a payload, which is a whole segment or the part
// of one that Fragment says.
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

// AppendUDP composes a datagram with its checksum; without one (0) where without.
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

// AppendTCP composes a segment with its checksum out of what h says of sequence
// numbers, flags, window, urgent pointer and options; options are padded. The ports
// are t's.
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

// AppendICMP composes a message of ICMP, or of ICMPv6 where the addresses are IPv6's,
// with its checksum.
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

// maxSizes bounds the length of a cycle: more sizes than that tell nothing more,
// and each of them may cost a template.
const maxSizes = 64

// maxSize is the greatest frame that a list may name: the greatest IP packet with
// an Ethernet header, an 802.1Q tag and FCS. What a link carries is less; that is
// the caller's to check.
const maxSize = 65535 + 14 + 4 + 4

// imix are the parts of the simple Internet mix (RFC 6985, section 2, where it is
// the 7:4:1 mix): frame sizes, and how often each comes in a cycle of twelve.
var imix = []struct{ size, weight int }{{64, 7}, {594, 4}, {1518, 1}}

// ParseSizes reads frame sizes as people write them: one number, several with
// commas between, or "imix". They are the sizes of RFC 2544, that is of an Ethernet
// frame with its FCS, in bytes; a packet's number modulo the length of the result
// is the index of its size. The least that a packet needs for its headers is the
// caller's to check.
func ParseSizes(s string) ([]int, error) {
	if strings.EqualFold(s, "imix") {
		return mixed(), nil
	}
	fields := strings.Split(s, ",")
	if len(fields) > maxSizes {
		return nil, fmt.Errorf("sizes: %d of them, at most %d are taken", len(fields), maxSizes)
	}
	sizes := make([]int, 0, len(fields))
	for _, field := range fields {
		size, err := strconv.Atoi(strings.TrimSpace(field))
		if err != nil {
			return nil, fmt.Errorf("size %q: want a number of bytes, several with commas between, or imix", field)
		}
		if size < 1 || size > maxSize {
			return nil, fmt.Errorf("size %d: want 1 to %d bytes", size, maxSize)
		}
		sizes = append(sizes, size)
	}
	return sizes, nil
}

// mixed spreads the parts of the mix evenly over a cycle: each step gives every
// part its weight, and takes the whole from the one that has most.
func mixed() []int {
	total := 0
	for _, part := range imix {
		total += part.weight
	}
	credit := make([]int, len(imix))
	sizes := make([]int, 0, total)
	for range total {
		most := 0
		for i, part := range imix {
			credit[i] += part.weight
			if credit[i] > credit[most] {
				most = i
			}
		}
		credit[most] -= total
		sizes = append(sizes, imix[most].size)
	}
	return sizes
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
