package pktgen

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/packet"
	"github.com/natkit/natkit/internal/testutil"
	"golang.org/x/sys/unix"
)

// A test network: client – gateway – server, one veth pair between each two.
//
//	client eth0 198.18.0.2/24 ── 198.18.0.1/24 eth0 gateway eth1 198.19.0.1/24 ── 198.19.0.2/24 eth0 server
type network struct{ client, gateway, server *netns.Handle }

func newNetwork(t testing.TB) *network {
	t.Helper()
	testutil.NeedRoot(t)
	n := &network{newNamespace(t, "client"), newNamespace(t, "gateway"), newNamespace(t, "server")}
	veth(t, n.client, "eth0", n.gateway, "eth0")
	veth(t, n.gateway, "eth1", n.server, "eth0")
	address(t, n.client, "eth0", "198.18.0.2/24", "2001:db8:18::2/64")
	address(t, n.gateway, "eth0", "198.18.0.1/24", "2001:db8:18::1/64")
	address(t, n.gateway, "eth1", "198.19.0.1/24", "2001:db8:19::1/64")
	address(t, n.server, "eth0", "198.19.0.2/24", "2001:db8:19::2/64")
	route(t, n.client, "198.18.0.1")
	route(t, n.server, "198.19.0.1")
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

func veth(t testing.TB, a *netns.Handle, nameA string, b *netns.Handle, nameB string) {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.Namespace = nameA, netlink.NsFd(a.Fd())
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: nameB, PeerNamespace: netlink.NsFd(b.Fd())}); err != nil {
		t.Fatal(err)
	}
	up(t, a, nameA)
	up(t, b, nameB)
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

func address(t testing.TB, ns *netns.Handle, name string, prefixes ...string) {
	t.Helper()
	do(t, ns, func() error {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		for _, p := range prefixes {
			a, err := netlink.ParseAddr(p)
			if err != nil {
				return err
			}
			a.Flags = unix.IFA_F_NODAD
			if err := netlink.AddrAdd(l, a); err != nil {
				return fmt.Errorf("add %s: %w", p, err)
			}
		}
		return nil
	})
}

func route(t testing.TB, ns *netns.Handle, via string) {
	t.Helper()
	do(t, ns, func() error { return netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP(via)}) })
}

func do(t testing.TB, ns *netns.Handle, fn func() error) {
	t.Helper()
	if err := ns.Do(fn); err != nil {
		t.Fatal(err)
	}
}

// config is a small run of UDP over IPv4 to a destination.
func config(to string) packet.Config {
	dst := netip.MustParseAddrPort(to)
	return packet.Config{
		Spec:    packet.Spec{IPv6: dst.Addr().Is6(), Protocol: unix.IPPROTO_UDP, Sizes: []int{82}, HopLimit: 64},
		Packets: 10_000, Workers: 1, Verify: true,
		Flows: packet.Flows{
			Count: 100, Sources: sources(dst.Addr()), SourcePorts: load.PortRange{First: 1024, Last: 65535},
			Destinations: []netip.AddrPort{dst}, Seed: 1,
		},
	}
}

func sources(to netip.Addr) []netip.Addr {
	if to.Is6() {
		return []netip.Addr{netip.MustParseAddr("2001:db8:18::2"), netip.MustParseAddr("2001:db8:18::3")}
	}
	return []netip.Addr{netip.MustParseAddr("198.18.0.2"), netip.MustParseAddr("198.18.0.3")}
}

func send(t testing.TB, n *network, cfg packet.Config, sink *Port) (*packet.Result, error) {
	t.Helper()
	from, err := ReadEgress(Way{Netns: n.client}, cfg.Flows.Destinations[0].Addr())
	if err != nil {
		t.Fatal(err)
	}
	return Run(t.Context(), cfg, from, sink, Options{})
}
