package nft_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/gateway/behaviour"
	"github.com/natkit/natkit/internal/gateway/nft"
	"github.com/natkit/natkit/internal/packet"
)

// TestLimit: a source has its connections and no more, another one its own.
func TestLimit(t *testing.T) {
	b := newBed(t, nft.Apply, "  limits: {connections-per-source: 3}\n  nat: [{masquerade: {}}]\n  ipv6: [{masquerade: {}}]\n")
	for _, f := range []struct{ first, second, x string }{
		{"192.168.0.2:%d", "192.168.0.4:%d", "198.18.0.10:53"}, {"[fd00:1::2]:%d", "[fd00:1::4]:%d", "[2001:db8:f:1::10]:53"}} {
		for n := range 5 {
			got := b.udp(behaviour.A, behaviour.X, fmt.Sprintf(f.first, 1000+n), f.x)
			if got.Src.IsValid() != (n < 3) {
				t.Errorf("connection %d of %s: %v", n+1, f.first, got)
			}
		}
		if got := b.udp(behaviour.A, behaviour.X, fmt.Sprintf(f.second, 1000), f.x); !got.Src.IsValid() {
			t.Errorf("another source is limited, too")
		}
	}
	for n := range 3 { // without an answer it is new for the tracker with each packet
		b.udp(behaviour.A, behaviour.X, "192.168.0.2:1009", "198.18.0.10:53")
		if got := b.udp(behaviour.A, behaviour.X, fmt.Sprintf("192.168.0.2:%d", 1000+n), "198.18.0.10:53"); !got.Src.IsValid() {
			t.Errorf("connection %d, of those within the limit, is dropped while another one is refused", n+1)
		}
	}
	if n := b.counted(nft.LimitComment); n != 7 {
		t.Errorf("counted %d drops, not 7", n)
	}
	more := func(what string, limit int, passes bool) {
		t.Helper()
		b.use(fmt.Sprintf("  limits: {connections-per-source: %d}\n  nat: [{masquerade: {from: 192.168.0.0/24}}, {static: {inside: 192.168.0.62, outside: 203.0.113.9}}]\n", limit))
		if got := b.udp(behaviour.A, behaviour.X, "192.168.0.2:4000", "198.18.0.10:53"); got.Src.IsValid() != passes {
			t.Errorf("%s: a connection more: %v", what, got)
		}
	}
	more("applied again", 3, false)
	more("and again", 3, false)
	more("with a higher limit", 4, true)
}

// TestMSS: SYNs are told what fits, never more than they said.
func TestMSS(t *testing.T) {
	b := newBed(t, nft.Apply, "  mss: 1200\n  nat: [{masquerade: {}}]\n")
	for said, want := range map[uint16]uint16{1460: 1200, 1000: 1000} {
		if got := b.syn(said); got != want {
			t.Errorf("a SYN with %d becomes %d, not %d", said, got, want)
		}
	}
	b.use("  mss: clamp\n  nat: [{masquerade: {}}]\n")
	if err := b.World.MTU(behaviour.WAN, 1300); err != nil {
		t.Fatal(err)
	}
	if got := b.syn(1460); got != 1260 {
		t.Errorf("a SYN with 1460 over an MTU of 1300 becomes %d, not 1260", got)
	}
}

// syn sends a SYN with a maximum segment size and gives the one that arrives.
func (b *bed) syn(mss uint16) uint16 {
	b.Helper()
	sourcePort++
	t := packet.Tuple{Src: netip.AddrPortFrom(netip.MustParseAddr("192.168.0.2"), sourcePort), Dst: netip.MustParseAddrPort("198.18.0.10:80")}
	h := packet.TCP{Flags: packet.SYN, Window: 1000, Options: []byte{2, 4, byte(mss >> 8), byte(mss)}}
	got := b.send(behaviour.A, behaviour.X, packet.IP{Source: t.Src.Addr(), Destination: t.Dst.Addr(), Protocol: unix.IPPROTO_TCP}.Append(nil, packet.AppendTCP(nil, t, h, nil)))
	i := -1
	if len(got) == 1 {
		i = slices.Index(got[0].TCP.Options, 2)
	}
	if i != 0 {
		b.Fatalf("SYN: %+v", got)
	}
	return uint16(got[0].TCP.Options[2])<<8 | uint16(got[0].TCP.Options[3])
}
