package pktgen

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/load/packets"
	"github.com/natkit/natkit/internal/netns"
)

// wantError wants one line with all the texts.
func wantError(t *testing.T, err error, texts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one with %q", texts)
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("error %q\ndoes not say %q", err, text)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("error of several lines: %q", err)
	}
}

func down(t testing.TB, ns *netns.Handle, name string) {
	t.Helper()
	do(t, ns, func() error {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		return netlink.LinkSetDown(l)
	})
}

func mtu(t testing.TB, ns *netns.Handle, name string, bytes int) {
	t.Helper()
	do(t, ns, func() error {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		return netlink.LinkSetMTU(l, bytes)
	})
}

// TestNoWay has what is found before anything is loaded.
func TestNoWay(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	vethQueues(t, n.client, n.gateway, "half0", 1)
	vethQueues(t, n.client, n.gateway, "off0", 1)
	down(t, n.gateway, "half0")
	down(t, n.client, "off0")
	addMacvlan(t, n.client, "eth0", "macvlan0")
	up(t, n.client, "lo")
	far := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	neighbour(t, n.client, "eth0", "198.18.0.9", net.HardwareAddr{3, 0xbf, 0xc6, 0x12, 0, 9}) // as load-balancing clusters have
	for _, tt := range []struct {
		name string
		way  Route
		to   string
		want []string
	}{
		{"no route", Route{Netns: n.gateway}, "203.0.113.1", []string{"find the way to 203.0.113.1", "no route", "unreachable"}},
		{"itself", Route{Netns: n.client}, "198.18.0.2", []string{"an address of the sender itself"}},
		{"no such interface", Route{Netns: n.client, Interface: "eth7"}, "198.18.0.1", []string{"no such interface eth7"}},
		{"down", Route{Netns: n.client, Interface: "off0", NextMAC: far}, "198.18.0.1", []string{"off0 is down", "ip link set off0 up"}},
		{"peer down", Route{Netns: n.client, Interface: "half0", NextMAC: far}, "198.18.0.1", []string{"half0 has no carrier"}},
		{"not a neighbour", Route{Netns: n.gateway}, "198.18.0.99", []string{"no answer from the neighbour 198.18.0.99 on eth0", "--next-mac"}},
		{"broadcast", Route{Netns: n.client}, "198.18.0.255", []string{"a broadcast address there", "all hosts on the link"}},
		{"group", Route{Netns: n.client}, "198.18.0.9", []string{"the neighbour 198.18.0.9 on eth0 has the group address 03:bf:c6:12:00:09"}},
		{"no frames taken", Route{Netns: n.client, Interface: "macvlan0", NextMAC: far}, "198.18.0.1", []string{"macvlan0 is a macvlan", "takes no redirected frames"}},
		{"loopback", Route{Netns: n.client, Interface: "lo", NextMAC: far}, "198.18.0.1", []string{"lo has no Ethernet address"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := ReadEgress(tt.way, netip.MustParseAddr(tt.to))
			wantError(t, err, tt.want...)
		})
	}
}

