package frame

import (
	"net/netip"
	"testing"

	"github.com/natkit/natkit/internal/unix"
)

// TestComposed parses what was composed, by the parser that has oracles of its own.
func TestComposed(t *testing.T) {
	four := Tuple{netip.MustParseAddrPort("192.168.0.2:4000"), netip.MustParseAddrPort("198.18.0.10:80")}
	six := Tuple{netip.MustParseAddrPort("[fd00:1::2]:4000"), netip.MustParseAddrPort("[2001:db8::1]:80")}
	payload := []byte("odd number of bytes")
	for _, tuple := range []Tuple{four, six} {
		icmp := uint8(unix.IPPROTO_ICMP)
		if tuple.Src.Addr().Is6() {
			icmp = unix.IPPROTO_ICMPV6
		}
		segments := map[uint8][]byte{
			unix.IPPROTO_UDP: AppendUDP(nil, tuple, payload, false),
			unix.IPPROTO_TCP: AppendTCP(nil, tuple, TCP{SequenceNumber: 1, Flags: SYN, Window: 9, Options: []byte{2, 4, 5, 180, 1}}, payload),
			icmp:             AppendICMP(nil, tuple.Src.Addr(), tuple.Dst.Addr(), ICMP{Type: 8, Rest: 7<<16 | 1}, payload),
		}
		for protocol, segment := range segments {
			ip := IP{Source: tuple.Src.Addr(), Destination: tuple.Dst.Addr(), Protocol: protocol, DSCP: 46}
			f := decodeComposed(t, ip, segment)
			if !f.IPChecksumOK() || f.TransportChecksum() != ChecksumOK {
				t.Errorf("protocol %d: header checksum ok: %v, transport checksum %v", protocol, f.IPChecksumOK(), f.TransportChecksum())
			}
			if f.Transport != protocol || string(f.Payload) != string(payload) || f.Source != ip.Source || f.Destination != ip.Destination {
				t.Errorf("protocol %d: got %d from %v to %v with %q", protocol, f.Transport, f.Source, f.Destination, f.Payload)
			}
		}
	}
}

func decodeComposed(t *testing.T, ip IP, segment []byte) *Frame {
	t.Helper()
	etherType := uint16(EtherTypeIPv4)
	if ip.Source.Is6() {
		etherType = EtherTypeIPv6
	}
	var f Frame
	if err := f.DecodeNetwork(etherType, ip.Append(nil, segment)); err != nil {
		t.Fatal(err)
	}
	return &f
}

func TestComposedFragment(t *testing.T) {
	for _, addr := range []string{"192.168.0.2", "fd00::2"} {
		a := netip.MustParseAddr(addr)
		want := Fragment{Identification: 77, Offset: 24, More: true}
		f := decodeComposed(t, IP{Source: a, Destination: a, Protocol: unix.IPPROTO_UDP, Fragment: want}, make([]byte, 16))
		if f.Fragment != want || len(f.Payload) != 16 || f.Protocol != unix.IPPROTO_UDP {
			t.Errorf("%s: %+v with %d bytes of protocol %d", addr, f.Fragment, len(f.Payload), f.Protocol)
		}
	}
}

func TestComposedOptions(t *testing.T) {
	a := netip.MustParseAddr("192.168.0.2")
	segment := AppendUDP(nil, Tuple{netip.AddrPortFrom(a, 1), netip.AddrPortFrom(a, 2)}, nil, true)
	f := decodeComposed(t, IP{Source: a, Destination: a, Protocol: unix.IPPROTO_UDP, Options: []byte{7, 7, 4, 0, 0, 0, 0}}, segment)
	if len(f.IPv4.Options) != 8 || !f.IPChecksumOK() || f.TransportChecksum() != ChecksumNone {
		t.Errorf("options %x, header checksum ok: %v, transport checksum %v", f.IPv4.Options, f.IPChecksumOK(), f.TransportChecksum())
	}
}
