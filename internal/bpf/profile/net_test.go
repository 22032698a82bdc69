package profile

import (
	"context"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/bpf/pktgen"
	"github.com/natkit/natkit/internal/load/packets"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
)

// dnatNetwork is a client whose packets to 203.0.113.80 the gateway sends on to
// the server.
//
//	client eth0 198.18.0.2/24 ── 198.18.0.1/24 eth0 gateway eth1 198.19.0.1/24 ── 198.19.0.2/24 eth0 server
type dnatNetwork struct{ client, gateway, server *netns.Handle }

const dnatRules = `table ip nat {
	chain pre { type nat hook prerouting priority dstnat; ip daddr 203.0.113.80 dnat to 198.19.0.2; }
	chain forward { type filter hook forward priority filter; udp dport { 1, 2, 3 } drop; ip saddr 192.0.2.0/24 drop; ct state invalid drop; }
	chain post { type nat hook postrouting priority srcnat; oifname eth1 masquerade; }
}`

func newDNATNetwork(t testing.TB) *dnatNetwork {
	t.Helper()
	n := &dnatNetwork{testutil.Namespace(t, "client"), testutil.Namespace(t, "gateway"), testutil.Namespace(t, "server")}
	testutil.Veth(t, testutil.End{Netns: n.client, Name: "eth0", Addresses: []string{"198.18.0.2/24"}}, testutil.End{Netns: n.gateway, Name: "eth0", Addresses: []string{"198.18.0.1/24"}})
	testutil.Veth(t, testutil.End{Netns: n.server, Name: "eth0", Addresses: []string{"198.19.0.2/24"}}, testutil.End{Netns: n.gateway, Name: "eth1", Addresses: []string{"198.19.0.1/24"}})
	testutil.Routes(t, n.client, "198.18.0.1")
	testutil.Nft(t, n.gateway, dnatRules)
	testutil.Sysctl(t, n.gateway, "net/ipv4/ip_forward", "1")
	// At 20,000 packets/s a flow of flood's comes again after two seconds: as a new connection.
	testutil.Sysctl(t, n.gateway, "net/netfilter/nf_conntrack_udp_timeout", "1")
	return n
}

// flood sends packets through the gateway until ctx ends, and returns how many; each is of a
// new connection at 20,000 packets/s or less.
func (n *dnatNetwork) flood(t testing.TB, ctx context.Context, rate float64) int64 {
	t.Helper()
	to := netip.MustParseAddrPort("203.0.113.80:5000")
	way, err := pktgen.ReadEgress(pktgen.Route{Netns: n.client}, to.Addr())
	if err != nil {
		t.Error(err)
		return 0
	}
	result, err := pktgen.Run(ctx, packets.Config{
		Spec:    packets.Spec{Protocol: unix.IPPROTO_UDP, Sizes: []int{82}, HopLimit: 64},
		Packets: 50_000_000, Rate: rate, Workers: 1,
		Flows: packets.Flows{
			Count: 40_000, Sources: []netip.Addr{netip.MustParseAddr("198.18.0.2")},
			SourcePorts:  nat.Ports{First: 1024, Last: 65535},
			Destinations: []netip.AddrPort{to}, Seed: 1,
		},
	}, way, &pktgen.Port{Netns: n.server, Interface: "eth0"}, nil)
	if err != nil {
		t.Error(err)
		return 0
	}
	return result.Sent
}
