package packets

import (
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/nat"
)

func target(s string) UDPConfig { return UDPConfig{To: netip.MustParseAddrPort(s)} }

func TestDefaults(t *testing.T) {
	got, err := target("198.18.0.2:9000").Checked()
	if err != nil {
		t.Fatal(err)
	}
	want := target("198.18.0.2:9000")
	want.Flows, want.Concurrency, want.Packets, want.Timeout, want.FrameBytes = 1, 100, 1000, time.Second, []int{64}
	if !cmp.Equal(got, want, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if again, err := got.Checked(); err != nil || again.Concurrency != 100 || !slices.Equal(again.FrameBytes, got.FrameBytes) {
		t.Errorf("checked twice: %+v, %v", again, err)
	}
	paced := target("198.18.0.2:9000")
	paced.Rate, paced.Duration = 100, time.Second
	if got, err := paced.Checked(); err != nil || got.Concurrency != 0 || got.Packets != 0 {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestCheckedRefuses(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*UDPConfig)
		want   string // part of the error
	}{
		{"no server", func(c *UDPConfig) { c.To = netip.AddrPort{} }, "no server"},
		{"no port", func(c *UDPConfig) { c.To = netip.AddrPortFrom(c.To.Addr(), 0) }, "no server"},
		{"all addresses", func(c *UDPConfig) { c.To = netip.MustParseAddrPort("0.0.0.0:9") }, "not an address of a host"},
		{"multicast", func(c *UDPConfig) { c.To = netip.MustParseAddrPort("[ff02::1]:9") }, "not an address of a host"},
		{"broadcast", func(c *UDPConfig) { c.To = netip.MustParseAddrPort("255.255.255.255:9") }, "not an address of a host"},
		{"public", func(c *UDPConfig) { c.To = netip.MustParseAddrPort("8.8.8.8:53") }, "--i-own-this-network"},
		{"public IPv6", func(c *UDPConfig) { c.To = netip.MustParseAddrPort("[2001:4860:4860::8888]:53") }, "--i-own-this-network"},
		{"no zone", func(c *UDPConfig) { c.To = netip.MustParseAddrPort("[fe80::1]:9") }, "needs an interface"},
		{"other family", func(c *UDPConfig) { c.Sources = []netip.Addr{netip.MustParseAddr("2001:db8::1")} }, "not of the same family"},
		{"flows", func(c *UDPConfig) { c.Flows = -1 }, "flows -1"},
		{"many flows", func(c *UDPConfig) { c.Flows = maxSockets + 1 }, "flows 1048577"},
		{"packets", func(c *UDPConfig) { c.Packets = -1 }, "packets -1"},
		{"many packets", func(c *UDPConfig) { c.Packets = MaxPackets + 1 }, "packets 100000000001"},
		{"too many for a token", func(c *UDPConfig) { c.Packets = math.MaxUint32 }, "give more --flows"},
		{"time", func(c *UDPConfig) { c.Duration = 25 * time.Hour }, "time 25h"},
		{"timeout", func(c *UDPConfig) { c.Timeout = time.Hour }, "timeout 1h"},
		{"rate", func(c *UDPConfig) { c.Rate = -1 }, "rate -1"},
		{"rate NaN", func(c *UDPConfig) { c.Rate = math.NaN() }, "rate NaN"},
		{"both", func(c *UDPConfig) { c.Rate, c.Concurrency = 10, 10 }, "both given"},
		{"concurrency", func(c *UDPConfig) { c.Concurrency = -1 }, "concurrency -1"},
		{"workers", func(c *UDPConfig) { c.Workers = 2000 }, "workers 2000"},
		{"ports", func(c *UDPConfig) { c.Flows, c.SourcePorts = 11, nat.Ports{First: 1, Last: 10} }, "11 flows: 1 source addresses with 10 ports"},
		{"sizes", func(c *UDPConfig) { c.Size = "x" }, "want a number of bytes"},
		{"small", func(c *UDPConfig) { c.Size = "57" }, "needs 58 bytes"},
		{"small for IPv6", func(c *UDPConfig) { c.Size, c.To = " 64", netip.MustParseAddrPort("[2001:db8::1]:9") }, "needs 78 bytes"},
		{"large", func(c *UDPConfig) { c.Size = "65554" }, "at most 65535"},
	} {
		c := target("198.18.0.2:9000")
		tt.change(&c)
		if _, err := c.Checked(); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want one with %q", tt.name, err, tt.want)
		}
	}
	own := target("8.8.8.8:53")
	own.OwnNetwork = true
	if _, err := own.Checked(); err != nil {
		t.Error(err)
	}
}

// TestFrames has the sizes of RFC 2544: of the whole frame.
func TestFrames(t *testing.T) {
	for _, tt := range []struct {
		to, size string
		frames   []int
		payload  int // of the first
	}{
		{"198.18.0.2:9", "", []int{64}, 18},
		{"198.18.0.2:9", "1518", []int{1518}, 1472},
		{"198.18.0.2:9", "58", []int{58}, 12},
		{"[2001:db8::2]:9", "", []int{78}, 12},
		{"[2001:db8::2]:9", "128,1518", []int{128, 1518}, 62},
		{"[2001:db8::2]:9", "imix", []int{78, 594, 78, 78, 594, 78, 1518, 78, 594, 78, 594, 78}, 12},
		{"[::ffff:198.18.0.2]:9", "64", []int{64}, 18},
	} {
		c := target(tt.to)
		c.Size = tt.size
		got, err := c.Checked()
		if err != nil || !slices.Equal(got.FrameBytes, tt.frames) {
			t.Errorf("%s, size %q: %v, %v; want %v", tt.to, tt.size, got.FrameBytes, err, tt.frames)
			continue
		}
		if p := PayloadBytes(got.FrameBytes[0], c.To.Addr()); p != tt.payload {
			t.Errorf("%s, size %q: %d bytes of payload, want %d", tt.to, tt.size, p, tt.payload)
		}
	}
}

// TestShare compares with counting one by one.
func TestShare(t *testing.T) {
	for _, tt := range []struct{ flows, workers int }{{1, 1}, {7, 3}, {8, 2}, {5, 5}, {100, 7}} {
		counts := make([]int64, tt.workers)
		ofFlow := make([]int64, tt.flows)
		for k := int64(0); k < int64(3*tt.flows+2); k++ {
			for w := range tt.workers {
				s := Share{tt.flows, tt.workers, w}
				if got := s.UpTo(k); got != counts[w] {
					t.Fatalf("%+v: %d of the first %d, want %d", s, got, k, counts[w])
				}
			}
			flow := int(k % int64(tt.flows))
			w := flow % tt.workers
			s := Share{tt.flows, tt.workers, w}
			if when := s.When(counts[w]); when != k {
				t.Fatalf("%+v: its datagram %d is %d of all, want %d", s, counts[w], when, k)
			}
			if i := int(counts[w]) % s.Len(); s.Flow(i) != flow {
				t.Fatalf("%+v: its flow %d is %d, want %d", s, i, s.Flow(i), flow)
			}
			counts[w]++
			ofFlow[flow]++
			if got := s.Of(k+1, flow); got != ofFlow[flow] {
				t.Fatalf("flow %d has %d of %d datagrams, want %d", flow, got, k+1, ofFlow[flow])
			}
		}
	}
}
