package frame

import (
	"encoding/binary"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/natkit/natkit/internal/unix"
)

func TestParseTrailer(t *testing.T) {
	frame := samples(t)["padded"]
	if f := mustParse(t, frame); len(f.Trailer) != 18 || f.TransportChecksum() != ChecksumOK {
		t.Errorf("trailer %x, checksum %v", f.Trailer, f.TransportChecksum())
	}
}

// TestParseEmpty reads packets that end with the IP header.
func TestParseEmpty(t *testing.T) {
	all := samples(t)
	f := mustParse(t, change(all["GRE"], EthernetLen+2, 0, IPv4Len))
	if len(f.Payload) != 0 || len(f.Trailer) != len(all["GRE"])-EthernetLen-IPv4Len {
		t.Errorf("IPv4: payload %x, trailer %x", f.Payload, f.Trailer)
	}
	f = mustParse(t, change(all["no next header"], EthernetLen+4, 0, 0))
	if len(f.Payload) != 0 || len(f.Trailer) != len(all["no next header"])-EthernetLen-IPv6Len {
		t.Errorf("IPv6: payload %x, trailer %x", f.Payload, f.Trailer)
	}
}

// What is behind a datagram in its packet (RFC 9868) is neither its payload nor the
// frame's trailer.
func TestParseUDPSurplus(t *testing.T) {
	ip := ipv4(unix.IPPROTO_UDP)
	datagram := serialize(t, udp(ip), payload)
	surplus := gopacket.Payload(append(datagram, 1, 2, 3, 4, 5, 6, 7, 8))
	frame := serialize(t, ethernet(EtherTypeIPv4), ip, surplus)
	f := mustParse(t, frame)
	if string(f.Payload) != string(payload) || len(f.Trailer) != 0 || f.TransportChecksum() != ChecksumOK {
		t.Errorf("payload %q, trailer %x, checksum %v", f.Payload, f.Trailer, f.TransportChecksum())
	}
	cut := mustParse(t, frame[:len(frame)-7])
	if cut.Missing != 7 || cut.TransportChecksum() != ChecksumOK { // what is missing is not covered
		t.Errorf("%d missing, checksum %v", cut.Missing, cut.TransportChecksum())
	}
}

// The first fragment's UDP length is that of all fragments, and a cut datagram's
// that of the whole one.
func TestParseUDPLengthOfMore(t *testing.T) {
	const length = EthernetLen + IPv4Len + 4
	all := samples(t)
	if f := mustParse(t, change(all["first fragment"], length, 5, 0xb4)); f.UDP.Length != 1460 || f.TransportChecksum() != ChecksumUnknown {
		t.Errorf("%+v, checksum %v", f.UDP, f.TransportChecksum())
	}
	if f := mustParse(t, all["UDP"][:length+4]); f.Missing != len(payload) || f.TransportChecksum() != ChecksumUnknown {
		t.Errorf("%d missing, checksum %v", f.Missing, f.TransportChecksum())
	}
}

// TestParseBigSegments reads what a stack hands to a card that cuts it into packets:
// the length field is 0 where the length does not fit or the card sets it.
func TestParseBigSegments(t *testing.T) {
	const size = 70000
	all := samples(t)
	v4 := append(change(all["TCP"], EthernetLen+2, 0, 0), make([]byte, size)...)
	v6 := append(change(all["TCP6"], EthernetLen+4, 0, 0), make([]byte, size)...)
	jumbo := append(change(all["hop-by-hop"], EthernetLen+4, 0, 0), make([]byte, size)...)
	for name, frame := range map[string][]byte{"IPv4": v4, "IPv6": v6, "jumbogram": jumbo} {
		f := mustParse(t, frame)
		if len(f.Payload) != size+len(payload) || f.Missing != 0 || f.Transport != unix.IPPROTO_TCP {
			t.Errorf("%s: payload of %d bytes, %d missing", name, len(f.Payload), f.Missing)
		}
	}
}

// TestParseUDPJumbogram: its length field is 0, too, and its checksum covers all.
func TestParseUDPJumbogram(t *testing.T) {
	const size, at = 70000, EthernetLen + IPv6Len + 8
	ip := ipv6(unix.IPPROTO_UDP)
	frame := serialize(t, ethernet(EtherTypeIPv6), ipv6(unix.IPPROTO_HOPOPTS), hopByHop(unix.IPPROTO_UDP), udp(ip))
	frame = append(change(frame, EthernetLen+4, 0, 0), make([]byte, size)...)
	copy(frame[at+4:], []byte{0, 0, 0, 0})
	check := SegmentChecksum(tuple6.Src.Addr(), tuple6.Dst.Addr(), unix.IPPROTO_UDP, frame[at:])
	binary.BigEndian.PutUint16(frame[at+6:], check)
	f := mustParse(t, frame)
	if len(f.Payload) != size || f.TransportChecksum() != ChecksumOK {
		t.Errorf("payload of %d bytes, checksum %v", len(f.Payload), f.TransportChecksum())
	}
}
