package run

import (
	"context"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/testutil"
)

func TestSources(t *testing.T) {
	var mu sync.Mutex
	seen := map[netip.Addr]int{}
	addr := startRaw(t, func(c *net.TCPConn) {
		mu.Lock()
		seen[c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr()]++
		mu.Unlock()
		write(c, helloResponse)
	})
	sources, err := load.ParseSources("127.0.1.1-127.0.1.8")
	if err != nil {
		t.Fatal(err)
	}
	cfg := load.Config{}
	for _, concurrency := range []int{4, 40} { // fewer connections than addresses, and more
		mu.Lock()
		clear(seen)
		mu.Unlock()
		cfg = testConfig(addr, 400, concurrency)
		cfg.Sources = sources
		if r := mustRun(t, cfg, Options{}); r.Completed != 400 {
			t.Fatalf("%+v", r)
		}
		mu.Lock()
		for _, s := range sources {
			// The workers' shares differ, each cycles independently.
			if seen[s] < 15 {
				t.Errorf("%d connections: %v was used %d times of 400: %v", concurrency, s, seen[s], seen)
			}
		}
		mu.Unlock()
	}
	cfg.Sources = []netip.Addr{netip.MustParseAddr("203.0.113.9")}
	if _, err := HTTP(t.Context(), cfg, Options{}); err == nil || !strings.Contains(err.Error(), "203.0.113.9: not an address of this machine") {
		t.Errorf("error %v", err)
	}
}

// TestSourceCostsNoCall: a socket that is used again is still bound. Another bind
// per request would be 1 more, another socket per request 5 more.
func TestSourceCostsNoCall(t *testing.T) {
	for _, tt := range []struct{ listen, from string }{
		{"127.0.0.1:0", "127.0.0.9"},
		{"127.0.0.1:0", "127.0.1.1-127.0.1.10"},
		{"[::1]:0", "::1"},
	} {
		t.Run(tt.from, func(t *testing.T) {
			listen := netip.MustParseAddrPort(tt.listen)
			if listen.Addr().Is6() {
				testutil.NeedFeature(t, testutil.IPv6)
			}
			addr := startServe(t, ServeConfig{Listen: listen})
			cfg := testConfig(addr.String(), 5000, 50)
			without := callsPerRequest(t, cfg)
			var err error
			if cfg.Sources, err = load.ParseSources(tt.from); err != nil {
				t.Fatal(err)
			}
			with := callsPerRequest(t, cfg)
			t.Logf("%.2f system calls per request, %.2f with a source", without, with)
			if with > without+0.5 {
				t.Errorf("%.2f system calls per request, %.2f with a source", without, with)
			}
		})
	}
}

// callsPerRequest leaves out the waits: one may bring one event or many.
func callsPerRequest(t *testing.T, cfg load.Config) float64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	cfg, target, err := cfg.Checked()
	if err != nil {
		t.Fatal(err)
	}
	r, workers, err := newHTTPRun(ctx, cfg, target, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(r.stopFile)
	if err := conduct(ctx, &r.crew, workers, Options{}); err != nil {
		t.Fatal(err)
	}
	var calls, completed int64
	for _, w := range workers {
		calls += w.sys.count - w.sys.waits
		completed += w.tally.Completed
	}
	if completed != cfg.Requests {
		t.Fatalf("%d of %d requests completed", completed, cfg.Requests)
	}
	return float64(calls) / float64(completed)
}

func TestIPv6(t *testing.T) {
	testutil.NeedFeature(t, testutil.IPv6)
	addr := startServe(t, ServeConfig{Listen: netip.MustParseAddrPort("[::1]:0")})
	if r := mustRun(t, testConfig(addr.String(), 100, 5), Options{}); r.Completed != 100 {
		t.Errorf("%+v", r)
	}
}

