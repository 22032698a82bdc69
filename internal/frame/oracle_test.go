package frame

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/natkit/natkit/internal/testutil"
)

// The tests here compare Frame with gopacket's layers, as far as both go.

func TestParseAgainstGopacket(t *testing.T) {
	for name, frame := range samples(t) {
		f, err := Parse(frame)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		want := f.Transport != 0
		if name == "first fragment" || name == "first fragment 6" || name == "atomic fragment" {
			want = false // gopacket looks into no fragment
		}
		if got := compareWithGopacket(t, &f, frame); got != want {
			t.Errorf("%s: gopacket saw a transport header: %v; we saw protocol %d", name, got, f.Transport)
		}
	}
}

// FuzzParse looks for panics, for contradictions in what is parsed, and for what
// gopacket sees otherwise.
func FuzzParse(f *testing.F) {
	for _, frame := range samples(f) {
		f.Add(frame)
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		defer testutil.Bounded(t, len(frame))()
		before := bytes.Clone(frame)
		parsed, err := Parse(frame)
		checkConsistent(t, &parsed, frame, err)
		if err == nil {
			compareWithGopacket(t, &parsed, frame)
		}
		var inner Frame
		if parsed.Quoted(&inner) == nil {
			inner.TransportChecksum()
			inner.Tuple()
		}
		if !bytes.Equal(before, frame) {
			t.Error("the frame was changed")
		}
	})
}

// checkConsistent checks what holds for every frame.
func checkConsistent(t *testing.T, f *Frame, frame []byte, err error) {
	t.Helper()
	sum := f.TransportChecksum()
	switch {
	case err != nil && (f.Transport != 0 || sum != ChecksumNone):
		t.Errorf("a transport header of protocol %d with a checksum that is %v, and an error: %v", f.Transport, sum, err)
	case f.Transport != 0 && f.Transport != f.Protocol:
		t.Errorf("transport %d is not protocol %d", f.Transport, f.Protocol)
	case f.Version == 0 && (f.Protocol != 0 || f.Fragment.Is()):
		t.Error("a protocol or a fragment without IP")
	case f.Missing != 0 && len(f.Trailer) != 0:
		t.Errorf("%d bytes are missing, and %d too many", f.Missing, len(f.Trailer))
	case len(f.Payload)+len(f.Trailer)+len(f.Ethernet.Tags)+len(f.IPv4.Options)+len(f.IPv6.Extensions)+len(f.TCP.Options) > len(frame):
		t.Error("the parts are longer than the frame")
	}
	for tags := f.Ethernet.Tags; len(tags) > 0; tags = tags[VLANLen:] {
		if tag := binary.BigEndian.Uint16(tags); !isTag(tag) {
			t.Errorf("tag %#x", tag)
		}
	}
	f.IPChecksumOK()
	f.TCP.Timestamps()
}

// compareWithGopacket goes through gopacket's layers until one that we do not have,
// and reports whether it came to a transport header. gopacket has known differences:
// it reads IPv6 extension headers behind IPv4, too, IP in IP, and Ethernet in Ethernet.
func compareWithGopacket(t *testing.T, f *Frame, frame []byte) (transport bool) {
	t.Helper()
	p := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.NoCopy)
	accepted := p.Layers()
	if p.ErrorLayer() != nil { // the last one, and the one before it may be half empty
		accepted = accepted[:max(0, len(accepted)-2)]
	}
	tags, network := 0, false
	for i, layer := range accepted {
		switch layer := layer.(type) {
		case *layers.Ethernet:
			if i > 0 {
				return false
			}
			equal(t, "MACs", f.Ethernet.Link, Link{MAC(layer.SrcMAC), MAC(layer.DstMAC)})
		case *layers.Dot1Q:
			if tags += VLANLen; tags > len(f.Ethernet.Tags) {
				t.Fatalf("gopacket sees %d bytes of tags, we see %d", tags, len(f.Ethernet.Tags))
			}
			equal(t, "VLAN", binary.BigEndian.Uint16(f.Ethernet.Tags[tags-2:])&0xfff, layer.VLANIdentifier)
		case *layers.IPv4:
			if network || f.Ethernet.EtherType != EtherTypeIPv4 { // gopacket takes some other types for IP
				return false
			}
			network = true
			compareIPv4(t, f, layer)
		case *layers.IPv6:
			if network || f.Ethernet.EtherType != EtherTypeIPv6 {
				return false
			}
			network = true
			compareIPv6(t, f, layer)
		case *layers.IPv6HopByHop, *layers.IPv6Routing, *layers.IPv6Destination, *layers.IPSecAH:
			if f.Version != 6 {
				return false
			}
		case *layers.IPv6Fragment:
			if f.Version == 6 {
				compareFragment(t, f, layer)
			}
			return false
		default:
			return network && compareTransport(t, f, layer)
		}
	}
	return false
}

func equal[T any](t *testing.T, what string, got, want T) {
	t.Helper()
	if d := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); d != "" {
		t.Errorf("%s (-gopacket +natkit):\n%s", what, d)
	}
}

func address(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a
}

