package packet

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"
)

// naiveSum is RFC 1071's definition, word by word.
func naiveSum(b []byte) uint16 {
	var total uint32
	for i := range b {
		word := uint32(b[i])
		if i%2 == 0 {
			word <<= 8
		}
		total += word
		total = total&0xffff + total>>16
	}
	return uint16(total)
}

// TestChecksum compares every length of an Ethernet frame, of random bytes, of zeros
// and of ones, which carry most.
func TestChecksum(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	bytes, zeros, ones := make([]byte, 1518), make([]byte, 1518), make([]byte, 1518)
	for i := range bytes {
		bytes[i], ones[i] = byte(random.Uint32()), 0xff
	}
	for length := range len(bytes) + 1 {
		for _, b := range [][]byte{bytes[len(bytes)-length:], zeros[:length], ones[:length]} {
			if got, want := checksum(b), ^naiveSum(b); got != want {
				t.Fatalf("%d bytes, the last %#x: %#04x, want %#04x", length, b[max(0, length-1):], got, want)
			}
		}
	}
}

// TestChecksumOfRFC1071 is the example of its section 3.
func TestChecksumOfRFC1071(t *testing.T) {
	b := []byte{0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7}
	if got := fold(sum(0, b)); got != 0xddf2 {
		t.Errorf("sum %#04x, want 0xddf2", got)
	}
}

// TestPseudoSum compares with the headers as the RFCs draw them, at every length.
func TestPseudoSum(t *testing.T) {
	for _, tuple := range []Tuple{tuple4, tuple6} {
		for _, protocol := range []uint8{6, 17, 58, 255} {
			for length := range uint32(1518) {
				got := fold(pseudoSum(tuple.Src.Addr(), tuple.Dst.Addr(), protocol, length))
				if want := naiveSum(pseudoHeader(tuple.Src.Addr(), tuple.Dst.Addr(), protocol, length)); got != want {
					t.Fatalf("%v protocol %d length %d: %#04x, want %#04x", tuple, protocol, length, got, want)
				}
			}
		}
	}
	const jumbo = 70000
	got := fold(pseudoSum(tuple6.Src.Addr(), tuple6.Dst.Addr(), 6, jumbo))
	if want := naiveSum(pseudoHeader(tuple6.Src.Addr(), tuple6.Dst.Addr(), 6, jumbo)); got != want {
		t.Errorf("jumbogram: %#04x, want %#04x", got, want)
	}
}

func pseudoHeader(source, destination netip.Addr, protocol uint8, length uint32) []byte {
	b := append(source.AsSlice(), destination.AsSlice()...)
	if source.Is4() {
		return binary.BigEndian.AppendUint16(append(b, 0, protocol), uint16(length))
	}
	return append(binary.BigEndian.AppendUint32(b, length), 0, 0, 0, protocol)
}

func BenchmarkChecksum1500(b *testing.B) {
	frame := make([]byte, 1500)
	b.SetBytes(int64(len(frame)))
	for b.Loop() {
		checksum(frame)
	}
}
