package packet

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
)

// checksum is the Internet checksum (RFC 1071) of a header and of what it covers,
// given in parts; only the last part may have an odd length.
func checksum(parts ...[]byte) uint16 {
	var acc uint64
	for _, part := range parts {
		acc = sum(acc, part)
	}
	return ^fold(acc)
}

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

// pseudoHeader is what a transport checksum covers besides the segment itself (RFC
// 9293, section 3.1; RFC 8200, section 8.1). length is that of the segment.
func pseudoHeader(source, destination netip.Addr, protocol uint8, length uint32) []byte {
	b := make([]byte, 0, 40)
	b = append(b, source.AsSlice()...)
	b = append(b, destination.AsSlice()...)
	if source.Is4() {
		b = append(b, 0, protocol)
		return binary.BigEndian.AppendUint16(b, uint16(length))
	}
	b = binary.BigEndian.AppendUint32(b, length)
	return append(b, 0, 0, 0, protocol)
}
