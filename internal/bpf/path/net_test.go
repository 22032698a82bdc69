package path

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/testutil"
)

// client ── near 198.18.1.1 ─ router ─ far 198.18.2.1 ── server
// 198.18.1.2            dnat to the server              198.18.2.2
var (
	clientAddr = netip.MustParseAddr("198.18.1.2")
	nearAddr   = netip.MustParseAddr("198.18.1.1")
	farAddr    = netip.MustParseAddr("198.18.2.1")
	serverAddr = netip.MustParseAddr("198.18.2.2")
)

const (
	openPort    = 80 // of the router; the server's is servedPort
	servedPort  = 8080
	refusedPort = 81 // a rule of the router drops it
)

type nodes struct{ client, router, server *netns.Handle }

// newNodes makes the topology above; it goes with the test.
func newNodes(t *testing.T) nodes {
	t.Helper()
	n := nodes{testutil.Namespace(t, "client"), testutil.Namespace(t, "router"), testutil.Namespace(t, "server")}
	wire(t, n.client, n.router, "near", clientAddr, nearAddr)
	wire(t, n.server, n.router, "far", serverAddr, farAddr)
	testutil.Nft(t, n.router, fmt.Sprintf(`table ip natkit {
	chain pre { type nat hook prerouting priority -100; iifname near tcp dport %d dnat to %s:%d; }
	chain forward { type filter hook forward priority 0; tcp dport %d drop; }
}`, openPort, serverAddr, servedPort, refusedPort))
	testutil.Sysctl(t, n.router, "net/ipv4/ip_forward", "1")
	return n
}

// wire joins a namespace to the router, which becomes its gateway.
func wire(t *testing.T, from, router *netns.Handle, name string, addr, gateway netip.Addr) {
	t.Helper()
	testutil.Veth(t, testutil.End{Netns: from, Name: "up", Addresses: []string{addr.String() + "/24"}}, testutil.End{Netns: router, Name: name, Addresses: []string{gateway.String() + "/24"}})
	testutil.Routes(t, from, gateway.String())
}

// serve accepts connections in the server until the test ends.
func serve(t *testing.T, n nodes) {
	t.Helper()
	serveAt(t, n, serverAddr)
}

func serveAt(t *testing.T, n nodes, at netip.Addr) {
	t.Helper()
	var l net.Listener
	testutil.Inside(t, n.server, func() (err error) {
		l, err = net.Listen("tcp4", netip.AddrPortFrom(at, servedPort).String())
		return err
	})
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(io.Discard, c)
			}()
		}
	}()
}

// connect opens a connection from the client; whether it comes to be is the caller's
// to know.
func connect(t *testing.T, n nodes, to netip.Addr, port uint16) error {
	t.Helper()
	return n.client.Do(func() error {
		c, err := net.DialTimeout("tcp4", netip.AddrPortFrom(to, port).String(), testutil.Patience(300*time.Millisecond))
		if err != nil {
			return err
		}
		return c.Close()
	})
}

// follow starts a tracer, lets traffic flow, and gives the packets that were followed.
func follow(t *testing.T, opt Options, traffic func()) []*snapshot.PacketPath {
	t.Helper()
	tracer, err := Start(t.Context(), opt)
	if err != nil {
		t.Fatalf("%+v", err)
	}
	t.Log("refused", tracer.att.skipped, "tries", tracer.att.tries)
	closed := false
	stop := func() {
		if began := time.Now(); !closed {
			closed = true
			if err := tracer.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
			t.Logf("detached in %v", time.Since(began))
		}
	}
	defer stop()
	t.Logf("%+v", tracer.Attached())
	ctx, cancel := context.WithTimeout(t.Context(), testutil.Patience(5*time.Second))
	defer cancel()
	done := make(chan error, 1)
	var packets []*snapshot.PacketPath
	go func() {
		sum, err := tracer.Follow(ctx, func(p *snapshot.PacketPath) error { packets = append(packets, p); return nil })
		if err == nil && sum.Lost > 0 {
			err = fmt.Errorf("%d events were lost", sum.Lost)
		}
		done <- err
	}()
	traffic()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	for _, p := range packets {
		t.Log(sketch(p))
		checkOrder(t, p)
	}
	return packets
}

