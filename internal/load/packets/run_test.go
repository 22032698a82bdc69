package packets

import (
	"math"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/unix"
)

// good is a run that nothing is wrong with.
func good() Config {
	return Config{
		Spec: Spec{Protocol: unix.IPPROTO_UDP, Sizes: []int{64}, HopLimit: 64}, Packets: 10, Workers: 1,
		Flows: Flows{
			Count: 5, Sources: []netip.Addr{netip.MustParseAddr("198.18.0.2")}, SourcePorts: nat.Ports{First: 1, Last: 9},
			Destinations: []netip.AddrPort{netip.MustParseAddrPort("198.18.0.1:9")},
		},
	}
}

func TestConfigCheck(t *testing.T) {
	inside := func(prefix string) End { return End{Address: Inside, Prefix: netip.MustParsePrefix(prefix)} }
	for want, change := range map[string]func(*Config){
		"":                       func(*Config) {},
		"both 0":                 func(c *Config) { c.Packets = 0 },
		"packets -1":             func(c *Config) { c.Packets = -1 },
		"packets 100000000001":   func(c *Config) { c.Packets = MaxPackets + 1 },
		"time 24h0m1s":           func(c *Config) { c.Duration = MaxDuration + time.Second },
		"rate NaN":               func(c *Config) { c.Rate = math.NaN() },
		"rate -1":                func(c *Config) { c.Rate = -1 },
		"rate +Inf":              func(c *Config) { c.Rate = math.Inf(1) },
		"workers 0":              func(c *Config) { c.Workers = 0 },
		"workers 6":              func(c *Config) { c.Workers = 6 },
		"workers 2: more than":   func(c *Config) { c.Workers, c.Packets = 2, 1 },
		"nothing can be expec":   func(c *Config) { c.Bare, c.Verify = true, true },
		"an even run has a rat":  func(c *Config) { c.Even = true },
		"no duration":            func(c *Config) { c.Even, c.Rate, c.Duration = true, 1, time.Second },
		"not of one family":      func(c *Config) { c.Spec.IPv6, c.Spec.Sizes = true, []int{80} },
		"frame size 63":          func(c *Config) { c.Spec.Sizes = []int{63} },
		"10 flows":               func(c *Config) { c.Flows.Count = 10 },
		"same family":            func(c *Config) { c.Expect.Source = inside("2001:db8::/32") },
		"destination 8.8.8.8: a": func(c *Config) { c.Flows.Destinations[0] = netip.MustParseAddrPort("8.8.8.8:9") },
		"source 8.8.8.8: a":      func(c *Config) { c.Flows.Sources[0] = netip.MustParseAddr("8.8.8.8") },
		"mapping to 0.0.0.0/1":   func(c *Config) { c.Expect.Destination = inside("0.0.0.0/1") },
	} {
		c := good()
		change(&c)
		err := c.Check()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestOwnNetworkMayBePublic(t *testing.T) {
	c := good()
	c.OwnNetwork = true
	c.Flows.Destinations[0] = netip.MustParseAddrPort("192.88.99.1:9")
	c.Expect.Source = End{Address: Inside, Prefix: netip.MustParsePrefix("0.0.0.0/0")}
	if err := c.Check(); err != nil {
		t.Error(err)
	}
}
