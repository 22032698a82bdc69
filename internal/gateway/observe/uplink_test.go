package observe

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/nat"
)

// TestFollowUplink: which uplink a connection is on, by which it leaves, and what it would be while that is down; on a
// host where nothing of it is in force yet.
func TestFollowUplink(t *testing.T) {
	f, err := gateway.Parse("gateway.yaml", []byte(`gateway:
  interfaces: {wan: [{interface: eth0, weight: 3}, {interface: eth1, via: 198.51.100.1}, {interface: eth9, weight: 0}], lan: lan0}
  nat:
    - masquerade: {}
`))
	if err != nil {
		t.Fatal(err)
	}
	host := gateway.Facts{Known: true, Interfaces: []gateway.Interface{
		{Name: "eth0", Index: 2, Up: true, Addresses: []netip.Prefix{netip.MustParsePrefix("203.0.113.7/24")}},
		{Name: "eth1", Index: 3, Up: true, Addresses: []netip.Prefix{netip.MustParsePrefix("198.51.100.7/24")}},
		{Name: "lan0", Index: 4, Up: true, Addresses: []netip.Prefix{netip.MustParsePrefix("192.168.0.1/24")}},
	}, Defaults: []gateway.DefaultRoute{{Interface: "eth0", Via: netip.MustParseAddr("203.0.113.1")}}}
	plan, err := gateway.Compile(&f.Config, host)
	if err != nil {
		t.Fatal(err)
	}
	slots := plan.Slots(func(i int) bool { return i < 2 })
	on := func(uplink int) netip.Addr { // a host of that uplink
		for last := byte(2); last < 250; last++ {
			if a := netip.AddrFrom4([4]byte{192, 168, 0, last}); slots[gateway.SlotOf(a, len(slots))] == uplink {
				return a
			}
		}
		t.Fatalf("no host is on uplink %d", uplink)
		return netip.Addr{}
	}
	route := func(l Lookup) (Hop, error) {
		switch {
		case netip.MustParsePrefix("198.51.100.0/24").Contains(l.Destination):
			return Hop{Out: "eth1"}, nil
		case l.Destination == netip.MustParseAddr("203.0.113.7"):
			return Hop{Local: true}, nil
		}
		return Hop{Out: "eth0", Gateway: netip.MustParseAddr("203.0.113.1"), Default: l.Mark != 0}, nil
	}
	far, near := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("198.51.100.9")
	for _, c := range []struct {
		name             string
		packet           nat.Packet
		down             string
		uplink, out, gav string
		notes            []string
	}{
		{"of the first", nat.Packet{Src: on(0), Dst: far, In: "lan0"}, "", "eth0", "eth0", "203.0.113.7", []string{"while eth0 is down"}},
		{"of the second", nat.Packet{Src: on(1), Dst: far, In: "lan0"}, "", "eth1", "eth1", "198.51.100.7", []string{"while eth1 is down"}},
		{"of the first while it is down", nat.Packet{Src: on(0), Dst: far, In: "lan0"}, "eth0", "eth1", "eth1", "198.51.100.7", nil},
		{"on a network of the second", nat.Packet{Src: on(0), Dst: near, In: "lan0"}, "", "eth0", "eth1", "198.51.100.7", []string{"while eth0 is down"}},
		{"marked by another program", nat.Packet{Src: on(0), Dst: far, In: "lan0", Mark: 0x2000005}, "", "eth1", "eth1", "198.51.100.7", nil},
		{"from outside", nat.Packet{Src: far, Dst: netip.MustParseAddr("203.0.113.7"), In: "eth0"}, "", "eth0", "", "", nil},
		{"the gateway's own", nat.Packet{Src: netip.MustParseAddr("203.0.113.7"), Dst: far}, "", "", "eth0", "203.0.113.7", nil},
		{"the gateway's own while its first is down", nat.Packet{Src: netip.MustParseAddr("203.0.113.7"), Dst: far}, "eth0", "eth1", "eth1", "198.51.100.7", nil},
	} {
		facts := host
		if c.down != "" {
			facts.Down = map[string]string{c.down: "192.0.2.9: no answer"}
		}
		c.packet.Protocol, c.packet.SrcPort, c.packet.DstPort = protocolTCP, 40000, 443
		e, err := Follow(plan, facts, route, c.packet)
		if err != nil {
			t.Fatal(err)
		}
		source := ""
		if e.Source.Rule != nil {
			source = e.Source.Addresses.String()
		}
		if e.Uplink != c.uplink || e.Out != c.out || source != c.gav {
			t.Errorf("%s: on %q by %q as %q, want %q, %q, %q\n%+v", c.name, e.Uplink, e.Out, source, c.uplink, c.out, c.gav, e.Steps)
		}
		for _, want := range c.notes {
			if !slices.ContainsFunc(e.Notes, func(n string) bool { return strings.HasPrefix(n, want) }) {
				t.Errorf("%s: no note %q: %q", c.name, want, e.Notes)
			}
		}
	}
}