// sketch is a packet's way, for the log of a test.
func sketch(p *snapshot.PacketPath) string {
	var b strings.Builder
	fmt.Fprintf(&b, "packet %d: %+v\n", p.Number, p.Verdict)
	for _, s := range p.Steps {
		fmt.Fprintf(&b, "%8d #%d cpu%d %s%s %s %s+%d ret=%s %s %s %s ns=%d %s %s>%s %s len=%d\n", s.Nanoseconds, s.Buffer, s.CPU, strings.Repeat("  ", s.Depth),
			s.Event, s.Module, s.Function, s.Offset, s.Returned, s.Hook, s.Reason, s.Interface, s.Netns, s.Protocol, s.Source, s.Destination, s.TCPFlags, s.Length)
	}
	return b.String()
}

// A dummy device of the client, and an address behind it.
var (
	sinkAddr   = netip.MustParseAddr("198.18.3.1")
	beyondSink = netip.MustParseAddr("198.18.3.2")
)

// sendUDP sends a datagram from the client to port 9. The device keeps no answer, so
// the neighbour entry is set by hand.
func sendUDP(t *testing.T, n nodes, to netip.Addr) {
	t.Helper()
	testutil.Inside(t, n.client, func() error {
		l, err := netlink.LinkByName("sink")
		if err != nil {
			return err
		}
		if err := netlink.NeighSet(&netlink.Neigh{LinkIndex: l.Attrs().Index, IP: to.AsSlice(), State: netlink.NUD_PERMANENT,
			HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 1}}); err != nil {
			return err
		}
		c, err := net.Dial("udp4", netip.AddrPortFrom(to, 9).String())
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = io.WriteString(c, "x")
		return err
	})
}

// checkOrder holds what is true of every way: time does not go back, and nothing
// happens to an sk_buff that was freed.
func checkOrder(t *testing.T, p *snapshot.PacketPath) {
	t.Helper()
	last, gone := uint64(0), map[int]bool{}
	for i, s := range p.Steps {
		if s.Nanoseconds < last {
			t.Errorf("packet %d: step %d is earlier than the one before", p.Number, i)
		}
		last = s.Nanoseconds
		if s.Event == snapshot.StepReturn {
			continue // of the function that freed it
		}
		if gone[s.Buffer] {
			t.Errorf("packet %d: step %d, %s: its sk_buff %d was freed", p.Number, i, s.Function, s.Buffer)
		}
		gone[s.Buffer] = s.Event == snapshot.StepDropped || s.Event == snapshot.StepConsumed || s.Event == snapshot.StepFreed
	}
}

// bridgedServer is an address of the server in the client's network.
var bridgedServer = netip.MustParseAddr("198.18.1.3")

// bridge joins near and far by a bridge, and reports whether IP's rules see what it
// forwards (br_netfilter).
func bridge(t *testing.T, n nodes) (filtered bool) {
	t.Helper()
	testutil.Addresses(t, testutil.Links(t, n.server), "up", bridgedServer.String()+"/24")
	testutil.Inside(t, n.router, func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "br"
		br := &netlink.Bridge{LinkAttrs: attrs}
		if err := netlink.LinkAdd(br); err != nil {
			return err
		}
		for _, name := range []string{"near", "far"} {
			port, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			if err := netlink.LinkSetMaster(port, br); err != nil {
				return err
			}
		}
		calls, err := os.ReadFile("/proc/sys/net/bridge/bridge-nf-call-iptables")
		filtered = err == nil && strings.TrimSpace(string(calls)) == "1"
		return netlink.LinkSetUp(br)
	})
	return filtered
}
