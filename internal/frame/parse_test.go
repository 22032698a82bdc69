package frame

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/unix"
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
	for name, want := range map[string][]byte{
		"TCP":  nil,
		"VLAN": {0x81, 0, 0x90, 100},
		"QinQ": {0x88, 0xa8, 0xf, 0xfe, 0x81, 0, 0, 1},
	} {
		f := mustParse(t, all[name])
		if !bytes.Equal(f.Ethernet.Tags, want) {
			t.Errorf("%s: tags %x, want %x", name, f.Ethernet.Tags, want)
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

// TestParseReserved reads bits that gopacket does not write.
func TestParseReserved(t *testing.T) {
	const at = EthernetLen + IPv4Len + 12
	frame := samples(t)["TCP"]
	if f := mustParse(t, change(frame, at, frame[at]|0xb)); len(f.Payload) != len(payload) {
		t.Errorf("%+v", f.TCP)
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
