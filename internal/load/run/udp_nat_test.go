package run

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/load/packets"
	"github.com/natkit/natkit/internal/testutil"
)

// TestUDPThroughNAT has 5,000 flows through DNAT and SNAT: all is answered, and the
// server sees what the SNAT rule says, a port for each flow.
func TestUDPThroughNAT(t *testing.T) {
	p := newUDPPath(t)
	p.rules(t, `table ip t {
	chain pre { type nat hook prerouting priority dstnat; udp dport 9000 dnat to 198.18.1.2; }
	chain post { type nat hook postrouting priority srcnat; oifname "server" udp dport 9000 snat to 198.18.1.254:10000-19999; }
}`)
	expected, err := packets.ParseEnd("198.18.1.254:10000-19999")
	if err != nil {
		t.Fatal(err)
	}
	_, stop := startServeUDP(t, ServeUDPConfig{Listen: pathServer, Netns: p.server, Expected: &expected})
	cfg := udpConfig(netip.AddrPortFrom(pathGateway, 9000), 20_000)
	cfg.Flows, cfg.Concurrency, cfg.Timeout = 5000, 100, time.Minute
	cfg.Workers = 1 // on two CPUs, SNAT may choose one port for two flows, and drops one
	wholeUDP(t, sendUDP(t, cfg, Options{Netns: p.client}), 20_000)
	if s := stop(); s.Received != 20_000 || s.Answered != 20_000 || s.Misdelivered != 0 || s.Sources != 5000 {
		t.Errorf("the server saw %+v", s)
	}
}

// TestUDPExpectedSource: a NAT that does not do what is expected of it.
func TestUDPExpectedSource(t *testing.T) {
	p := newUDPPath(t)
	expected, err := packets.ParseEnd("198.18.1.254")
	if err != nil {
		t.Fatal(err)
	}
	_, stop := startServeUDP(t, ServeUDPConfig{Listen: pathServer, Netns: p.server, Expected: &expected})
	cfg := udpConfig(pathServer, 100)
	cfg.Flows = 5
	wholeUDP(t, sendUDP(t, cfg, Options{Netns: p.client}), 100)
	if s := stop(); s.Misdelivered != 100 || s.Sources != 5 || len(s.MisdeliveredFrom) != 5 ||
		s.MisdeliveredFrom[0].From.Addr() != netip.MustParseAddr("198.18.0.1") {
		t.Errorf("%+v", s)
	}
}

// TestUDPLoss: every tenth datagram is dropped on the way, as nft counts it.
func TestUDPLoss(t *testing.T) {
	p := newUDPPath(t)
	p.rules(t, `table ip t {
	counter dropped {}
	chain c { type filter hook forward priority 0; iifname "client" numgen inc mod 10 0 counter name dropped drop; }
}`)
	startServeUDP(t, ServeUDPConfig{Listen: pathServer, Netns: p.server})
	cfg := udpConfig(pathServer, 2000)
	cfg.Flows, cfg.Rate, cfg.Timeout = 50, 2000, time.Second // so slow that a busy server's queue is enough
	r := sendUDP(t, cfg, Options{Netns: p.client})
	if dropped := p.counter(t, "ip", "dropped"); dropped != 200 || r.Lost != dropped || r.Sent != 2000 || r.Received != 1800 || r.Duplicated+r.Misdelivered != 0 {
		t.Errorf("%d dropped, %+v", dropped, r.Delivery)
	}
	failed := int64(0)
	for _, s := range r.Series {
		failed += s.Failed
	}
	if failed > 200 || failed == 0 { // the last ones are over with the run
		t.Errorf("the seconds hold %d lost datagrams", failed)
	}
	// A closed loop loses the same share; each lost one keeps its place.
	cfg.Rate, cfg.Packets, cfg.Concurrency, cfg.Timeout = 0, 1000, 50, 200*time.Millisecond
	r = sendUDP(t, cfg, Options{Netns: p.client})
	if dropped := p.counter(t, "ip", "dropped"); dropped != 300 || r.Lost != 100 || r.Received != 900 {
		t.Errorf("closed loop: %d dropped, %+v", dropped, r.Delivery)
	}
}

// TestUDPDuplicated: replies that the gateway sends twice.
func TestUDPDuplicated(t *testing.T) {
	p := newUDPPath(t)
	p.rules(t, `table ip t {
	counter doubled {}
	chain c { type filter hook forward priority 0; iifname "server" numgen inc mod 4 0 counter name doubled dup to 198.18.0.1 device "client"; }
}`)
	startServeUDP(t, ServeUDPConfig{Listen: pathServer, Netns: p.server})
	cfg := udpConfig(pathServer, 4000)
	cfg.Flows = 40
	r := sendUDP(t, cfg, Options{Netns: p.client})
	if doubled := p.counter(t, "ip", "doubled"); doubled != 1000 || r.Duplicated != doubled || r.Received != 5000 || r.Lost != 0 || r.Misdelivered != 0 {
		t.Errorf("%d doubled, %+v", doubled, r.Delivery)
	}
}

// TestUDPNotTranslatedBack: replies that pass the NAT by come from the server's own
// address.
func TestUDPNotTranslatedBack(t *testing.T) {
	p := newUDPPath(t)
	p.rules(t, `table ip t {
	chain pre { type filter hook prerouting priority raw; udp dport 9000 notrack ip daddr set 198.18.1.2; }
}`)
	startServeUDP(t, ServeUDPConfig{Listen: pathServer, Netns: p.server})
	cfg := udpConfig(netip.AddrPortFrom(pathGateway, 9000), 50)
	r, err := UDP(t.Context(), cfg, Options{Netns: p.client})
	if !errors.Is(err, errNothingBack) || !strings.Contains(err.Error(), "the first from 198.18.1.2:9000 instead of 198.18.0.254:9000") {
		t.Fatalf("error %v, %+v", err, r)
	}
	if r.Misdelivered != 50 || r.Received != 0 || r.Lost != 50 {
		t.Errorf("%+v", r.Delivery)
	}
}

