package pktgen

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/natkit/natkit/internal/load/packets"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netns"
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
	route(t, n.client, "198.18.0.1", "2001:db8:18::1")
	route(t, n.server, "198.19.0.1", "2001:db8:19::1")
	return n
}

func newNamespace(t testing.TB, name string) *netns.Handle {
	t.Helper()
	ns, err := netns.New(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	// Else link-local addresses, from which neighbours are asked, wait a second for
	// duplicates of theirs.
	sysctl(t, ns, "net/ipv6/conf/default/accept_dad", "0")
	return ns
}

func sysctl(t testing.TB, ns *netns.Handle, name, value string) {
	t.Helper()
	do(t, ns, func() error { return os.WriteFile("/proc/sys/"+name, []byte(value), 0) })
}

// forward makes the gateway a router, and its clients' ways back.
func (n *network) forward(t testing.TB) {
	t.Helper()
	sysctl(t, n.gateway, "net/ipv4/ip_forward", "1")
	sysctl(t, n.gateway, "net/ipv6/conf/all/forwarding", "1")
}

// nft gives the gateway rules.
func (n *network) nft(t testing.TB, rules string) {
	t.Helper()
	program := testutil.NeedProgram(t, "nft")
	do(t, n.gateway, func() error {
		cmd := exec.Command(program, "-f", "-")
		cmd.Stdin = strings.NewReader(rules)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s%s: %w", rules, out, err)
		}
		return nil
	})
}

// counter is what one of the gateway's named counters has.
func (n *network) counter(t testing.TB, table, name string) (packets int64) {
	t.Helper()
	do(t, n.gateway, func() error {
		out, err := exec.Command("nft", "list", "counter", table, name).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s: %w", out, err)
		}
		_, after, _ := strings.Cut(string(out), "packets ")
		_, err = fmt.Sscan(after, &packets)
		return err
	})
	return packets
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
	carrier(t, a, nameA)
	carrier(t, b, nameB)
}

// carrier waits until the kernel has noticed that both ends are up: what is sent
// earlier is dropped, such as the first question for a neighbour.
func carrier(t testing.TB, ns *netns.Handle, name string) {
	t.Helper()
	do(t, ns, func() error {
		for end := time.Now().Add(testutil.Patience(time.Minute)); time.Now().Before(end); time.Sleep(time.Millisecond) {
			l, err := netlink.LinkByName(name)
			if err != nil || l.Attrs().OperState == netlink.OperUp {
				return err
			}
		}
		return fmt.Errorf("interface %s has no carrier", name)
	})
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
			if err := netlink.AddrAdd(l, a); err != nil {
				return fmt.Errorf("add %s: %w", p, err)
			}
		}
		return settled(l)
	})
}

// settled waits until an interface answers for its addresses: with IPv6 the kernel
// joins their multicast groups a little later.
func settled(l netlink.Link) error {
	for end := time.Now().Add(testutil.Patience(time.Minute)); time.Now().Before(end); time.Sleep(time.Millisecond) {
		all, err := netlink.AddrList(l, netlink.FAMILY_V6)
		if err == nil && !slices.ContainsFunc(all, func(a netlink.Addr) bool { return a.Flags&unix.IFA_F_TENTATIVE != 0 }) {
			return nil
		}
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			return err
		}
	}
	return fmt.Errorf("the addresses of %s stay tentative", l.Attrs().Name)
}

func route(t testing.TB, ns *netns.Handle, vias ...string) {
	t.Helper()
	for _, via := range vias {
		do(t, ns, func() error { return netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP(via)}) })
	}
}

func do(t testing.TB, ns *netns.Handle, fn func() error) {
	t.Helper()
	if err := ns.Do(fn); err != nil {
		t.Fatal(err)
	}
}

// few packets have place in a veth's ring of 256, so that none is lost however slow the
// machine is, and however late a receiver gets a CPU.
const few = 250

// gentle is a rate for tests that need more packets, and time.
const gentle = 20_000

// config is a small run of UDP over IPv4 to a destination.
func config(to string) packets.Config {
	dst := netip.MustParseAddrPort(to)
	return packets.Config{
		Spec:    packets.Spec{IPv6: dst.Addr().Is6(), Protocol: unix.IPPROTO_UDP, Sizes: []int{82}, HopLimit: 64},
		Packets: few, Rate: gentle, Workers: 1, Verify: true,
		Flows: packets.Flows{
			Count: 100, Sources: sources(dst.Addr()), SourcePorts: nat.Ports{First: 1024, Last: 65535},
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

func send(t testing.TB, n *network, cfg packets.Config, sink *Port) (*packets.Result, error) {
	t.Helper()
	return Run(t.Context(), cfg, egress(t, n, cfg.Flows.Destinations[0].Addr().String()), sink, Options{})
}

// egress is the client's way to an address.
func egress(t testing.TB, n *network, to string) Egress {
	t.Helper()
	return egressOf(t, n.client, to)
}

func egressOf(t testing.TB, ns *netns.Handle, to string) Egress {
	t.Helper()
	e, err := ReadEgress(Way{Netns: ns}, netip.MustParseAddr(to))
	if err != nil {
		t.Fatal(err)
	}
	return e
}
