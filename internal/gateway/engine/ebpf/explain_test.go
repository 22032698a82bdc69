package ebpf

import (
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/gateway/observe"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/testutil"
)

// TestFollow: of a packet, and of its answer, what of the headers changes, by which map and for which rule.
func TestFollow(t *testing.T) {
	testutil.NeedRoot(t)
	ns, other := testutil.Namespace(t, "gateway"), testutil.Namespace(t, "others")
	testutil.Veth(t, testutil.End{Netns: ns, Name: "wan0", Addresses: []string{"198.18.0.1/24"}}, testutil.End{Netns: other, Name: "w", Addresses: []string{"198.18.0.2/24"}})
	testutil.Veth(t, testutil.End{Netns: ns, Name: "lan0", Addresses: []string{"10.0.0.1/24"}}, testutil.End{Netns: other, Name: "l", Addresses: []string{"10.0.0.2/24"}})
	testutil.Sysctl(t, ns, "net/ipv4/ip_forward", "1")
	p := planOf(t, `gateway:
  engine: ebpf
  interfaces: {wan: [wan0], lan: [lan0]}
  nat:
    - dnat: {on: 203.0.113.12, port: tcp/8080, to: "10.0.0.2:80"}
    - static: {inside: 10.0.0.3, outside: 203.0.113.13}
    - netmap: {inside: 10.0.0.16/28, outside: 203.0.113.16/28}
`, testHost())
	part, _, notes := Engine{}.Claim(p, testHost())
	if part == nil || len(notes) > 0 {
		t.Fatalf("%+v", notes)
	}
	route := func(l observe.Lookup) (observe.Hop, error) {
		if netip.MustParsePrefix("10.0.0.0/24").Contains(l.Destination) {
			return observe.Hop{Out: "lan0"}, nil
		}
		return observe.Hop{Out: "wan0"}, nil
	}
	for _, tt := range []struct{ to, there, back string }{
		{"203.0.113.12:8080", "nat[0] dnat: destination 203.0.113.12:8080 becomes 10.0.0.2:80, by the map destination_services",
			"nat[0] dnat: source 10.0.0.2:80 becomes 203.0.113.12:8080, by the map source_services"},
		{"203.0.113.13:22", "nat[1] static: destination 203.0.113.13:22 becomes 10.0.0.3:22, by the map destinations",
			"nat[1] static: source 10.0.0.3:22 becomes 203.0.113.13:22, by the map sources"},
		{"203.0.113.20:22", "nat[2] netmap: destination 203.0.113.20:22 becomes 10.0.0.20:22, by the map destination_prefixes",
			"nat[2] netmap: source 10.0.0.20:22 becomes 203.0.113.20:22, by the map source_prefixes"},
	} {
		to := netip.MustParseAddrPort(tt.to)
		way, err := Engine{}.Follow(ns, part, testHost(), route, nat.Packet{Protocol: unix.IPPROTO_TCP,
			Src: netip.MustParseAddr("198.18.0.2"), SrcPort: 4000, Dst: to.Addr(), DstPort: to.Port(), In: "wan0"})
		if err != nil || way == nil {
			t.Errorf("%s: %v, %v", tt.to, way, err)
			continue
		}
		if there, back := rulesOf(way.Steps), rulesOf(way.Reply); !slices.Equal(there, []string{tt.there}) || !slices.Equal(back, []string{tt.back}) || way.ReplyLost != "" {
			t.Errorf("%s: %q, and %q, lost %q", tt.to, there, back, way.ReplyLost)
		}
	}
}

// rulesOf are the steps that are a rule's.
func rulesOf(steps []observe.Step) (all []string) {
	for _, s := range steps {
		if s.Rule != nil {
			all = append(all, s.Rule.Label()+": "+s.Does)
		}
	}
	return all
}
