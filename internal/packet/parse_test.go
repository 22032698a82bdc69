package packet

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func mustParse(t testing.TB, frame []byte) *Frame {
	t.Helper()
	f, err := Parse(frame)
	if err != nil {
		t.Fatal(err)
	}
	return &f
}

var frameOptions = cmp.Options{
	cmp.AllowUnexported(Frame{}),
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
}

func TestParseLayers(t *testing.T) {
	all := samples(t)
	for _, tt := range []struct {
		name      string
		etherType uint16
		version   uint8
		protocol  uint8
		transport uint8
		tuple     Tuple
		payload   int
	}{
		{"ARP", 0x0806, 0, 0, 0, Tuple{}, 46},
		{"LLC", 46, 0, 0, 0, Tuple{}, 46},
		{"TCP", EtherTypeIPv4, 4, unix.IPPROTO_TCP, unix.IPPROTO_TCP, tuple4, len(payload)},
		{"TCP6", EtherTypeIPv6, 6, unix.IPPROTO_TCP, unix.IPPROTO_TCP, tuple6, len(payload)},
		{"UDP", EtherTypeIPv4, 4, unix.IPPROTO_UDP, unix.IPPROTO_UDP, tuple4, len(payload)},
		{"UDP6", EtherTypeIPv6, 6, unix.IPPROTO_UDP, unix.IPPROTO_UDP, tuple6, len(payload)},
		{"ICMP echo", EtherTypeIPv4, 4, unix.IPPROTO_ICMP, unix.IPPROTO_ICMP, portless(tuple4), len(payload)},
		{"ICMPv6 echo", EtherTypeIPv6, 6, unix.IPPROTO_ICMPV6, unix.IPPROTO_ICMPV6, portless(tuple6), 3},
		{"IPv4 options", EtherTypeIPv4, 4, unix.IPPROTO_UDP, unix.IPPROTO_UDP, tuple4, len(payload)},
		{"first fragment", EtherTypeIPv4, 4, unix.IPPROTO_UDP, unix.IPPROTO_UDP, tuple4, len(payload)},
		{"later fragment", EtherTypeIPv4, 4, unix.IPPROTO_UDP, 0, portless(tuple4), len(payload)},
		{"GRE", EtherTypeIPv4, 4, unix.IPPROTO_GRE, 0, portless(tuple4), 24},
		{"no next header", EtherTypeIPv6, 6, unix.IPPROTO_NONE, 0, portless(tuple6), len(payload)},
		{"VLAN", EtherTypeIPv4, 4, unix.IPPROTO_TCP, unix.IPPROTO_TCP, tuple4, 0},
		{"QinQ", EtherTypeIPv6, 6, unix.IPPROTO_UDP, unix.IPPROTO_UDP, tuple6, 0},
		{"padded", EtherTypeIPv4, 4, unix.IPPROTO_UDP, unix.IPPROTO_UDP, tuple4, 0},
		{"hop-by-hop", EtherTypeIPv6, 6, unix.IPPROTO_TCP, unix.IPPROTO_TCP, tuple6, len(payload)},
		{"many extensions", EtherTypeIPv6, 6, unix.IPPROTO_TCP, unix.IPPROTO_TCP, tuple6, len(payload)},
		{"authenticated", EtherTypeIPv6, 6, unix.IPPROTO_TCP, unix.IPPROTO_TCP, tuple6, len(payload)},
		{"first fragment 6", EtherTypeIPv6, 6, unix.IPPROTO_TCP, unix.IPPROTO_TCP, tuple6, len(payload)},
		{"later fragment 6", EtherTypeIPv6, 6, unix.IPPROTO_DSTOPTS, 0, portless(tuple6), len(payload)},
		{"atomic fragment", EtherTypeIPv6, 6, unix.IPPROTO_TCP, unix.IPPROTO_TCP, tuple6, len(payload)},
	} {
		f := mustParse(t, all[tt.name])
		if f.Ethernet.Link != link || f.Ethernet.EtherType != tt.etherType || f.Version != tt.version {
			t.Errorf("%s: %+v, version %d", tt.name, f.Ethernet, f.Version)
		}
		if f.Protocol != tt.protocol || f.Transport != tt.transport {
			t.Errorf("%s: protocol %d, transport %d", tt.name, f.Protocol, f.Transport)
		}
		if f.Tuple() != tt.tuple || len(f.Payload) != tt.payload || f.Missing != 0 {
			t.Errorf("%s: %v, payload %q, %d missing", tt.name, f.Tuple(), f.Payload, f.Missing)
		}
	}
}

