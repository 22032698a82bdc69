package run

import (
	"errors"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/load/packets"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/testutil"
	"golang.org/x/sys/unix"
)

func TestUDPComplete(t *testing.T) {
	before := openFileCount(t)
	for _, tt := range []struct {
		name   string
		change func(*packets.UDPConfig)
	}{
		{"one flow", func(*packets.UDPConfig) {}},
		{"one at a time", func(c *packets.UDPConfig) { c.Concurrency, c.Packets = 1, 1000 }},
		{"more in flight than flows", func(c *packets.UDPConfig) { c.Flows, c.Concurrency = 7, 100 }},
		{"more flows than in flight", func(c *packets.UDPConfig) { c.Flows, c.Concurrency = 100, 7 }},
		{"paced", func(c *packets.UDPConfig) { c.Flows, c.Rate, c.Packets = 10, 2000, 1000 }},
		{"imix", func(c *packets.UDPConfig) { c.Flows, c.Size = 12, "imix" }},
		{"fewer than flows", func(c *packets.UDPConfig) { c.Flows, c.Packets = 20, 7 }},
		{"ports of our own", func(c *packets.UDPConfig) {
			c.Flows, c.SourcePorts = 50, nat.Ports{First: 21000, Last: 21099}
			c.Sources = []netip.Addr{netip.MustParseAddr("127.0.0.7"), netip.MustParseAddr("127.0.0.8")}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			addr, stop := startServeUDP(t, ServeUDPConfig{})
			cfg := udpConfig(addr, 20_000)
			tt.change(&cfg)
			r := sendUDP(t, cfg, Options{})
			wholeUDP(t, r, cfg.Packets)
			if r.RoundTrip.Min <= 0 || r.RoundTrip.Max < r.RoundTrip.Min || r.Seconds <= 0 || r.Hint != "" {
				t.Errorf("%+v", r)
			}
			completed := int64(0)
			for _, s := range r.Series {
				completed += s.Completed
			}
			if completed != cfg.Packets {
				t.Errorf("the seconds hold %d replies of %d", completed, cfg.Packets)
			}
			if s := stop(); s.Received != cfg.Packets || s.Answered != cfg.Packets || s.SocketDrops != 0 || len(s.Failures) != 0 {
				t.Errorf("the server saw %+v", s)
			}
		})
	}
	noMoreFiles(t, before)
}

// TestUDPFewSystemCalls: one flow sends and receives many datagrams with a call;
// many flows need one to send and one to receive each.
func TestUDPFewSystemCalls(t *testing.T) {
	addr, _ := startServeUDP(t, ServeUDPConfig{})
	for flows, most := range map[int]float64{1: 0.5, 200: 2.5} {
		cfg := udpConfig(addr, 50_000)
		cfg.Flows, cfg.Concurrency = flows, 100
		r := sendUDP(t, cfg, Options{})
		wholeUDP(t, r, cfg.Packets)
		calls := float64(r.SystemCalls) / float64(r.Sent)
		t.Logf("%d flows: %.2f system calls per datagram, %.0f/s", flows, calls, r.SentPerSecond)
		if calls > most {
			t.Errorf("%d flows: %.2f system calls per datagram, want at most %.1f", flows, calls, most)
		}
	}
}

// TestUDPKeepsTheSchedule: the given number of datagrams in the given time; datagrams that
// a busy machine does not send in time are reported.
func TestUDPKeepsTheSchedule(t *testing.T) {
	addr, _ := startServeUDP(t, ServeUDPConfig{})
	cfg := udpConfig(addr, 0)
	cfg.Flows, cfg.Rate, cfg.Duration = 13, 4000, 500*time.Millisecond
	r := sendUDP(t, cfg, Options{})
	if r.Sent == 0 || r.Sent+r.Unsent != 2000 || r.Received != r.Sent {
		t.Errorf("sent %d, received %d, unsent %d, want 2000", r.Sent, r.Received, r.Unsent)
	}
	if r.Seconds < 0.48 {
		t.Errorf("took %.3f s, want 0.5", r.Seconds)
	}
}

