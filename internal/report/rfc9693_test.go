package report

import (
	"bytes"
	"net/netip"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/load/rfc9693"
	"github.com/natkit/natkit/internal/nat"
)

func stateful() *Stateful {
	return &Stateful{
		Gateway: "a lab with the kernel's NAT: masquerade", Initiator: "initiator/eth0", Responder: "responder/eth0",
		Frames: StatefulUDP{
			FrameBytes: []int{64}, Sources: []netip.Addr{netip.MustParseAddr("198.18.0.2")}, SourcePorts: nat.Ports{First: 1024, Last: 65535},
			Destination: netip.MustParseAddr("198.19.0.2"), DestinationPorts: nat.Ports{First: 1024, Last: 2047}, Seed: 7, Workers: 1,
		},
		Tolerance: rfc9693.DefaultTolerance, ValidationShare: rfc9693.Alpha, TearDownBy: "ctnetlink (flush), until it has no entry",
		Kernel: "6.18.0", Sysctls: map[string]string{"net.netfilter.nf_conntrack_max": "262144", "net.netfilter.nf_conntrack_buckets": "65536"},
		Notes: []string{"sender: 1 of the 2 CPUs; gateway and responder: the others (RPS)"},
		Result: &rfc9693.Result{
			Config:   rfc9693.Config{Measure: rfc9693.Measurements, Connections: 50_000},
			Rate:     &rfc9693.Summary{Repetitions: 3, Median: 412_345, P1: 401_000, P99: 420_000, Limit: rfc9693.ByGateway},
			TearDown: &rfc9693.Summary{Repetitions: 3, Median: 1_912_345.6, P1: 1.8e6, P99: 2e6, Limit: rfc9693.ByGateway},
			Capacity: &rfc9693.Summary{Repetitions: 3, Median: 262_144, P1: 262_100, P99: 262_144, Limit: rfc9693.ByGateway},
		},
	}
}

// TestStatefulText compares with testdata; NATKIT_UPDATE_SCRIPTS=1 rewrites it.
func TestStatefulText(t *testing.T) {
	limited := stateful()
	limited.Rate = &rfc9693.Summary{Repetitions: 3, Median: 800_000, P1: 790_000, P99: 810_000, Limit: rfc9693.ByGenerator}
	limited.TearDown, limited.Interrupted = nil, true
	limited.Capacity = &rfc9693.Summary{Repetitions: 1, Median: 4e6, P1: 4e6, P99: 4e6, Limit: rfc9693.ByMaximum}
	none := stateful()
	none.Config.Measure = []rfc9693.Measurement{rfc9693.Rate}
	none.Rate, none.TearDown, none.Capacity = nil, nil, nil
	for name, doc := range map[string]*Stateful{"rfc9693": stateful(), "rfc9693-limited": limited, "rfc9693-none": none} {
		t.Run(name, func(t *testing.T) {
			var got bytes.Buffer
			if err := doc.Text(&got, Style{}); err != nil {
				t.Fatal(err)
			}
			golden := "testdata/" + name + ".txt"
			if os.Getenv("NATKIT_UPDATE_SCRIPTS") != "" {
				if err := os.WriteFile(golden, got.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got.String()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
