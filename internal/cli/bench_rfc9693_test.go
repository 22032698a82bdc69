package cli

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/load/packets"
	"github.com/natkit/natkit/internal/load/rfc9693"
	"github.com/natkit/natkit/internal/load/rfc9693/trial"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
	"golang.org/x/sys/unix"
)

// Scripts never call a trial invalid: a busy machine makes the sender late.
func init() { rfcTolerance = rfc9693.Tolerance{Overrun: time.Hour, Late: time.Hour} }

func TestBenchRFC9693Bound(t *testing.T) {
	for _, tt := range []struct {
		name         string
		ports, given int
		sysctls      map[string]string
		most         int
		timeout      time.Duration
		err          string
	}{
		{"nothing is known", 1024, 0, nil, rfcMaxConnections, 0, ""},
		{"twice the table", 1024, 0, map[string]string{snapshot.ConntrackMax: "262144", trial.UDPTimeout: "30"}, 524_288, 30 * time.Second, ""},
		{"no limit", 1024, 0, map[string]string{snapshot.ConntrackMax: "0"}, rfcMaxConnections, 0, ""},
		{"as many as there are tuples", 1, 0, map[string]string{snapshot.ConntrackMax: "262144"}, 64_512, 0, ""},
		{"more was asked than there are tuples", 1, 70_000, nil, 0, 0, "make only 64512"},
		{"a small table", 1024, 0, map[string]string{snapshot.ConntrackMax: "49999"}, 0, 0, "--connections 49999 or fewer"},
		{"a table of one trial", 1024, 0, map[string]string{snapshot.ConntrackMax: "50000"}, 100_000, 0, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := &benchRFC9693{cfg: rfc9693.Config{Measure: rfc9693.Measurements, Connections: rfcConnections, MaxConnections: tt.given}}
			b.frames = packets.Config{Workers: 1, Spec: packets.Spec{Protocol: unix.IPPROTO_UDP, HopLimit: defaultTTL, Sizes: []int{64}}}
			b.frames.Flows.SourcePorts, b.frames.Flows.Sources = nat.Ports{First: 1024, Last: 65535}, []netip.Addr{trial.LabInitiator}
			for i := range tt.ports {
				b.frames.Flows.Destinations = append(b.frames.Flows.Destinations, netip.AddrPortFrom(trial.LabDestination(trial.Masquerade), uint16(1024+i)))
			}
			err := b.bound(tt.sysctls)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("got %v, want %q", err, tt.err)
				}
				return
			}
			if err != nil || b.cfg.MaxConnections != tt.most || b.cfg.UDPTimeout != tt.timeout {
				t.Errorf("%d connections, timeout %v: %v", b.cfg.MaxConnections, b.cfg.UDPTimeout, err)
			}
		})
	}
}
