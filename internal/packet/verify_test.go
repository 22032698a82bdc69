package packet

import (
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"
)

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
		s := Spec{IPv6: true, Protocol: protocol, HopLimit: 64}
		at, wanted, want := checksumAt["TCP6"], uint16(0), ChecksumOK
		if protocol == unix.IPPROTO_UDP {
			at, wanted, want = checksumAt["UDP6"], 0xffff, ChecksumBad
		}
		frame := Build(nil, link, &s, tuple6, Token{}, 90, SYN)
		for sequence := uint32(1); binary.BigEndian.Uint16(frame[at:]) != wanted && sequence < 1<<16; sequence++ {
			frame = Build(frame[:0], link, &s, tuple6, Token{Sequence: sequence}, 90, SYN)
		}
		if binary.BigEndian.Uint16(frame[at:]) != wanted {
			t.Fatalf("%s: no packet has the checksum %#04x", s.stack(), wanted)
		}
		if got := mustParse(t, change(frame, at, 0, 0)).TransportChecksum(); got != want {
			t.Errorf("%s with the checksum 0: %v, want %v", s.stack(), got, want)
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
