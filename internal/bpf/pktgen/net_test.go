package pktgen

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

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
	testutil.Routes(t, n.client, "198.18.0.1", "2001:db8:18::1")
	testutil.Routes(t, n.server, "198.19.0.1", "2001:db8:19::1")
	return n
}

func newNamespace(t testing.TB, name string) *netns.Handle {
	t.Helper()
	ns := testutil.Namespace(t, name)
	// Else link-local addresses, from which neighbours are asked, wait a second for
	// duplicates of theirs.
	sysctl(t, ns, "net/ipv6/conf/default/accept_dad", "0")
	return ns
}

func sysctl(t testing.TB, ns *netns.Handle, name, value string) {
	t.Helper()
	testutil.Sysctl(t, ns, name, value)
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
	testutil.Nft(t, n.gateway, rules)
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
	if err := testutil.Links(t, a).AddVeth(netns.VethEnd{Name: nameA}, testutil.Links(t, b), netns.VethEnd{Name: nameB}); err != nil {
		t.Fatal(err)
	}
	carrier(t, a, nameA)
	carrier(t, b, nameB)
}

func carrier(t testing.TB, ns *netns.Handle, name string) {
	t.Helper()
	testutil.Carrier(t, testutil.Links(t, ns), name)
}

func up(t testing.TB, ns *netns.Handle, name string) {
	t.Helper()
	testutil.Addresses(t, testutil.Links(t, ns), name)
}

func address(t testing.TB, ns *netns.Handle, name string, prefixes ...string) {
	t.Helper()
	testutil.Addresses(t, testutil.Links(t, ns), name, prefixes...)
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
	return Run(t.Context(), cfg, egress(t, n, cfg.Flows.Destinations[0].Addr().String()), sink, nil)
}

// egress is the client's way to an address.
func egress(t testing.TB, n *network, to string) Egress {
	t.Helper()
	return egressOf(t, n.client, to)
}

func egressOf(t testing.TB, ns *netns.Handle, to string) Egress {
	t.Helper()
	e, err := ReadEgress(Route{Netns: ns}, netip.MustParseAddr(to))
	if err != nil {
		t.Fatal(err)
	}
	return e
}
