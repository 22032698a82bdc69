package packets

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/nat"
)

func connectConfig() ConnectConfig {
	ports := nat.Ports{First: 1024, Last: 2023}
	return ConnectConfig{
		Flows: Flows{
			Count: 2000, Sources: []netip.Addr{netip.MustParseAddr("198.18.0.2"), netip.MustParseAddr("198.18.0.3")},
			SourcePorts: ports, Destinations: []netip.AddrPort{netip.MustParseAddrPort("198.18.0.1:80")},
		},
		Connections: 100, Window: 10, Timeout: time.Second, Close: load.CloseClient,
	}
}

func TestConnectConfigCheck(t *testing.T) {
	addr := netip.MustParseAddr
	for _, tt := range []struct {
		name   string
		change func(*ConnectConfig)
		want   string // "" is nothing
	}{
		{"good", func(*ConnectConfig) {}, ""},
		{"for a time", func(c *ConnectConfig) { c.Connections, c.Duration = 0, time.Second }, ""},
		{"every flow stays open", func(c *ConnectConfig) { c.Connections, c.Close = 2000, CloseNone }, ""},
		{"every flow as often as it can", func(c *ConnectConfig) { c.Connections = 2000 << 16 }, ""},
		{"no bound", func(c *ConnectConfig) { c.Connections = 0 }, "never end"},
		{"less than none", func(c *ConnectConfig) { c.Connections = -1 }, "-1"},
		{"no window", func(c *ConnectConfig) { c.Window = 0 }, "0 connections at a time"},
		{"a window of more than all flows", func(c *ConnectConfig) { c.Window = 2001 }, "2001 connections at a time"},
		{"no time", func(c *ConnectConfig) { c.Timeout = 0 }, "timeout 0s"},
		{"too much time", func(c *ConnectConfig) { c.Timeout = time.Hour }, "timeout 1h"},
		{"a close that is none", func(c *ConnectConfig) { c.Close = "slam" }, `"slam"`},
		{"more than one flow can", func(c *ConnectConfig) { c.Connections = 2000<<16 + 1 }, "at most 65536 of each"},
		{"more than stay open", func(c *ConnectConfig) { c.Connections, c.Close = 2001, CloseNone }, "2001 connections that stay open"},
		{"too many flows", func(c *ConnectConfig) {
			c.Flows.SourcePorts, c.Flows.Sources = nat.Ports{First: 1, Last: 65535}, nil
			for a := addr("10.0.0.1"); len(c.Flows.Sources) < 300; a = a.Next() {
				c.Flows.Sources = append(c.Flows.Sources, a)
			}
		}, "at most 16777216 flows"},
		{"not all flows", func(c *ConnectConfig) { c.Flows.Count = 1999 }, "use all of their"},
		{"two destinations", func(c *ConnectConfig) {
			c.Flows.Destinations, c.Flows.Count = append(c.Flows.Destinations, netip.MustParseAddrPort("198.18.0.1:81")), 4000
		}, "one destination"},
		{"a gap", func(c *ConnectConfig) { c.Flows.Sources[1] = addr("198.18.0.4") }, "198.18.0.4 does not follow 198.18.0.2"},
		{"over 32 bits", func(c *ConnectConfig) {
			c.Flows.Destinations = []netip.AddrPort{netip.MustParseAddrPort("[2001:db8::1]:80")}
			c.Flows.Sources = []netip.Addr{addr("2001:db8::ffff:ffff"), addr("2001:db8::1:0:0")}
		}, "last 32 bits"},
		{"a public destination", func(c *ConnectConfig) { c.Flows.Destinations = []netip.AddrPort{netip.MustParseAddrPort("8.8.8.8:80")} }, "8.8.8.8"},
		{"a public source", func(c *ConnectConfig) { c.Flows.Sources = []netip.Addr{addr("8.8.8.8"), addr("8.8.8.9")} }, "8.8.8.8"},
		{"public and allowed", func(c *ConnectConfig) {
			c.OwnNetwork, c.Flows.Sources = true, []netip.Addr{addr("8.8.8.8"), addr("8.8.8.9")}
		}, ""},
	} {
		c := connectConfig()
		tt.change(&c)
		if err := c.Check(); (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
}

func TestConnectTotal(t *testing.T) {
	c := connectConfig()
	for _, tt := range []struct {
		connections int64
		close       load.CloseMode
		want        int64
	}{{100, load.CloseReset, 100}, {0, load.CloseServer, 2000 << 16}, {0, CloseNone, 2000}, {7, CloseNone, 7}} {
		c.Connections, c.Close = tt.connections, tt.close
		if got := c.Total(); got != tt.want {
			t.Errorf("%d, %s: %d, want %d", tt.connections, tt.close, got, tt.want)
		}
	}
}

func TestSettle(t *testing.T) {
	c := Connections{Started: 100, Established: 90, Answered: 70, Complete: 60, Reset: Steps{SYNACK: 1, Reply: 2, Close: 3}}
	c.Settle(true)
	if want := (Steps{SYNACK: 9, Reply: 18, Close: 7}); c.Incomplete != want || want.Total() != 34 {
		t.Errorf("%+v, want %+v", c.Incomplete, want)
	}
	c.Settle(false)
	if want := (Steps{SYNACK: 9, Reply: 18}); c.Incomplete != want {
		t.Errorf("%+v, want %+v", c.Incomplete, want)
	}
}

// TestBuckets are without gaps, and as wide as the eighth of their power of two.
func TestBuckets(t *testing.T) {
	next := int64(0)
	for i := range 240 {
		low, width := bucket(i)
		if low != next || i >= 16 && low/width/8 != 1 {
			t.Fatalf("bucket %d: from %d on, %d wide; want from %d on", i, low, width, next)
		}
		next = low + width
	}
	if next != 1<<32 {
		t.Errorf("they end at %d, want 2^32", next)
	}
}

func TestHandshakeTimes(t *testing.T) {
	buckets := make([]uint64, 256)
	buckets[10], buckets[16] = 90, 10 // 10 to 11, and 16 to 18 units
	got := HandshakeTimes(buckets, 1_000_000)
	if got.Median < 10 || got.Median > 11 || got.Max != 17 || got.Min != 10.5 {
		t.Errorf("%+v", got)
	}
	if got := HandshakeTimes(make([]uint64, 256), 1); got != (load.Times{}) {
		t.Errorf("of nothing: %+v", got)
	}
}

func TestAddSecond(t *testing.T) {
	var course []ConnectSecond
	for _, s := range []struct {
		at      time.Duration
		started int64
	}{{200 * time.Millisecond, 10}, {900 * time.Millisecond, 20}, {1100 * time.Millisecond, 30}, {1300 * time.Millisecond, 50}, {2 * time.Second, 70}, {2200 * time.Millisecond, 70}} {
		course = AddSecond(course, s.at, s.started, s.started-1)
	}
	want := []ConnectSecond{{1.1, 30, 29}, {2, 40, 40}, {2.2, 0, 0}}
	if d := cmp.Diff(want, course); d != "" {
		t.Error(d)
	}
}

func TestBadShare(t *testing.T) {
	r := ConnectResult{}
	if r.BadShare() != 0 {
		t.Error("of nothing, nothing is bad")
	}
	r.Started, r.Complete = 100, 75
	if r.BadShare() != 0.25 {
		t.Errorf("%g", r.BadShare())
	}
}