func addMacvlan(t testing.TB, ns *netns.Handle, parent, name string) {
	t.Helper()
	do(t, ns, func() error {
		l, err := netlink.LinkByName(parent)
		if err != nil {
			return err
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.ParentIndex = name, l.Attrs().Index
		return netlink.LinkAdd(&netlink.Macvlan{LinkAttrs: attrs, Mode: netlink.MACVLAN_MODE_BRIDGE})
	})
	up(t, ns, name)
	carrier(t, ns, name)
}

// TestSinkCannotBe has receivers to which nothing can be attached.
func TestSinkCannotBe(t *testing.T) {
	n := newNetwork(t)
	vethQueues(t, n.client, n.gateway, "off0", 1)
	vethQueues(t, n.gateway, n.server, "taken0", 1)
	vethQueues(t, n.gateway, n.server, "jumbo0", 1)
	down(t, n.gateway, "off0")
	mtu(t, n.server, "jumbo0", 9000)
	f, err := Forward("taken0", egressOf(t, n.gateway, "198.19.0.2"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, tt := range []struct {
		sink Port
		want []string
	}{
		{Port{n.gateway, "eth7"}, []string{"receive on gateway/eth7", "no such interface"}},
		{Port{n.gateway, "off0"}, []string{"receive on gateway/off0", "down", "ip link set off0 up"}},
		{Port{n.gateway, "taken0"}, []string{"receive on gateway/taken0", "there is one already"}},
		{Port{n.gateway, "jumbo0"}, []string{"receive on gateway/jumbo0", "MTU of the other end"}},
	} {
		_, err := send(t, n, config("198.18.0.1:9"), &tt.sink)
		wantError(t, err, tt.want...)
	}
	if attached(t, n.gateway, "eth0") {
		t.Error("the passing program stays after a failure")
	}
}

// TestNothingArrives ends within about a second, and says what to look at. The
// gateway does not forward.
func TestNothingArrives(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		change func(*packets.Config, *Egress)
		sink   func(*network) Port
		want   []string
	}{
		{"no forwarding", func(*packets.Config, *Egress) {}, atServer, []string{"none of the first 32 packets", "client/eth0", "server/eth0", "ip_forward"}},
		{"wrong interface", func(*packets.Config, *Egress) {}, behindGateway, []string{"gateway/eth1", "ip -s link"}},
		{
			"wrong MAC", func(_ *packets.Config, e *Egress) { e.NextMAC = net.HardwareAddr{2, 0, 0, 0, 0, 1} }, atServer,
			[]string{"02:00:00:00:00:01", "/eth0 has ", "--next-mac", "ip neigh"},
		},
		{"bare", func(c *packets.Config, _ *Egress) { c.Bare, c.Verify = true, false }, atServer, []string{"no router forwards"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n := newNetwork(t)
			cfg, from, sink := config("198.19.0.2:9"), egress(t, n, "198.19.0.2"), tt.sink(n)
			tt.change(&cfg, &from)
			_, err := Run(t.Context(), cfg, from, &sink, nil)
			wantError(t, err, tt.want...)
		})
	}
}

func atServer(n *network) Port      { return Port{n.server, "eth0"} }
func behindGateway(n *network) Port { return Port{n.gateway, "eth1"} }

// TestRefusedRuns covers the errors that Run itself detects.
func TestRefusedRuns(t *testing.T) {
	n := newNetwork(t)
	for _, tt := range []struct {
		name   string
		change func(*packets.Config, *Egress)
		want   []string
	}{
		{"MTU", func(c *packets.Config, _ *Egress) { c.Spec.Sizes = []int{64, 1519} }, []string{"frame size 1519", "client/eth0", "1518"}},
		{"workers", func(c *packets.Config, _ *Egress) { c.Workers, c.Flows.Count = 200, 1000 }, []string{"200 workers", "CPUs"}},
		{"no bound", func(c *packets.Config, _ *Egress) { c.Packets = 0 }, []string{"never end"}},
		{"flows", func(c *packets.Config, _ *Egress) { c.Flows.Count = 0 }, []string{"0 flows"}},
		{"a stale interface", func(_ *packets.Config, e *Egress) { e.peerIndex = 999 }, []string{"find the other end of client/eth0"}},
	} {
		cfg, from := config("198.18.0.1:9"), egress(t, n, "198.18.0.1")
		tt.change(&cfg, &from)
		_, err := Run(t.Context(), cfg, from, &Port{n.gateway, "eth0"}, nil)
		wantError(t, err, tt.want...)
	}
	wantError(t, checkMemory(1<<50), "more than a quarter", "use fewer flows")
}

// TestPeerChanges has what happens at the other end after the way was read.
func TestPeerChanges(t *testing.T) {
	n := newNetwork(t)
	from := egress(t, n, "198.18.0.1")
	cfg := config("198.18.0.1:9")
	cfg.Spec.Sizes = []int{1518}
	mtu(t, n.gateway, "eth0", 1400)
	_, err := Run(t.Context(), cfg, from, nil, nil)
	wantError(t, err, "frame size 1518", "/eth0 carries at most 1418")
	down(t, n.gateway, "eth0")
	_, err = Run(t.Context(), cfg, from, nil, nil)
	wantError(t, err, "its other end", "/eth0 is down", "ip link set eth0 up")
}

// TestWithoutReceiver sends all the same.
func TestWithoutReceiver(t *testing.T) {
	n := newNetwork(t)
	r, err := send(t, n, config("198.18.0.1:9"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if want := (packets.Delivery{Sent: few}); r.Delivery != want || r.To != "" {
		t.Errorf("%+v to %q, want %+v", r.Delivery, r.To, want)
	}
	if got := received(t, n.gateway, "eth0"); got < few {
		t.Errorf("the gateway took in %d", got)
	}
}

func TestSendErrors(t *testing.T) {
	for err, want := range map[error]string{
		unix.EINVAL:          "needs Linux 5.18",
		ebpf.ErrNotSupported: "needs Linux 5.18",
		unix.EPERM:           "CAP_NET_ADMIN",
		unix.ENOMEM:          "no memory",
	} {
		wantError(t, sendError(fmt.Errorf("run: %w", err)), "BPF_PROG_TEST_RUN", want)
	}
	if err := sendError(nil); err != nil {
		t.Error(err)
	}
	if err := sendError(unix.EIO); !errors.Is(err, unix.EIO) {
		t.Error(err)
	}
}
