package run

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/load/packets"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
)

// udpPath is a client and a server with a gateway between them, each in a namespace
// of its own.
type udpPath struct{ client, gateway, server *netns.Handle }

// Addresses of a udpPath. The gateway forwards and does nothing else.
var (
	pathServer  = netip.MustParseAddrPort("198.18.1.2:9000")
	pathServer6 = netip.MustParseAddrPort("[2001:db8:1::2]:9000")
	// pathGateway is the gateway's address on the client's side.
	pathGateway = netip.MustParseAddr("198.18.0.254")
)

func newUDPPath(t *testing.T) udpPath {
	t.Helper()
	testutil.NeedRoot(t)
	testutil.NeedFeature(t, testutil.IPv6)
	testutil.ShareHost(t) // where the gateway tracks, each flow is an entry
	ip := testutil.NeedProgram(t, "ip")
	p := udpPath{testutil.Namespace(t, "client"), testutil.Namespace(t, "gateway"), testutil.Namespace(t, "server")}
	connect(t, p.client, p.gateway, "client")
	connect(t, p.server, p.gateway, "server")
	testutil.Run(t, p.client, `link set lo up
link set gw up
addr add 198.18.0.1/24 dev gw
addr add 2001:db8::1/64 dev gw nodad
route add 198.18.1.0/24 via 198.18.0.254
route add 2001:db8:1::/64 via 2001:db8::fe
neigh add 198.18.0.254 lladdr 02:00:00:00:00:fe dev gw
neigh add 2001:db8::fe lladdr 02:00:00:00:00:fe dev gw
`, ip, "-batch", "-")
	testutil.Run(t, p.server, `link set lo up
link set gw up
addr add 198.18.1.2/24 dev gw
addr add 2001:db8:1::2/64 dev gw nodad
route add 198.18.0.0/24 via 198.18.1.254
route add 2001:db8::/64 via 2001:db8:1::fe
neigh add 198.18.1.254 lladdr 02:00:00:00:00:fe dev gw
neigh add 2001:db8:1::fe lladdr 02:00:00:00:00:fe dev gw
`, ip, "-batch", "-")
	testutil.Run(t, p.gateway, `link set lo up
link set client up
link set server up
addr add 198.18.0.254/24 dev client
addr add 198.18.1.254/24 dev server
addr add 2001:db8::fe/64 dev client nodad
addr add 2001:db8:1::fe/64 dev server nodad
neigh add 198.18.0.1 lladdr 02:00:00:00:00:01 dev client
neigh add 2001:db8::1 lladdr 02:00:00:00:00:01 dev client
neigh add 198.18.1.2 lladdr 02:00:00:00:00:01 dev server
neigh add 2001:db8:1::2 lladdr 02:00:00:00:00:01 dev server
`, ip, "-batch", "-")
	waitForLinks(t, p.client, 1)
	waitForLinks(t, p.server, 1)
	waitForLinks(t, p.gateway, 2)
	testutil.Run(t, p.gateway, "", "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward; echo 1 > /proc/sys/net/ipv6/conf/all/forwarding")
	return p
}

// connect makes a link between an end, where it is called gw, and the gateway. All
// neighbours are known from the start: datagrams that wait for one to be found come
// after newer ones.
func connect(t *testing.T, end, gateway *netns.Handle, name string) {
	t.Helper()
	own, peer := netns.VethEnd{Name: "gw", MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}}, netns.VethEnd{Name: name, MAC: net.HardwareAddr{2, 0, 0, 0, 0, 0xfe}}
	if err := testutil.Links(t, end).AddVeth(own, testutil.Links(t, gateway), peer); err != nil {
		t.Fatal(err)
	}
}

// waitForLinks waits until n veth links carry packets. They do not at once: the kernel
// activates their queues later (linkwatch), and drops what is sent before.
func waitForLinks(t *testing.T, ns *netns.Handle, n int) {
	t.Helper()
	ip := testutil.NeedProgram(t, "ip")
	for end := time.Now().Add(deadline); ; time.Sleep(time.Millisecond) {
		links := testutil.Run(t, ns, "", ip, "-o", "link", "show", "type", "veth")
		if strings.Count(links, "state UP") == n && !strings.Contains(links, "qdisc noop ") {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the links in %s do not come up:\n%s", ns.Name(), links)
		}
	}
}