// TestLinkLocal: an address that only its interface distinguishes from others, of the
// target, the source and the server.
func TestLinkLocal(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedFeature(t, testutil.IPv6)
	ns := quietNamespace(t)
	if err := ns.Do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		for _, text := range []string{"fe80::1/64", "fe80::2/64"} {
			addr, err := netlink.ParseAddr(text)
			if err != nil {
				return err
			}
			addr.Flags = unix.IFA_F_NODAD
			if err := netlink.AddrAdd(lo, addr); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	startServe(t, ServeConfig{Netns: ns, Listen: netip.MustParseAddrPort("[fe80::1%lo]:80")})
	// The kernel makes the routes to new addresses a little later.
	testutil.Eventually(t, "a way from fe80::2 to fe80::1", func() bool {
		return ns.Do(func() error {
			d := net.Dialer{Timeout: time.Second, LocalAddr: &net.TCPAddr{IP: net.ParseIP("fe80::2"), Zone: "lo"}}
			c, err := d.Dial("tcp6", "[fe80::1%lo]:80")
			if err != nil {
				return err
			}
			return c.Close()
		}) == nil
	})
	cfg := testConfig("[fe80::1%25lo]", 200, 10)
	cfg.Sources = []netip.Addr{netip.MustParseAddr("fe80::2%1")}
	if r := mustRun(t, cfg, Options{Netns: ns}); r.Completed != 200 {
		t.Errorf("%+v", r)
	}
	cfg.URL = "http://[fe80::1%25nosuch0]/"
	if _, err := HTTP(t.Context(), cfg, Options{Netns: ns}); err == nil || !strings.Contains(err.Error(), `fe80::1%nosuch0: interface "nosuch0": `) {
		t.Errorf("error %v", err)
	}
}

func TestNameIsResolved(t *testing.T) {
	addr := startServe(t, ServeConfig{})
	cfg := testConfig("", 10, 1)
	cfg.URL = "http://localhost:" + addr.String()[strings.LastIndexByte(addr.String(), ':')+1:] + "/"
	if r := mustRun(t, cfg, Options{}); r.Completed != 10 {
		t.Errorf("%+v", r)
	}
	cfg.URL = "http://no-such-host.invalid/"
	if _, err := HTTP(t.Context(), cfg, Options{}); err == nil || !strings.Contains(err.Error(), "resolve the host") {
		t.Errorf("error %v", err)
	}
}

func TestInNamespace(t *testing.T) {
	testutil.NeedRoot(t)
	ns := quietNamespace(t)
	addr := startServe(t, ServeConfig{Netns: ns, Listen: netip.MustParseAddrPort("127.0.0.1:80")})
	if r := mustRun(t, testConfig(addr.String(), 200, 10), Options{Netns: ns}); r.Completed != 200 {
		t.Errorf("%+v", r)
	}
}

// TestNoLocalPort has two ports for ten connections that stay.
func TestNoLocalPort(t *testing.T) {
	testutil.NeedRoot(t)
	ns := quietNamespace(t)
	if err := ns.Do(func() error {
		return os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte("40000 40001"), 0)
	}); err != nil {
		t.Fatal(err)
	}
	addr := startServe(t, ServeConfig{Netns: ns, Listen: netip.MustParseAddrPort("127.0.0.1:80"), Page: make([]byte, 8<<20)})
	cfg := testConfig(addr.String(), 10, 10)
	cfg.Workers = 1
	r := mustRun(t, cfg, Options{Netns: ns})
	found := false
	for _, f := range r.Failures {
		found = found || f.Phase == load.Connect && f.Reason == "no local port"
	}
	if !found || !strings.Contains(r.GeneratorLimit, "local port") || r.Completed == 0 {
		t.Errorf("%d completed, failures %v, limit %q", r.Completed, r.Failures, r.GeneratorLimit)
	}
}

// TestSourcePorts: each port of the range once, in an order that the seed
// determines, and a port that is taken is passed over.
func TestSourcePorts(t *testing.T) {
	var mu sync.Mutex
	var order []uint16
	addr := startRaw(t, func(c *net.TCPConn) {
		mu.Lock()
		order = append(order, c.RemoteAddr().(*net.TCPAddr).AddrPort().Port())
		mu.Unlock()
		write(c, helloResponse)
	})
	taken, err := net.Listen("tcp", "127.0.1.1:20007")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	ports := nat.Ports{First: 20000, Last: 20099}
	orderOf := func(seed uint64) []uint16 {
		order = nil
		cfg := testConfig(addr, 99, 1)
		cfg.Sources = []netip.Addr{netip.MustParseAddr("127.0.1.1")}
		cfg.SourcePorts, cfg.Seed, cfg.Workers = ports, seed, 1
		if r := mustRun(t, cfg, Options{}); r.Completed != 99 {
			t.Fatalf("%+v", r)
		}
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(order)
	}
	first := orderOf(1)
	seen := map[uint16]bool{}
	for _, p := range first {
		if p < ports.First || p > ports.Last || p == 20007 || seen[p] {
			t.Fatalf("port %d is out of range, taken or there twice: %v", p, first)
		}
		seen[p] = true
	}
	if slices.IsSorted(first) {
		t.Errorf("the ports come in their natural order: %v", first)
	}
	if again := orderOf(1); !slices.Equal(first, again) {
		t.Errorf("one seed gives two orders:\n%v\n%v", first, again)
	}
	if other := orderOf(2); slices.Equal(first, other) {
		t.Error("two seeds give one order")
	}
	cfg := testConfig(addr, 5, 1)
	cfg.SourcePorts = nat.Ports{First: 20007, Last: 20007}
	cfg.Sources = []netip.Addr{netip.MustParseAddr("127.0.1.1")}
	r, err := HTTP(t.Context(), cfg, Options{})
	if err != nil || r.Failed != 5 || len(r.Failures) != 1 || r.Failures[0].Reason != "no local port" {
		t.Errorf("a range that is taken: %v, %+v", err, r)
	}
}