func compareIPv4(t *testing.T, f *Frame, want *layers.IPv4) {
	t.Helper()
	got := f.IPv4
	got.Options = nil
	length := want.Length
	if got.TotalLength == 0 { // gopacket puts the packet's length there
		length = 0
	}
	equal(t, "IPv4", got, IPv4{
		DSCP: want.TOS >> 2, TotalLength: length, Identification: want.Id,
		DontFragment: want.Flags&layers.IPv4DontFragment != 0, TTL: want.TTL,
	})
	equal(t, "IPv4 options", len(f.IPv4.Options), len(want.Contents)-IPv4Len)
	equal(t, "version and protocol", [2]uint8{f.Version, f.Protocol}, [2]uint8{want.Version, uint8(want.Protocol)})
	equal(t, "addresses", [2]netip.Addr{f.Source, f.Destination}, [2]netip.Addr{address(want.SrcIP), address(want.DstIP)})
	fragment := Fragment{Offset: int(want.FragOffset) * 8, More: want.Flags&layers.IPv4MoreFragments != 0}
	if fragment.Is() {
		fragment.Identification = uint32(want.Id)
	}
	equal(t, "fragment", f.Fragment, fragment)
	if _, sum := want.VerifyChecksum(); sum.Valid != f.IPChecksumOK() {
		t.Errorf("IPv4 checksum: gopacket finds that it is %#04x and should be %#04x; we: %v", sum.Actual, sum.Correct, f.IPChecksumOK())
	}
}

func compareIPv6(t *testing.T, f *Frame, want *layers.IPv6) {
	t.Helper()
	got := f.IPv6
	got.Extensions = nil
	equal(t, "IPv6", got, IPv6{
		DSCP: want.TrafficClass >> 2, PayloadLength: want.Length, HopLimit: want.HopLimit,
	})
	equal(t, "addresses", [2]netip.Addr{f.Source, f.Destination}, [2]netip.Addr{address(want.SrcIP), address(want.DstIP)})
}

func compareFragment(t *testing.T, f *Frame, want *layers.IPv6Fragment) {
	t.Helper()
	fragment := Fragment{Identification: want.Identification, Offset: int(want.FragmentOffset) * 8, More: want.MoreFragments}
	if fragment.Is() && f.Transport == 0 { // else it may have another Fragment header inside
		equal(t, "fragment", f.Fragment, fragment)
	}
}

// compareTransport is called for what gopacket finds behind IP. For a fragment it
// finds nothing.
func compareTransport(t *testing.T, f *Frame, layer gopacket.Layer) bool {
	t.Helper()
	switch want := layer.(type) {
	case *layers.TCP:
		compareTCP(t, f, want)
	case *layers.UDP:
		compareUDP(t, f, want)
	case *layers.ICMPv4:
		equal(t, "ICMP", f.ICMP, ICMP{want.TypeCode.Type(), want.TypeCode.Code(), want.Checksum, uint32(want.Id)<<16 | uint32(want.Seq)})
		compareChecksum(t, f, want)
	case *layers.ICMPv6:
		equal(t, "ICMPv6", f.ICMP, ICMP{want.TypeCode.Type(), want.TypeCode.Code(), want.Checksum, f.ICMP.Rest})
		compareChecksum(t, f, want)
	default:
		return false
	}
	return true
}

func compareTCP(t *testing.T, f *Frame, want *layers.TCP) {
	t.Helper()
	got := f.TCP
	got.Options = nil
	equal(t, "TCP", got, TCP{
		SourcePort: uint16(want.SrcPort), DestinationPort: uint16(want.DstPort),
		SequenceNumber: want.Seq, AcknowledgmentNumber: want.Ack,
		Flags: flagsOf(want), Window: want.Window,
		Checksum: want.Checksum, UrgentPointer: want.Urgent,
	})
	equal(t, "TCP payload", len(f.Payload), len(want.Payload))
	for _, option := range want.Options {
		if option.OptionType == layers.TCPOptionKindTimestamps && len(option.OptionData) == 8 {
			if value, ok := f.TCP.Option(OptionTimestamps); !ok || len(value) == 8 && !bytes.Equal(value, option.OptionData) {
				t.Errorf("timestamps: %x, %v; gopacket has %x", value, ok, option.OptionData)
			}
			break
		}
	}
	compareChecksum(t, f, want)
}

func flagsOf(t *layers.TCP) (flags TCPFlags) {
	for i, set := range []bool{t.FIN, t.SYN, t.RST, t.PSH, t.ACK, t.URG, t.ECE, t.CWR} {
		if set {
			flags |= 1 << i
		}
	}
	return flags
}

func compareUDP(t *testing.T, f *Frame, want *layers.UDP) {
	t.Helper()
	equal(t, "UDP", f.UDP, UDP{uint16(want.SrcPort), uint16(want.DstPort), want.Length, want.Checksum})
	equal(t, "UDP payload", len(f.Payload), len(want.Payload))
	compareChecksum(t, f, want)
}

// compareChecksum compares where both verify it. gopacket knows no partial checksum.
func compareChecksum(t *testing.T, f *Frame, layer gopacket.LayerWithChecksum) {
	t.Helper()
	err, want := layer.VerifyChecksum()
	got := f.TransportChecksum()
	if err != nil || got == ChecksumUnknown || got == ChecksumNone {
		return
	}
	if (got == ChecksumOK) != want.Valid {
		t.Errorf("checksum of protocol %d is %v; gopacket finds that it is %#04x and should be %#04x", f.Transport, got, want.Actual, want.Correct)
	}
}
