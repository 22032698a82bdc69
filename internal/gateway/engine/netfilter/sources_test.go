package netfilter_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/natkit/natkit/internal/gateway/behaviour"
	"github.com/natkit/natkit/internal/gateway/engine/netfilter"
)

func TestPools(t *testing.T) {
	b := newBed(t, netfilter.Apply, `
  nat: [{snat: {from: 192.168.0.0/24, to: [203.0.113.16-203.0.113.17, 203.0.113.32-203.0.113.37], ports: 2000-2999}}]
  ipv6: [{snat: {from: "fd00:1::/64", to: ["2001:db8:1::10-2001:db8:1::17", "2001:db8:1::20"]}}]
`)
	for _, family := range []struct{ source, x, y string }{
		{"192.168.0.%d:4000", "198.18.0.10:53", "198.18.1.20:53"},
		{"[fd00:1::%x]:4000", "[2001:db8:f:1::10]:53", "[2001:db8:f:2::20]:53"},
	} {
		ranges := map[bool]int{}
		for host := 2; host < 64; host += 2 {
			source := fmt.Sprintf(family.source, host)
			got := b.udp(behaviour.A, behaviour.X, source, family.x)
			if !got.Src.IsValid() {
				t.Fatalf("%s was lost", source)
			}
			first := inFirst(t, got.Src.Addr())
			ranges[first]++
			other := b.udp(behaviour.A, behaviour.Y, source, family.y)
			if inFirst(t, other.Src.Addr()) != first {
				t.Errorf("%s is %v for one and %v for another: two ranges", source, got.Src, other.Src)
			}
			if got.Src.Addr().Is4() && (got.Src.Port() < 2000 || got.Src.Port() > 2999) {
				t.Errorf("port of %v", got.Src)
			}
		}
		if ranges[true] == 0 || ranges[false] == 0 {
			t.Errorf("one of the ranges was not used: %v", ranges)
		}
	}
	if n := b.counted("nat[0] snat"); n != 62 {
		t.Errorf("counted %d new connections, not 62", n)
	}
}

// inFirst reports whether a is in a pool's first range, and that it is in one.
func inFirst(t *testing.T, a netip.Addr) bool {
	t.Helper()
	for i, r := range [][2]string{{"203.0.113.16", "203.0.113.17"}, {"2001:db8:1::10", "2001:db8:1::17"}, {"203.0.113.32", "203.0.113.37"}, {"2001:db8:1::20", "2001:db8:1::20"}} {
		if a.Compare(netip.MustParseAddr(r[0])) >= 0 && a.Compare(netip.MustParseAddr(r[1])) <= 0 {
			return i < 2
		}
	}
	t.Errorf("%v is in no range", a)
	return false
}