// rules loads nft rules in the gateway.
func (p udpPath) rules(t *testing.T, text string) {
	t.Helper()
	testutil.Run(t, p.gateway, text, "nft", "-f", "-")
}

// counter is how many packets a named counter of table t in the gateway has seen.
func (p udpPath) counter(t *testing.T, family, name string) int64 {
	t.Helper()
	out := testutil.Run(t, p.gateway, "", "nft", "-j", "list", "counter", family, "t", name)
	var doc struct {
		Nftables []struct {
			Counter *struct {
				Packets int64 `json:"packets"`
			} `json:"counter"`
		} `json:"nftables"`
	}
	if err := json.Unmarshal([]byte(out), &doc); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	for _, o := range doc.Nftables {
		if o.Counter != nil {
			return o.Counter.Packets
		}
	}
	t.Fatalf("no counter in %s", out)
	return 0
}

// startServeUDP runs the built-in server; the returned function ends it and says
// what it saw.
func startServeUDP(t *testing.T, cfg ServeUDPConfig) (netip.AddrPort, func() *packets.Served) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	type end struct {
		served *packets.Served
		err    error
	}
	ready, ended := make(chan netip.AddrPort, 1), make(chan end, 1)
	cfg.Ready = func(a netip.AddrPort) { ready <- a }
	if !cfg.Listen.IsValid() {
		cfg.Listen = netip.MustParseAddrPort("127.0.0.1:0")
	}
	go func() {
		s, err := ServeUDP(ctx, cfg)
		ended <- end{s, err}
	}()
	stop := func() *packets.Served {
		cancel()
		select {
		case e := <-ended:
			ended <- e
			if e.err != nil {
				t.Errorf("serve: %v", e.err)
			}
			return e.served
		case <-time.After(deadline):
			t.Error("the server does not end")
			return &packets.Served{}
		}
	}
	t.Cleanup(func() { stop() })
	select {
	case a := <-ready:
		return a, stop
	case e := <-ended:
		ended <- e
		t.Fatal(e.err)
	case <-time.After(deadline):
		t.Fatal("the server does not start")
	}
	return netip.AddrPort{}, stop
}

// sendUDP makes a run that may have losses, but no error.
func sendUDP(t *testing.T, cfg packets.UDPConfig, opt Options) *packets.UDPResult {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	r, err := UDP(ctx, cfg, opt)
	if err != nil {
		t.Fatal(err)
	}
	if ctx.Err() != nil {
		t.Fatalf("the run did not end before its context: %+v", r)
	}
	return r
}

// wholeUDP fails where not every datagram was answered once, in order.
func wholeUDP(t *testing.T, r *packets.UDPResult, sent int64) {
	t.Helper()
	if r.Sent != sent || r.Received != sent || r.Lost+r.Reordered+r.Duplicated+r.Misdelivered+r.Late+r.Altered+r.Foreign+r.SocketDrops != 0 || len(r.Failures) != 0 {
		t.Fatalf("sent %d, received %d of %d; %+v; failures %v", r.Sent, r.Received, sent, r.Delivery, r.Failures)
	}
}

// rawUDP is a server that does with the reply to each datagram what handle says; it
// runs on loopback until the test ends.
func rawUDP(t *testing.T, handle func(c *net.UDPConn, from netip.AddrPort, payload []byte)) netip.AddrPort {
	t.Helper()
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, maxDatagram)
		for {
			n, from, err := c.ReadFromUDPAddrPort(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				packets.MakeReply(buf[:n])
				handle(c, from, bytes.Clone(buf[:n]))
			}
		}
	}()
	t.Cleanup(func() { c.Close(); <-done })
	return c.LocalAddr().(*net.UDPAddr).AddrPort()
}

func udpConfig(to netip.AddrPort, n int64) packets.UDPConfig {
	return packets.UDPConfig{To: to, Packets: n, Timeout: 5 * time.Second, Workers: 2}
}

func setLoopbackMTU(t *testing.T, ns *netns.Handle, mtu string) {
	t.Helper()
	testutil.Run(t, ns, "", "ip", "link", "set", "lo", "mtu", mtu)
}
