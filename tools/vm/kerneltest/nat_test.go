package kerneltest

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
)

// TestIPVS: a virtual service hands connections to its real servers in turn.
func TestIPVS(t *testing.T) {
	n := newNodes(t)
	testutil.NeedFeature(t, testutil.IPVS)
	ipvsadm := testutil.NeedProgram(t, "ipvsadm")
	service := netip.AddrPortFrom(nearAddr, port).String()
	testutil.Run(t, n.router, "", ipvsadm, "-A", "-t", service, "-s", "rr")
	for _, real := range []netip.Addr{serverA, serverB} {
		testutil.Run(t, n.router, "", ipvsadm, "-a", "-t", service, "-r", netip.AddrPortFrom(real, port).String(), "-m")
		answerTCP(t, n.server, real)
	}
	answers := map[string]int{}
	for range 6 {
		answers[ask(t, dial(t, n.client, "tcp4", nearAddr))]++
	}
	if answers[serverA.String()] != 3 || answers[serverB.String()] != 3 {
		t.Errorf("answers %v, want 3 of each server", answers)
	}
}

// TestFlowTable: the packets of an established connection pass by the forward chain,
// and the tracker says so.
func TestFlowTable(t *testing.T) {
	n := newNodes(t)
	testutil.NeedFeature(t, testutil.FlowTable)
	testutil.Nft(t, n.router, `table inet natkit {
	flowtable fast { hook ingress priority 0; devices = { near, far }; }
	chain forward { type filter hook forward priority 0; counter name seen; ip protocol tcp flow add @fast; }
	counter seen { }
}`)
	answerTCP(t, n.server, serverA)
	c := dial(t, n.client, "tcp4", serverA)
	const lines = 50
	for range lines {
		if got := ask(t, c); got != serverA.String() {
			t.Fatalf("answer %q", got)
		}
	}
	if !offloaded(t, n.router) {
		t.Error("no entry of the tracker is offloaded")
	}
	// The handshake and the first line pass slowly; all would be more than 100.
	if seen := packets(t, n.router, "seen"); seen == 0 || seen > lines/2 {
		t.Errorf("%d packets passed the forward chain, %d lines and as many answers were sent", seen, lines)
	}
}

func offloaded(t *testing.T, ns *netns.Handle) bool {
	t.Helper()
	found := false
	_, err := dump.Dump(t.Context(), ns, func(msgs []byte) error {
		var e conntrack.Entry
		return conntrack.Each(msgs, &e, func(e *conntrack.Entry) error {
			found = found || e.Status&conntrack.Offload != 0
			return nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// packets reads a named counter of table inet natkit.
func packets(t *testing.T, ns *netns.Handle, name string) int {
	t.Helper()
	text := testutil.Run(t, ns, "", "nft", "list", "counter", "inet", "natkit", name)
	fields := strings.Fields(text)
	for i, f := range fields {
		if f == "packets" && i+1 < len(fields) {
			if n, err := strconv.Atoi(fields[i+1]); err == nil {
				return n
			}
		}
	}
	t.Fatalf("no packets in %q", text)
	return 0
}

// TestNetem: a delay on one side delays each round trip by at least that much.
func TestNetem(t *testing.T) {
	n := newNodes(t)
	testutil.NeedFeature(t, testutil.Netem)
	const delay = 60 * time.Millisecond
	testutil.Inside(t, n.client, func() error {
		l, err := netlink.LinkByName("up")
		if err != nil {
			return err
		}
		return netlink.QdiscAdd(netlink.NewNetem(
			netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Parent: netlink.HANDLE_ROOT},
			netlink.NetemQdiscAttrs{Latency: uint32(delay.Microseconds())}))
	})
	echoUDP(t, n.server, serverA)
	c := dial(t, n.client, "udp4", serverA)
	for i := range 5 {
		start := time.Now()
		if got := ask(t, c); got != "who" {
			t.Fatalf("echo %q", got)
		}
		// The kernel's timers may be early by the tick of its clock, not by more.
		if took := time.Since(start); took < delay-time.Millisecond {
			t.Errorf("round trip %d took %v, the delay is %v", i, took, delay)
		}
	}
}

// trackAll makes the router track connections.
func trackAll(t *testing.T, ns *netns.Handle, more string) {
	t.Helper()
	testutil.Nft(t, ns, fmt.Sprintf("table inet natkit {\n chain forward { type filter hook forward priority 0; ct state invalid drop; %s }\n}", more))
}
