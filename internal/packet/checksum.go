package packet

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
)

// checksum is the Internet checksum (RFC 1071) of b.
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

// pseudoSum is the sum of the pseudo header, which a transport checksum covers
// besides the segment itself: addresses, protocol and the segment's length (RFC 9293,
// section 3.1; RFC 8200, section 8.1).
func pseudoSum(source, destination netip.Addr, protocol uint8, length uint32) uint64 {
	acc := uint64(protocol) + uint64(length)
	if source.Is4() && destination.Is4() {
		from, to := source.As4(), destination.As4()
		return sum(sum(acc, from[:]), to[:])
	}
	from, to := source.As16(), destination.As16()
	return sum(sum(acc, from[:]), to[:])
}

// SegmentChecksum is the checksum, with the pseudo header, of a segment whose checksum
// field is 0. Of UDP, 0 is written as 0xffff.
func SegmentChecksum(source, destination netip.Addr, protocol uint8, segment []byte) uint16 {
	return ^fold(sum(pseudoSum(source, destination, protocol, uint32(len(segment))), segment))
}