func portless(t Tuple) Tuple {
	f := Frame{Source: t.Src.Addr(), Destination: t.Dst.Addr()}
	return f.Tuple()
}

func TestParseTags(t *testing.T) {
	all := samples(t)
	for name, want := range map[string][]VLAN{
		"TCP":  nil,
		"VLAN": {{TPID: EtherTypeVLAN, PCP: 5, DEI: true, VID: 100}},
		"QinQ": {{TPID: EtherTypeSVLAN, VID: 4094}, {TPID: EtherTypeVLAN, VID: 1}},
	} {
		f := mustParse(t, all[name])
		var got []VLAN
		for i := range f.Ethernet.VLANs() {
			got = append(got, f.Ethernet.VLAN(i))
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
}

func TestParseFragments(t *testing.T) {
	all := samples(t)
	for name, want := range map[string]Fragment{
		"UDP":              {},
		"first fragment":   {7, 0, true},
		"later fragment":   {7, 1480, false},
		"first fragment 6": {0xdeadbeef, 0, true},
		"later fragment 6": {0xdeadbeef, 1480, false},
		"atomic fragment":  {},
	} {
		if f := mustParse(t, all[name]); f.Fragment != want || f.Fragment.Is() != (want != Fragment{}) {
			t.Errorf("%s: %+v, want %+v", name, f.Fragment, want)
		}
	}
}

// A Fragment header inside of a fragment does not hide that it is one.
func TestParseFragmentInFragment(t *testing.T) {
	frame := serialize(t, ethernet(EtherTypeIPv6), ipv6(unix.IPPROTO_FRAGMENT), fragment(unix.IPPROTO_FRAGMENT, 0, 1),
		fragment(unix.IPPROTO_TCP, 0, 0), tcpSegment(t))
	f := mustParse(t, frame)
	if !f.Fragment.More || f.TransportChecksum() != ChecksumUnknown {
		t.Errorf("%+v, checksum %v", f.Fragment, f.TransportChecksum())
	}
}

func TestParseExtensions(t *testing.T) {
	all := samples(t)
	for name, want := range map[string]int{
		"TCP6": 0, "hop-by-hop": 8, "many extensions": 32, "authenticated": 24, "later fragment 6": 8, "no next header": 0,
	} {
		f := mustParse(t, all[name])
		if got := f.IPv6.Extensions; len(got) != want || !bytes.Equal(got, all[name][EthernetLen+IPv6Len:][:want]) {
			t.Errorf("%s: %x, want %d bytes", name, got, want)
		}
	}
}

func TestParseTrailer(t *testing.T) {
	frame := samples(t)["padded"]
	if f := mustParse(t, frame); len(f.Trailer) != 18 || f.TransportChecksum() != ChecksumOK {
		t.Errorf("trailer %x, checksum %v", f.Trailer, f.TransportChecksum())
	}
}

// What is behind a datagram in its packet (RFC 9868) is neither its payload nor the
// frame's trailer.
func TestParseUDPSurplus(t *testing.T) {
	ip := ipv4(unix.IPPROTO_UDP)
	datagram := serialize(t, udp(ip), payload)
	f := mustParse(t, serialize(t, ethernet(EtherTypeIPv4), ip, append(payload[:0:0], append(datagram, 1, 2, 3, 4, 5, 6, 7, 8)...)))
	if string(f.Payload) != string(payload) || len(f.Trailer) != 0 || f.TransportChecksum() != ChecksumOK {
		t.Errorf("payload %q, trailer %x, checksum %v", f.Payload, f.Trailer, f.TransportChecksum())
	}
}

// TestParseICMP reads identifier and sequence number of both versions.
func TestParseICMP(t *testing.T) {
	all := samples(t)
	for name, want := range map[string]ICMP{"ICMP echo": {Type: 8}, "ICMPv6 echo": {Type: 128}} {
		f := mustParse(t, all[name])
		if f.ICMP.Type != want.Type || f.ICMP.Code != 0 || f.ICMP.Identifier() != 7 || f.ICMP.SequenceNumber() != 9 {
			t.Errorf("%s: %+v", name, f.ICMP)
		}
	}
}

// TestParseCut cuts every sample at every byte. In a header, that is an error with
// the number of bytes that are there; behind all headers it is not.
func TestParseCut(t *testing.T) {
	for name, frame := range samples(t) {
		whole := mustParse(t, frame)
		packet := len(frame) - len(whole.Trailer)
		headers := packet - len(whole.Payload)
		for n := range frame {
			f, err := Parse(frame[:n])
			var cut *CutError
			switch {
			case n < headers && (!errors.As(err, &cut) || cut.Have >= cut.Need || cut.Have > n || f.Transport != 0):
				t.Fatalf("%s, %d bytes: %v", name, n, err)
			case n >= headers && err != nil:
				t.Fatalf("%s, %d bytes: %v", name, n, err)
			case n >= headers && whole.Version != 0 && f.Missing != max(0, packet-n):
				t.Fatalf("%s, %d bytes: %d are missing, want %d", name, n, f.Missing, max(0, packet-n))
			}
		}
	}
}

func TestParseSaysWhatIsCut(t *testing.T) {
	all := samples(t)
	for _, tt := range []struct {
		name   string
		length int
		want   string
	}{
		{"TCP", 0, "the Ethernet header is cut: 0 of 14 bytes"},
		{"TCP", 13, "the Ethernet header is cut: 13 of 14 bytes"},
		{"TCP", 14, "the IPv4 header is cut: 0 of 20 bytes"},
		{"VLAN", 17, "the VLAN header is cut: 5 of 6 bytes"},
		{"QinQ", 20, "the VLAN header is cut: 4 of 6 bytes"},
		{"IPv4 options", 14 + 22, "the IPv4 header is cut: 22 of 24 bytes"},
		{"TCP6", 14 + 39, "the IPv6 header is cut: 39 of 40 bytes"},
		{"hop-by-hop", 14 + 47, "the Hop-by-Hop Options header is cut: 7 of 8 bytes"},
		{"many extensions", 14 + 40 + 15, "the Destination Options header is cut: 7 of 8 bytes"},
		{"routed", 14 + 40, "the Routing header is cut: 0 of 8 bytes"},
		{"authenticated", 14 + 40 + 20, "the Authentication header is cut: 20 of 24 bytes"},
		{"later fragment 6", 14 + 40 + 4, "the Fragment header is cut: 4 of 8 bytes"},
		{"TCP", 14 + 20 + 19, "the TCP header is cut: 19 of 20 bytes"},
		{"TCP", 14 + 20 + 39, "the TCP header is cut: 39 of 40 bytes"},
		{"UDP", 14 + 20 + 7, "the UDP header is cut: 7 of 8 bytes"},
		{"ICMP echo", 14 + 20 + 7, "the ICMP header is cut: 7 of 8 bytes"},
		{"ICMPv6 echo", 14 + 40 + 7, "the ICMPv6 header is cut: 7 of 8 bytes"},
	} {
		f, err := Parse(all[tt.name][:tt.length])
		if want := "parse frame: " + tt.want; err == nil || err.Error() != want {
			t.Errorf("%s, %d bytes: %v, want %s", tt.name, tt.length, err, want)
		}
		if tt.length > 14+40 && !f.Source.IsValid() {
			t.Errorf("%s, %d bytes: the IP header is not filled in", tt.name, tt.length)
		}
	}
}

// change is a frame with other bytes at a place.
func change(frame []byte, at int, to ...byte) []byte {
	changed := bytes.Clone(frame)
	copy(changed[at:], to)
	return changed
}

func TestParseContradictions(t *testing.T) {
	const ip, l4 = EthernetLen, EthernetLen + IPv4Len
	all := samples(t)
	for _, tt := range []struct {
		name  string
		frame []byte
		want  string
	}{
		{"version 6 in IPv4", change(all["TCP"], ip, 0x65), "version 6 in an IPv4 header"},
		{"version 4 in IPv6", change(all["TCP6"], ip, 0x45), "version 4 in an IPv6 header"},
		{"short IHL", change(all["TCP"], ip, 0x44), "IPv4 header length (IHL) of 16 bytes"},
		{"IHL behind the end", change(all["UDP"][:l4+8], ip, 0x4f), "the IPv4 header is cut: 28 of 60 bytes"},
		{"total length", change(all["TCP"], ip+2, 0, 19), "IPv4 total length 19 is less than the header's 20"},
		{"total length 0", change(all["UDP"], ip+2, 0, 0), "IPv4 total length 0 is less"},
		{"no room for TCP", change(all["TCP"], ip+2, 0, 39), "the TCP header is cut: 19 of 20 bytes"},
		{"short data offset", change(all["TCP"], l4+12, 0x40), "TCP header length (data offset) of 16 bytes"},
		{"data offset behind the end", change(all["TCP"], l4+12, 0xf0), "the TCP header is cut: 51 of 60 bytes"},
		{"short UDP", change(all["UDP"], l4+4, 0, 7), "UDP length 7 is less than the header's 8"},
		{"UDP length 0", change(all["UDP"], l4+4, 0, 0), "UDP length 0 is less"},
		{"long UDP", change(all["UDP"], l4+4, 0, 20), "UDP length 20 is more than the 19 bytes that IP carries"},
		{"IPv6 payload length 0", change(all["UDP6"], ip+4, 0, 0), "the UDP header is cut: 0 of 8 bytes"},
		{"long extension", change(all["hop-by-hop"], ip+IPv6Len+1, 255), "the Hop-by-Hop Options header is cut: 59 of 2048 bytes"},
		{"only tags", bytes.Repeat([]byte{0x81, 0}, 30), "the VLAN header is cut: 4 of 6 bytes"},
	} {
		_, err := Parse(tt.frame)
		if err == nil || !strings.HasPrefix(err.Error(), "parse frame: ") || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %s", tt.name, err, tt.want)
		}
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
	check := transportChecksum(tuple6, unix.IPPROTO_UDP, frame[at:])
	binary.BigEndian.PutUint16(frame[at+6:], check)
	f := mustParse(t, frame)
	if len(f.Payload) != size || f.TransportChecksum() != ChecksumOK {
		t.Errorf("payload of %d bytes, checksum %v", len(f.Payload), f.TransportChecksum())
	}
}

// TestDecodeNetwork gives what Decode does, without Ethernet.
func TestDecodeNetwork(t *testing.T) {
	for _, name := range []string{"TCP", "UDP6"} {
		frame := samples(t)[name]
		want := mustParse(t, frame)
		want.Ethernet = Ethernet{EtherType: want.Ethernet.EtherType}
		got := Frame{Ethernet: Ethernet{Tags: []byte{1}}, Missing: 3} // to be overwritten
		if err := got.DecodeNetwork(want.Ethernet.EtherType, frame[EthernetLen:]); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(*want, got, frameOptions); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
}

// TestDecodeLeavesNothing decodes all samples into one Frame.
func TestDecodeLeavesNothing(t *testing.T) {
	var reused Frame
	all := samples(t)
	for range 3 { // maps come in another order each time
		for name, frame := range all {
			if err := reused.Decode(frame); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(*mustParse(t, frame), reused, frameOptions); d != "" {
				t.Errorf("%s (-new +reused):\n%s", name, d)
			}
		}
	}
}

func TestParseDoesNotAllocate(t *testing.T) {
	all := samples(t)
	var f, inner Frame
	for name, frame := range all {
		allocations := testing.AllocsPerRun(100, func() {
			if f.Decode(frame) != nil || f.Tuple() == (Tuple{}) && f.Version != 0 {
				t.Error(name)
			}
			f.IPChecksumOK()
			f.TransportChecksum()
			f.TCP.Timestamps()
			if f.ICMPError() && f.Quoted(&inner) != nil {
				t.Error(name)
			}
		})
		if allocations != 0 {
			t.Errorf("%s: %v allocations", name, allocations)
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	all := samples(b)
	for _, name := range []string{"UDP", "TCP", "TCP6", "many extensions"} {
		b.Run(name, func(b *testing.B) {
			var f Frame
			for b.Loop() {
				if err := f.Decode(all[name]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
