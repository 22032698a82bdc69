package frame

import (
	"encoding/binary"
	"math/bits"
	"net/netip"

	"github.com/natkit/natkit/internal/unix"
)

// SumOf is the Internet checksum (RFC 1071) of b.
func SumOf(b []byte) uint16 { return checksum(b) }

func checksum(b []byte) uint16 { return ^fold(sum(0, b)) }

// sum adds b to a one's complement sum. Eight bytes at once are four 16-bit words
// whose carries meet when the sum is folded (RFC 1071, section 2, B and C).
func sum(acc uint64, b []byte) uint64 {
	for len(b) >= 8 {
		acc = addCarry(acc, binary.BigEndian.Uint64(b))
		b = b[8:]
	}
	if len(b) > 0 {
		var rest [8]byte
		copy(rest[:], b)
		acc = addCarry(acc, binary.BigEndian.Uint64(rest[:]))
	}
	return acc
}

func addCarry(a, b uint64) uint64 {
	total, carry := bits.Add64(a, b, 0)
	return total + carry
}

// fold makes 16 bits of a sum. Only a sum of nothing but zeros gives 0.
func fold(acc uint64) uint16 {
	for acc>>16 != 0 {
		acc = acc&0xffff + acc>>16
	}
	return uint16(acc)
}

// pseudoSum returns the sum of the pseudo header: addresses, protocol and length of the segment
// (RFC 9293, section 3.1; RFC 8200, section 8.1).
func pseudoSum(source, destination netip.Addr, protocol uint8, length uint32) uint64 {
	acc := uint64(protocol) + uint64(length)
	if source.Is4() && destination.Is4() {
		from, to := source.As4(), destination.As4()
		return sum(sum(acc, from[:]), to[:])
	}
	from, to := source.As16(), destination.As16()
	return sum(sum(acc, from[:]), to[:])
}

// SegmentChecksum returns the checksum of a segment whose checksum field is 0. UDP writes 0 as
// 0xffff.
func SegmentChecksum(source, destination netip.Addr, protocol uint8, segment []byte) uint16 {
	return ^fold(sum(pseudoSum(source, destination, protocol, uint32(len(segment))), segment))
}

// Checksum is the state of a checksum on the wire.
type Checksum int

const (
	// ChecksumNone is a packet without a checksum: UDP over IPv4 may omit it (RFC 768).
	ChecksumNone Checksum = iota
	ChecksumOK
	ChecksumBad
	// ChecksumPartial covers the pseudo header only, to be completed by a network card
	// (CHECKSUM_PARTIAL in include/linux/skbuff.h).
	ChecksumPartial
	// ChecksumUnknown covers data that is not in the frame.
	ChecksumUnknown
)

func (c Checksum) String() string {
	return [...]string{"none", "ok", "bad", "partial", "unknown"}[c]
}

// IPChecksumOK reports whether the IPv4 header checksum is right; without one it is true.
func (f *Frame) IPChecksumOK() bool {
	return f.Version != 4 || checksum(f.header) == 0
}

// TransportChecksum verifies that of TCP, UDP, ICMP or ICMPv6.
func (f *Frame) TransportChecksum() Checksum {
	check := f.transportCheck()
	switch {
	case f.Transport == 0, f.Transport == unix.IPPROTO_UDP && check == 0 && f.Version == 4:
		return ChecksumNone
	case f.Fragment.Is() || f.unverifiable:
		return ChecksumUnknown
	case f.Transport == unix.IPPROTO_UDP && check == 0: // only tunnels may (RFC 6935)
		return ChecksumBad
	}
	length, complete := f.segmentLength()
	pseudo := f.pseudoSum(length)
	switch {
	case complete && fold(sum(pseudo, f.segment)) == 0xffff:
		return ChecksumOK
	case pseudo != 0 && check == fold(pseudo):
		return ChecksumPartial
	case complete:
		return ChecksumBad
	}
	return ChecksumUnknown
}

func (f *Frame) transportCheck() uint16 {
	switch f.Transport {
	case unix.IPPROTO_TCP:
		return f.TCP.Checksum
	case unix.IPPROTO_UDP:
		return f.UDP.Checksum
	}
	return f.ICMP.Checksum
}

// segmentLength returns the segment's length by its header, and whether all of it is there.
func (f *Frame) segmentLength() (length uint32, complete bool) {
	if f.Transport == unix.IPPROTO_UDP && f.UDP.Length != 0 {
		return uint32(f.UDP.Length), len(f.segment) == int(f.UDP.Length)
	}
	return uint32(len(f.segment) + f.Missing), f.Missing == 0
}

// pseudoSum returns the sum of the pseudo header; 0 for ICMP, which has none.
func (f *Frame) pseudoSum(length uint32) uint64 {
	if f.Transport == unix.IPPROTO_ICMP {
		return 0
	}
	return pseudoSum(f.Source, f.Destination, f.Transport, length)
}