func TestUDPReordered(t *testing.T) {
	var held []byte
	addr := rawUDP(t, func(c *net.UDPConn, from netip.AddrPort, payload []byte) {
		if held == nil {
			held = payload
			return
		}
		c.WriteToUDPAddrPort(payload, from)
		c.WriteToUDPAddrPort(held, from)
		held = nil
	})
	cfg := udpConfig(addr, 1000)
	cfg.Concurrency = 10
	r := sendUDP(t, cfg, Options{})
	if r.Reordered != 500 || r.Received != 1000 || r.Lost != 0 || r.Duplicated != 0 {
		t.Errorf("%+v", r.Delivery)
	}
}

// TestUDPFarBehind: a datagram so late that the token's window has dropped it is still
// identified by the time it was sent.
func TestUDPFarBehind(t *testing.T) {
	var first []byte
	n := 0
	addr := rawUDP(t, func(c *net.UDPConn, from netip.AddrPort, payload []byte) {
		if n++; n == 1 {
			first = payload
			return
		}
		c.WriteToUDPAddrPort(payload, from)
		if n == 300 {
			c.WriteToUDPAddrPort(first, from)
			c.WriteToUDPAddrPort(first, from)
		}
	})
	r := sendUDP(t, udpConfig(addr, 300), Options{})
	if r.Reordered != 1 || r.Duplicated != 1 || r.Received != 301 || r.Lost != 0 || r.Late != 0 {
		t.Errorf("%+v", r.Delivery)
	}
}

// TestUDPMisdelivered: from another port, and to another flow.
func TestUDPMisdelivered(t *testing.T) {
	other, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	n := 0
	var one netip.AddrPort
	addr := rawUDP(t, func(c *net.UDPConn, from netip.AddrPort, payload []byte) {
		n++
		switch {
		case n == 1:
			one = from
			c.WriteToUDPAddrPort(payload, from)
		case n <= 11:
			other.WriteToUDPAddrPort(payload, from)
		case from != one && n <= 31:
			c.WriteToUDPAddrPort(payload, one)
		default:
			c.WriteToUDPAddrPort(payload, from)
		}
	})
	cfg := udpConfig(addr, 100)
	cfg.Flows, cfg.Concurrency, cfg.Timeout, cfg.Workers = 2, 1, 50*time.Millisecond, 1
	r := sendUDP(t, cfg, Options{})
	wrong := r.Misdelivered - 10
	if wrong < 5 || wrong > 15 || r.Received != 100-r.Misdelivered || r.Lost != r.Misdelivered {
		t.Errorf("%+v", r.Delivery)
	}
	from := other.LocalAddr().(*net.UDPAddr).AddrPort()
	if len(r.MisdeliveredFrom) != 2 || r.MisdeliveredFrom[0] != (packets.Sender{From: from, Count: 10}) || r.MisdeliveredFrom[1].From != addr {
		t.Errorf("%+v", r.MisdeliveredFrom)
	}
}

// TestUDPOtherServers answer, but with something else.
func TestUDPOtherServers(t *testing.T) {
	for name, tt := range map[string]struct {
		answer func(payload []byte) []byte
		want   string
	}{
		"cut":      {func(p []byte) []byte { return p[:len(p)-1] }, "another length"},
		"longer":   {func(p []byte) []byte { return append(p, 0) }, "another length"},
		"no token": {func(p []byte) []byte { return []byte("hello, this is another server") }, "without the token of a reply"},
		"empty":    {func(p []byte) []byte { return nil }, "without the token of a reply"},
		"echo":     {func(p []byte) []byte { p[3] &^= 1; return p }, "without the token of a reply"},
	} {
		addr := rawUDP(t, func(c *net.UDPConn, from netip.AddrPort, p []byte) { c.WriteToUDPAddrPort(tt.answer(p), from) })
		cfg := udpConfig(addr, 10)
		cfg.Timeout = 50 * time.Millisecond
		r, err := UDP(t.Context(), cfg, Options{})
		if !errors.Is(err, errNothingBack) || !strings.Contains(err.Error(), tt.want) || r == nil || r.Lost != 10 || r.Altered+r.Foreign != 10 {
			t.Errorf("%s: %v, %+v", name, err, r)
		}
	}
}