func TestUDPOverIPv6(t *testing.T) {
	p := newUDPPath(t)
	startServeUDP(t, ServeUDPConfig{Listen: netip.AddrPortFrom(netip.IPv6Unspecified(), 9000), Netns: p.server})
	const sent = 900 // those that a busy CPU leaves waiting find room (net.core.netdev_max_backlog)
	cfg := udpConfig(pathServer6, sent)
	cfg.Flows, cfg.Size = 30, "imix"
	r := sendUDP(t, cfg, Options{Netns: p.client})
	wholeUDP(t, r, sent)
	if mean := float64(r.SentFrameBytes) / sent; mean < 365 || mean > 375 { // (7×78 + 4×594 + 1518) / 12 = 370
		t.Errorf("%.1f bytes per frame", mean)
	}
}

// TestUDPErrorsOnTheWay are counted by kind: those of a router, and those of this
// machine's own rules.
func TestUDPErrorsOnTheWay(t *testing.T) {
	p := newUDPPath(t)
	p.rules(t, `table inet t {
	chain c { type filter hook forward priority 0; iifname "client" goto refuse; }
	chain refuse {
		meta nfproto ipv6 reject with icmpv6 admin-prohibited
		reject with icmp host-unreachable
	}
}`)
	for to, want := range map[netip.AddrPort]string{pathServer: "unreachable", pathServer6: "administratively prohibited"} {
		cfg := udpConfig(to, 20)
		cfg.Timeout = 100 * time.Millisecond
		r, err := UDP(t.Context(), cfg, Options{Netns: p.client})
		// A router sends few errors per second, and it may be late.
		for end := time.Now().Add(deadline); r != nil && len(r.Failures) == 0 && time.Now().Before(end); {
			r, err = UDP(t.Context(), cfg, Options{Netns: p.client})
		}
		if !errors.Is(err, errNothingBack) || len(r.Failures) != 1 || r.Failures[0].Phase != load.Wait || r.Failures[0].Reason != want || r.Failures[0].Count < 1 {
			t.Errorf("%v: %v, %+v", to, err, r)
		}
	}
	testutil.Run(t, p.client, `table ip t { chain c { type filter hook output priority 0; udp length 126 drop; }; }`, "nft", "-f", "-")
	p.rules(t, "flush ruleset")
	startServeUDP(t, ServeUDPConfig{Listen: pathServer, Netns: p.server})
	cfg := udpConfig(pathServer, 100)
	cfg.Size = "64,164" // 126 bytes from the UDP header on
	r := sendUDP(t, cfg, Options{Netns: p.client})
	if r.Sent != 50 || r.Received != 50 || r.Lost != 0 || len(r.Failures) != 1 || r.Failures[0] != (load.Failure{Phase: load.Send, Reason: "forbidden on this machine", Count: 50}) {
		t.Errorf("%+v, %v", r.Delivery, r.Failures)
	}
}

// TestUDPPathMTU: a link further on carries less than the one here. The kernel learns
// it from the first datagram and refuses the others.
func TestUDPPathMTU(t *testing.T) {
	p := newUDPPath(t)
	testutil.Run(t, p.gateway, "link set server mtu 1400\n", "ip", "-batch", "-")
	cfg := udpConfig(pathServer, 50)
	cfg.Size, cfg.Rate = "1518", 1000
	r, err := UDP(t.Context(), cfg, Options{Netns: p.client})
	if !errors.Is(err, errNothingBack) || !strings.Contains(err.Error(), "a link on the way carries less") {
		t.Errorf("error %v", err)
	}
	for _, f := range r.Failures {
		if f.Reason != "message too long" {
			t.Errorf("%+v", r.Failures)
		}
	}
}

// TestUDPNoHost: a run with the default timeout waits until the kernel says that it
// finds no neighbour.
func TestUDPNoHost(t *testing.T) {
	p := newUDPPath(t)
	t.Parallel() // it waits for 3 s
	cfg := udpConfig(netip.MustParseAddrPort("198.18.0.77:9"), 1000)
	cfg.Timeout = packets.UDPTimeout
	_, err := UDP(t.Context(), cfg, Options{Netns: p.client})
	if !errors.Is(err, errNothingBack) || !strings.Contains(err.Error(), "wait: unreachable") || !strings.Contains(err.Error(), "no host has that address") {
		t.Errorf("error %v", err)
	}
}

// TestUDPFindsNeighboursFirst: the first datagram goes alone, so that those that
// follow close behind need not wait for neighbours to be found.
func TestUDPFindsNeighboursFirst(t *testing.T) {
	p := newUDPPath(t)
	ip := testutil.NeedProgram(t, "ip")
	testutil.Run(t, p.client, "", ip, "neigh", "del", "198.18.0.254", "dev", "gw")
	testutil.Run(t, p.server, "", ip, "neigh", "del", "198.18.1.254", "dev", "gw")
	testutil.Run(t, p.gateway, "neigh del 198.18.0.1 dev client\nneigh del 198.18.1.2 dev server\n", ip, "-batch", "-")
	startServeUDP(t, ServeUDPConfig{Listen: pathServer, Netns: p.server})
	cfg := udpConfig(pathServer, 2000)
	cfg.Concurrency, cfg.Workers = 1000, 1
	wholeUDP(t, sendUDP(t, cfg, Options{Netns: p.client}), 2000)
}
