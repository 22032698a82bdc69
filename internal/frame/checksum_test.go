package frame

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/natkit/natkit/internal/unix"
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

func TestTransportChecksum(t *testing.T) {
	all := samples(t)
	for name, want := range map[string]Checksum{
		"ARP": ChecksumNone, "GRE": ChecksumNone, "later fragment": ChecksumNone, "no next header": ChecksumNone,
		"TCP": ChecksumOK, "TCP6": ChecksumOK, "UDP": ChecksumOK, "UDP6": ChecksumOK, "QinQ": ChecksumOK,
		"ICMP echo": ChecksumOK, "ICMPv6 echo": ChecksumOK, "many extensions": ChecksumOK, "atomic fragment": ChecksumOK,
		"first fragment": ChecksumUnknown, "first fragment 6": ChecksumUnknown, "routed": ChecksumUnknown,
	} {
		if got := mustParse(t, all[name]).TransportChecksum(); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

// checksumAt is where the transport checksum of a sample lies.
var checksumAt = map[string]int{
	"TCP":         EthernetLen + IPv4Len + 16,
	"TCP6":        EthernetLen + IPv6Len + 16,
	"UDP":         EthernetLen + IPv4Len + 6,
	"UDP6":        EthernetLen + IPv6Len + 6,
	"ICMP echo":   EthernetLen + IPv4Len + 2,
	"ICMPv6 echo": EthernetLen + IPv6Len + 2,
}

// TestTransportChecksumFindsEveryBit turns each bit of the payload over, and bits of
// the pseudo header and of the checksum itself.
func TestTransportChecksumFindsEveryBit(t *testing.T) {
	all := samples(t)
	for name, at := range checksumAt {
		whole := mustParse(t, all[name])
		end := len(all[name]) - len(whole.Trailer)
		for i := (end - len(whole.Payload)) * 8; i < end*8; i++ {
			frame := change(all[name], i/8, all[name][i/8]^1<<(i%8))
			if got := mustParse(t, frame).TransportChecksum(); got != ChecksumBad {
				t.Fatalf("%s, bit %d of byte %d: %v", name, i%8, i/8, got)
			}
		}
		addresses := map[bool]int{true: EthernetLen + 8, false: EthernetLen + 12}[whole.Version == 6]
		want := ChecksumBad
		if whole.Transport == unix.IPPROTO_ICMP { // covers no address
			want = ChecksumOK
		}
		if got := mustParse(t, change(all[name], addresses, all[name][addresses]^1)).TransportChecksum(); got != want {
			t.Errorf("%s, another source: %v, want %v", name, got, want)
		}
		if got := mustParse(t, change(all[name], at, all[name][at]^0x80)).TransportChecksum(); got != ChecksumBad {
			t.Errorf("%s, another checksum: %v", name, got)
		}
	}
}

func TestTransportChecksumPartial(t *testing.T) {
	all := samples(t)
	for name, at := range checksumAt {
		f := mustParse(t, all[name])
		length := uint32(len(f.segment))
		check := naiveSum(pseudoHeader(f.Source, f.Destination, f.Transport, length))
		frame := change(all[name], at, binary.BigEndian.AppendUint16(nil, check)...)
		want := ChecksumPartial
		if f.Transport == unix.IPPROTO_ICMP {
			want = ChecksumBad
		}
		if got := mustParse(t, frame).TransportChecksum(); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
		cut := mustParse(t, frame[:len(frame)-len(f.Trailer)-1])
		if got := cut.TransportChecksum(); (got == ChecksumPartial) != (want == ChecksumPartial) || got == ChecksumBad {
			t.Errorf("%s, cut: %v", name, got)
		}
	}
}

// UDP may leave its checksum out over IPv4 only.
func TestTransportChecksumZero(t *testing.T) {
	all := samples(t)
	for name, want := range map[string]Checksum{"UDP": ChecksumNone, "UDP6": ChecksumBad, "TCP": ChecksumBad, "ICMP echo": ChecksumBad} {
		if got := mustParse(t, change(all[name], checksumAt[name], 0, 0)).TransportChecksum(); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

// TestTransportChecksumComesOutAsZero searches packets whose checksum is 0 (RFC 1071).
// That is right for TCP, and for UDP it must be written in its other form.
func TestTransportChecksumComesOutAsZero(t *testing.T) {
	for _, protocol := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
		name, wanted, want := "TCP6", uint16(0), ChecksumOK
		if protocol == unix.IPPROTO_UDP {
			name, wanted, want = "UDP6", 0xffff, ChecksumBad
		}
		at := checksumAt[name]
		build := func(n uint16) []byte {
			payload := binary.BigEndian.AppendUint16(nil, n)
			segment := AppendUDP(nil, tuple6, payload, false)
			if protocol == unix.IPPROTO_TCP {
				segment = AppendTCP(nil, tuple6, TCP{Flags: SYN}, payload)
			}
			ip := IP{Source: tuple6.Src.Addr(), Destination: tuple6.Dst.Addr(), Protocol: protocol}
			return ip.Append(link.Append(nil, 0, EtherTypeIPv6), segment)
		}
		frame := build(0)
		for n := uint16(1); binary.BigEndian.Uint16(frame[at:]) != wanted && n != 0; n++ {
			frame = build(n)
		}
		if binary.BigEndian.Uint16(frame[at:]) != wanted {
			t.Fatalf("%s: no packet has the checksum %#04x", name, wanted)
		}
		if got := mustParse(t, change(frame, at, 0, 0)).TransportChecksum(); got != want {
			t.Errorf("%s with the checksum 0: %v, want %v", name, got, want)
		}
	}
}

func TestTransportChecksumCut(t *testing.T) {
	all := samples(t)
	for name := range checksumAt {
		f := mustParse(t, all[name])
		cut := mustParse(t, all[name][:len(all[name])-len(f.Trailer)-1])
		if got := cut.TransportChecksum(); got != ChecksumUnknown {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestIPChecksumOK(t *testing.T) {
	all := samples(t)
	for name, frame := range all {
		if !mustParse(t, frame).IPChecksumOK() {
			t.Errorf("%s: not ok", name)
		}
	}
	for name, at := range map[string]int{"TCP": EthernetLen + 8, "UDP": EthernetLen + 11, "IPv4 options": EthernetLen + IPv4Len + 3} {
		if mustParse(t, change(all[name], at, all[name][at]^1)).IPChecksumOK() {
			t.Errorf("%s with byte %d changed: ok", name, at)
		}
	}
}

func TestChecksumNames(t *testing.T) {
	for c, want := range map[Checksum]string{
		ChecksumNone: "none", ChecksumOK: "ok", ChecksumBad: "bad", ChecksumPartial: "partial", ChecksumUnknown: "unknown",
	} {
		if c.String() != want {
			t.Errorf("%v, want %s", c, want)
		}
	}
}
