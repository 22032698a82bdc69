package run

import (
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/load/packets"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/testutil"
)

// TestUDPErrorsBeforeStart: each is one line that says what to do.
func TestUDPErrorsBeforeStart(t *testing.T) {
	testutil.NeedRoot(t)
	ns := quietNamespace(t)
	if err := ns.Do(func() error {
		return os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte("40000 40009"), 0)
	}); err != nil {
		t.Fatal(err)
	}
	before := openFileCount(t)
	for _, tt := range []struct {
		name   string
		change func(*packets.UDPConfig)
		want   string
	}{
		{"ports of the kernel", func(c *packets.UDPConfig) { c.Flows = 11 }, "no source port is free"},
		{"ports of the kernel for two", func(c *packets.UDPConfig) {
			c.Flows = 21
			c.Sources = []netip.Addr{netip.MustParseAddr("127.0.0.2"), netip.MustParseAddr("127.0.0.3")}
		}, "no source port is free"},
		{"source", func(c *packets.UDPConfig) { c.Sources = []netip.Addr{netip.MustParseAddr("198.18.0.9")} }, "198.18.0.9: not an address of this machine"},
		{"route", func(c *packets.UDPConfig) { c.To = netip.MustParseAddrPort("198.18.5.5:9") }, "no route"},
		{"size", func(c *packets.UDPConfig) { c.Size = "60000"; c.To = netip.MustParseAddrPort("127.0.0.1:9") }, "the route's MTU is 1500: give smaller sizes"},
		{"files", func(c *packets.UDPConfig) {
			c.Flows, c.Concurrency, c.SourcePorts = 1<<20, 1, nat.Ports{First: 1, Last: 65535}
			c.Sources, _ = load.ParseSources("127.0.1.1-127.0.1.17")
		}, "raise one of them"},
	} {
		cfg := udpConfig(netip.MustParseAddrPort("127.0.0.1:9"), 100)
		tt.change(&cfg)
		if tt.name == "size" {
			setLoopbackMTU(t, ns, "1500")
		}
		r, err := UDP(t.Context(), cfg, Options{Netns: ns})
		if err == nil || r != nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want one line with %q", tt.name, err, tt.want)
		}
	}
	noMoreFiles(t, before)
}

// TestUDPPortTaken: another is used in its place, if there is one to spare.
func TestUDPPortTaken(t *testing.T) {
	taken, err := net.ListenPacket("udp4", "127.0.0.1:22005")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	addr, _ := startServeUDP(t, ServeUDPConfig{})
	cfg := udpConfig(addr, 100)
	cfg.Sources = []netip.Addr{netip.MustParseAddr("127.0.0.1")}
	cfg.Flows, cfg.SourcePorts, cfg.Workers = 20, nat.Ports{First: 22000, Last: 22020}, 1
	wholeUDP(t, sendUDP(t, cfg, Options{}), 100)
	cfg.Flows = 21
	if _, err := UDP(t.Context(), cfg, Options{}); err == nil || !strings.Contains(err.Error(), "no source port is free") {
		t.Errorf("error %v", err)
	}
}

// TestUDPSameSeedSamePorts: a run can be repeated.
func TestUDPSameSeedSamePorts(t *testing.T) {
	order := func(seed uint64) string {
		var mu sync.Mutex
		var ports []string
		seen := map[netip.AddrPort]bool{}
		addr := rawUDP(t, func(c *net.UDPConn, from netip.AddrPort, p []byte) {
			mu.Lock()
			defer mu.Unlock()
			if !seen[from] {
				seen[from] = true
				ports = append(ports, from.String())
			}
			c.WriteToUDPAddrPort(p, from)
		})
		cfg := udpConfig(addr, 40)
		cfg.Sources = []netip.Addr{netip.MustParseAddr("127.0.0.5"), netip.MustParseAddr("127.0.0.6")}
		cfg.Flows, cfg.SourcePorts, cfg.Workers, cfg.Seed, cfg.Concurrency = 20, nat.Ports{First: 23000, Last: 23099}, 1, seed, 1
		wholeUDP(t, sendUDP(t, cfg, Options{}), 40)
		mu.Lock()
		defer mu.Unlock()
		if len(ports) != 20 {
			t.Fatalf("%d flows: %v", len(ports), ports)
		}
		return strings.Join(ports, " ")
	}
	first, again, other := order(1), order(1), order(2)
	if first != again || first == other {
		t.Errorf("seed 1: %s\nseed 1: %s\nseed 2: %s", first, again, other)
	}
}