// TestUDPRefused: every ICMP error is seen, and no worker waits for the timeout.
func TestUDPRefused(t *testing.T) {
	for _, to := range []string{"127.0.0.1:1", "[::1]:1"} {
		addr := netip.MustParseAddrPort(to)
		if addr.Addr().Is6() {
			testutil.NeedFeature(t, testutil.IPv6)
		}
		cfg := udpConfig(addr, 500)
		cfg.Flows = 3
		r, err := UDP(t.Context(), cfg, Options{})
		if !errors.Is(err, errNothingBack) || !strings.Contains(err.Error(), "wait: refused ") || !strings.Contains(err.Error(), "nothing listens there") {
			t.Fatalf("%s: error %v", to, err)
		}
		if r.Sent != 500 || r.Lost != 500 || len(r.Failures) != 1 || r.Failures[0] != (load.Failure{Phase: load.Wait, Reason: "refused", Count: 500}) {
			t.Errorf("%s: %+v, %v", to, r.Delivery, r.Failures)
		}
	}
}

// TestUDPSilence ends early, though there would be much more to send.
func TestUDPSilence(t *testing.T) {
	addr := rawUDP(t, func(*net.UDPConn, netip.AddrPort, []byte) {})
	for name, change := range map[string]func(*packets.UDPConfig){
		"closed loop": func(c *packets.UDPConfig) { c.Packets = 1_000_000 },
		"schedule":    func(c *packets.UDPConfig) { c.Rate, c.Duration = 1000, time.Hour },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // they wait
			cfg := udpConfig(addr, 0)
			cfg.Timeout = 20 * time.Millisecond
			change(&cfg)
			r, err := UDP(t.Context(), cfg, Options{})
			if !errors.Is(err, errNothingBack) || !strings.Contains(err.Error(), "TX checksum offload") || r.Sent == 0 || r.Lost != r.Sent {
				t.Errorf("%v, %+v", err, r)
			}
		})
	}
}

// TestSocketDrops: what finds no room in a socket is counted.
func TestSocketDrops(t *testing.T) {
	in, _, err := bound(netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(in)
	to, err := unix.Getsockname(in)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.SetsockoptInt(in, unix.SOL_SOCKET, unix.SO_RCVBUF, 1); err != nil {
		t.Fatal(err)
	}
	out, _, err := bound(netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(out)
	for range 100 {
		if err := unix.Sendto(out, []byte("x"), 0, to); err != nil {
			t.Fatal(err)
		}
	}
	var sys caller
	kept := 0
	for buf := make([]byte, 1); ; kept++ {
		if _, _, err := unix.Recvfrom(in, buf, unix.MSG_DONTWAIT); err != nil {
			break
		}
	}
	if drops := int(sys.socketDrops(int32(in))); drops != 100-kept || drops == 0 {
		t.Errorf("%d drops, %d kept of 100", drops, kept)
	}
}

func TestUDPNoAllocationPerDatagram(t *testing.T) {
	addr, _ := startServeUDP(t, ServeUDPConfig{})
	mallocs := func(n int64) uint64 {
		var a, b runtime.MemStats
		runtime.ReadMemStats(&a)
		cfg := udpConfig(addr, n)
		cfg.Flows = 10
		wholeUDP(t, sendUDP(t, cfg, Options{}), n)
		runtime.ReadMemStats(&b)
		return b.Mallocs - a.Mallocs
	}
	mallocs(1000)
	few, many := mallocs(1000), mallocs(11000)
	if more := int64(many) - int64(few); more > 1000 {
		t.Errorf("10000 datagrams more made %d allocations more", more)
	}
}
