package nft_test

import (
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/gateway/behaviour"
	"github.com/natkit/natkit/internal/gateway/nft"
	"github.com/natkit/natkit/internal/packet"
)

// TestNetmapByHand: what kernels before 5.8 get does the same.
func TestNetmapByHand(t *testing.T) {
	b := newBed(t, nft.ApplyByHand, `
  nat:
    - netmap: {inside: 10.1.0.0/24, outside: 198.51.100.0/24}
    - netmap: {inside: 192.168.0.0/26, outside: 203.0.113.64/26}
  ipv6: [{netmap: {inside: "fd00:1::/64", outside: "2001:db8:5::/64"}}]
`)
	b.out("10.1.0.2:500", "198.18.0.10:53", "198.51.100.2:500")
	b.in("198.18.0.10:4000", "198.51.100.2:9", "10.1.0.2:9")
	b.out("192.168.0.2:500", "198.18.0.10:53", "203.0.113.66:500")
	b.in("198.18.0.10:4000", "203.0.113.100:9", "192.168.0.36:9")
	b.out("[fd00:1::2]:500", "[2001:db8:f:1::10]:53", "[2001:db8:5::2]:500")
	b.in("[2001:db8:f:1::10]:4000", "[2001:db8:5::4]:9", "[fd00:1::4]:9")
}

// TestStatelessErrors: errors about packets that were translated without state tell
// each side of its own addresses.
func TestStatelessErrors(t *testing.T) {
	b := newBed(t, nft.Apply, `
  nat:
    - static: {inside: 192.168.0.2, outside: 203.0.113.9, stateless: true}
    - static: {inside: 192.168.0.4, outside: 203.0.113.10, stateless: true}
  ipv6:
    - static: {inside: "fd00:1::2", outside: "2001:db8:1::9", stateless: true}
    - static: {inside: "fd00:1::4", outside: "2001:db8:1::a", stateless: true}
`)
	for _, f := range []struct {
		inside, outside, x string
		protocol, unreach  uint8
	}{{"192.168.0.4:500", "203.0.113.10:500", "198.18.0.10:53", unix.IPPROTO_ICMP, 3}, {"[fd00:1::4]:500", "[2001:db8:1::a]:500", "[2001:db8:f:1::10]:53", unix.IPPROTO_ICMPV6, 1}} {
		b.out(f.inside, f.x, f.outside)
		b.in(f.x, f.outside, f.inside)
		inside, outside, x := netip.MustParseAddrPort(f.inside), netip.MustParseAddrPort(f.outside), netip.MustParseAddrPort(f.x)
		for name, compose := range quoted {
			seen := compose(packet.Tuple{Src: outside, Dst: x})
			p := packet.IP{Source: x.Addr(), Destination: outside.Addr(), Protocol: f.protocol}.Append(nil,
				packet.AppendICMP(nil, x.Addr(), outside.Addr(), packet.ICMP{Type: f.unreach}, seen))
			b.quotes(name, b.send(behaviour.X, behaviour.A, p), inside.Addr(), x.Addr())
			came := compose(packet.Tuple{Src: x, Dst: inside})
			p = packet.IP{Source: inside.Addr(), Destination: x.Addr(), Protocol: f.protocol}.Append(nil,
				packet.AppendICMP(nil, inside.Addr(), x.Addr(), packet.ICMP{Type: f.unreach}, came))
			b.quotes(name, b.send(behaviour.A, behaviour.X, p), x.Addr(), outside.Addr())
		}
	}
	if m, err := b.World.Mappings(); err != nil || len(m) > 0 {
		t.Errorf("the tracker has %v, %v", m, err)
	}
}

func segment(t packet.Tuple, protocol uint8, options, payload []byte) []byte {
	return packet.IP{Source: t.Src.Addr(), Destination: t.Dst.Addr(), Protocol: protocol, Options: options}.Append(nil, payload)
}

// quotes wants one ICMP error about a packet between two addresses, all checksums
// right as far as that one is quoted.
func (b *bed) quotes(name string, got []packet.Frame, source, destination netip.Addr) {
	b.Helper()
	var inner packet.Frame
	if len(got) != 1 || got[0].Quoted(&inner) != nil || inner.Source != source || inner.Destination != destination ||
		!inner.IPChecksumOK() || inner.TransportChecksum() == packet.ChecksumBad && name != "UDP, with options" {
		b.Errorf("%s from %v to %v: %v %+v", name, source, destination, inner.TransportChecksum(), got)
	}
}

// TestStatelessNeighbours: who asks for the gateway's own address, which a prefix
// outside contains, is answered by it.
func TestStatelessNeighbours(t *testing.T) {
	b := newBed(t, nft.Apply, "  ipv6: [{netmap: {inside: 'fd00:1::/64', outside: '2001:db8:1::/64', stateless: on}}]\n")
	x, own := netip.MustParseAddr("2001:db8:1::fff1"), behaviour.WANAddress6.Addr()
	const solicitation, advertisement, linkAddress = 135, 136, 1
	option := []byte{linkAddress, 1, 0x02, 'n', 'a', 't', 0, 0x1a}
	got := b.send(behaviour.X, behaviour.X, packet.IP{Source: x, Destination: own, Protocol: unix.IPPROTO_ICMPV6, TTL: 255}.Append(nil,
		packet.AppendICMP(nil, x, own, packet.ICMP{Type: solicitation}, slices.Concat(own.AsSlice(), option))))
	if len(got) != 1 || got[0].ICMP.Type != advertisement {
		t.Errorf("a neighbour that asks for %v gets %+v", own, got)
	}
}
