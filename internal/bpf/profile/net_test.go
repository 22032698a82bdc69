package profile

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
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
	testutil.NeedRoot(t)
	n := &dnatNetwork{newNamespace(t, "client"), newNamespace(t, "gateway"), newNamespace(t, "server")}
	veth(t, n.client, n.gateway, "eth0")
	veth(t, n.server, n.gateway, "eth1")
	address(t, n.client, "eth0", "198.18.0.2/24")
	address(t, n.gateway, "eth0", "198.18.0.1/24")
	address(t, n.gateway, "eth1", "198.19.0.1/24")
	address(t, n.server, "eth0", "198.19.0.2/24")
	do(t, n.client, func() error { return netlink.RouteAdd(&netlink.Route{Gw: net.IPv4(198, 18, 0, 1)}) })
	program := testutil.NeedProgram(t, "nft")
	do(t, n.gateway, func() error {
		cmd := exec.Command(program, "-f", "-")
		cmd.Stdin = strings.NewReader(dnatRules)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w", out, err)
		}
		return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0)
	})
	return n
}

func newNamespace(t testing.TB, name string) *netns.Handle {
	t.Helper()
	ns, err := netns.New(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	return ns
}

// veth connects a's eth0 with an interface of the gateway.
func veth(t testing.TB, a, gateway *netns.Handle, name string) {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.Namespace = "eth0", netlink.NsFd(a.Fd())
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: name, PeerNamespace: netlink.NsFd(gateway.Fd())}); err != nil {
		t.Fatal(err)
	}
	up(t, a, "eth0")
	up(t, gateway, name)
}

func up(t testing.TB, ns *netns.Handle, name string) {
	t.Helper()
	do(t, ns, func() error {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(l)
	})
}

func address(t testing.TB, ns *netns.Handle, name, prefix string) {
	t.Helper()
	do(t, ns, func() error {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		addr, err := netlink.ParseAddr(prefix)
		if err != nil {
			return err
		}
		return netlink.AddrAdd(l, addr)
	})
}

func do(t testing.TB, ns *netns.Handle, fn func() error) {
	t.Helper()
	if err := ns.Do(fn); err != nil {
		t.Fatal(err)
	}
}

// flood sends packets of new and old connections through the gateway until ctx
// ends, and returns how many.
func (n *dnatNetwork) flood(t testing.TB, ctx context.Context) int64 {
	t.Helper()
	to := netip.MustParseAddrPort("203.0.113.80:5000")
	way, err := pktgen.ReadEgress(pktgen.Way{Netns: n.client}, to.Addr())
	if err != nil {
		t.Error(err)
		return 0
	}
	result, err := pktgen.Run(ctx, packets.Config{
		Spec:    packets.Spec{Protocol: unix.IPPROTO_UDP, Sizes: []int{82}, HopLimit: 64},
		Packets: 50_000_000, Rate: 200_000, Workers: 1,
		Flows: packets.Flows{
			Count: 20_000, Sources: []netip.Addr{netip.MustParseAddr("198.18.0.2")},
			SourcePorts:  nat.Ports{First: 1024, Last: 65535},
			Destinations: []netip.AddrPort{to}, Seed: 1,
		},
	}, way, &pktgen.Port{Netns: n.server, Interface: "eth0"}, pktgen.Options{})
	if err != nil {
		t.Error(err)
		return 0
	}
	return result.Sent
}
