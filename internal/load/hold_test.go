package load

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/nat"
)

func holdConfig(n int) HoldConfig {
	return HoldConfig{To: netip.MustParseAddr("198.18.0.2"), Ports: nat.Ports{First: 8100, Last: 8119}, Connections: n, SourcePorts: HoldPorts}
}

func TestHoldDefaults(t *testing.T) {
	c := holdConfig(5)
	c.Verify = 1000
	got, err := c.Checked()
	if err != nil {
		t.Fatal(err)
	}
	want := c
	want.Concurrency, want.Timeout, want.Close, want.Verify = HoldConcurrency, DefaultTimeout, CloseReset, 5
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestHoldPool: as many connections as there are combinations, and one more.
func TestHoldPool(t *testing.T) {
	for _, tt := range []struct {
		sources int
		source  nat.Ports
		ports   nat.Ports
		want    uint64
	}{
		{0, HoldPorts, nat.Ports{First: 80, Last: 80}, 64512},
		{1, HoldPorts, nat.Ports{First: 8100, Last: 8119}, 20 * 64512},
		{3, nat.Ports{First: 2000, Last: 2009}, nat.Ports{First: 80, Last: 81}, 60},
		{65536, nat.Ports{First: 1, Last: 65535}, nat.Ports{First: 1, Last: 2}, 2 * 65536 * 65535},
	} {
		c := HoldConfig{To: netip.MustParseAddr("198.18.0.2"), Ports: tt.ports, SourcePorts: tt.source}
		for a := netip.MustParseAddr("198.18.0.3"); len(c.Sources) < tt.sources; a = a.Next() {
			c.Sources = append(c.Sources, a)
		}
		if got := c.Pool(); got != tt.want {
			t.Errorf("%d sources, %v, %v: %d, want %d", tt.sources, tt.source, tt.ports, got, tt.want)
		}
		if tt.want > maxHeldConnections {
			continue
		}
		c.Connections = int(tt.want)
		if _, err := c.Checked(); err != nil {
			t.Errorf("%d connections: %v", c.Connections, err)
		}
		c.Connections++
		if _, err := c.Checked(); err == nil {
			t.Errorf("%d connections of %d are accepted", c.Connections, tt.want)
		}
	}
}

func TestHoldPoolIsExplained(t *testing.T) {
	c := holdConfig(1_000_000)
	c.Ports.Last = c.Ports.First
	_, err := c.Checked()
	if want := "1,000,000 connections: 1 source address × 64,512 source ports × 1 port of the server are only 64,512: give more addresses"; err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
}

func TestHoldRefuses(t *testing.T) {
	for name, change := range map[string]func(*HoldConfig){
		"no connection":        func(c *HoldConfig) { c.Connections = 0 },
		"too many":             func(c *HoldConfig) { c.Connections = maxHeldConnections + 1 },
		"no port":              func(c *HoldConfig) { c.Ports = nat.Ports{} },
		"no address":           func(c *HoldConfig) { c.To = netip.Addr{} },
		"a group's address":    func(c *HoldConfig) { c.To = netip.MustParseAddr("224.0.0.1") },
		"another family":       func(c *HoldConfig) { c.Sources = []netip.Addr{netip.MustParseAddr("2001:db8::1")} },
		"negative concurrency": func(c *HoldConfig) { c.Concurrency = -1 },
		"negative rate":        func(c *HoldConfig) { c.Rate = -1 },
		"negative keep":        func(c *HoldConfig) { c.Keep = -time.Second },
		"keep of days":         func(c *HoldConfig) { c.Keep = 25 * time.Hour },
		"negative duration":    func(c *HoldConfig) { c.Duration = -time.Second },
		"short timeout":        func(c *HoldConfig) { c.Timeout = time.Microsecond },
		"negative verify":      func(c *HoldConfig) { c.Verify = -1 },
		"negative workers":     func(c *HoldConfig) { c.Workers = -1 },
		"unknown close":        func(c *HoldConfig) { c.Close = "never" },
	} {
		c := holdConfig(10)
		change(&c)
		if _, err := c.Checked(); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

func TestParseCloseMode(t *testing.T) {
	for text, want := range map[string]CloseMode{"fin": CloseClient, "client": CloseClient, "server": CloseServer, "rst": CloseReset, "": "", "FIN": ""} {
		if got, err := ParseCloseMode(text); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
}

func TestHeldSeries(t *testing.T) {
	got := HeldSeries([]Second{{At: 1, Completed: 10}, {At: 2, Completed: 5, Lost: 2, Failed: 7}, {At: 2.5, Lost: 13}})
	for i, want := range []int64{10, 13, 0} {
		if got[i].Open != want {
			t.Errorf("second %d: %d open, want %d", i, got[i].Open, want)
		}
	}
}
