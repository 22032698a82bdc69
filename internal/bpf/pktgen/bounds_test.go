package pktgen

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/load/packets"
	"github.com/natkit/natkit/internal/testutil"
)

// TestPacketsAreExact sends numbers of packets that divide by nothing: fewer than
// find the receiver, fewer than workers, fewer than flows.
func TestPacketsAreExact(t *testing.T) {
	n := newNetwork(t)
	for _, tt := range []struct {
		packets int64
		workers int
		rate    float64
		flows   int
	}{
		{1, 1, 0, 1}, {2, 2, 0, 2}, {31, 1, 0, 100}, {32, 2, 0, 3}, {33, 1, 0, 7}, {65_537, 1, 0, 100}, {100_003, 2, 0, 100},
		{3, 2, 1000, 2}, {45, 1, 1000, 1000}, {1001, 2, 50_000, 5000}, {few, 1, gentle, 5000},
	} {
		t.Run(fmt.Sprintf("%d by %d at %.0f, %d flows", tt.packets, tt.workers, tt.rate, tt.flows), func(t *testing.T) {
			cfg := config("198.18.0.1:9")
			cfg.Packets, cfg.Workers, cfg.Rate, cfg.Flows.Count = tt.packets, tt.workers, tt.rate, tt.flows
			cfg.Spec.Sizes = []int{82, 64}
			r := mustSend(t, n, cfg)
			want := packets.Delivery{Sent: tt.packets, Received: tt.packets}
			if tt.packets > few { // they may overrun the receiver's queue
				want.Received, want.Lost = r.Received, tt.packets-r.Received
			}
			if r.Delivery != want {
				t.Errorf("%+v, want %+v", r.Delivery, want)
			}
			if least := tt.packets * 64; r.SentBytes < least || r.SentBytes > least*82/64 {
				t.Errorf("%d bytes of %d packets", r.SentBytes, tt.packets)
			}
		})
	}
}

func mustSend(t testing.TB, n *network, cfg packets.Config) *packets.Result {
	t.Helper()
	needCPUs(t, cfg.Workers)
	r, err := send(t, n, cfg, &Port{n.gateway, "eth0"})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// needCPUs skips a test of several workers where each has no CPU of its own.
func needCPUs(t testing.TB, workers int) {
	t.Helper()
	if have := runtime.NumCPU(); have < workers {
		testutil.Impossible(t, fmt.Sprintf("needs %d CPUs, this process may run on %d", workers, have))
	}
}

// TestPacedRunsKeepTheSchedule never allows more packets than the schedule has, nor ends
// before it. Fewer there may be on a machine that is busy with other things: then the
// result says so.
func TestPacedRunsKeepTheSchedule(t *testing.T) {
	n := newNetwork(t)
	for _, tt := range []struct {
		rate     float64
		workers  int
		duration time.Duration
	}{
		{200_000, 1, time.Second}, {gentle, 2, 500 * time.Millisecond}, {30, 1, 300 * time.Millisecond},
		{0.2, 1, 100 * time.Millisecond}, // the next packet is due long after the end
	} {
		t.Run(fmt.Sprintf("%.1f by %d", tt.rate, tt.workers), func(t *testing.T) {
			cfg := config("198.18.0.1:9")
			cfg.Packets, cfg.Workers, cfg.Rate, cfg.Duration = 0, tt.workers, tt.rate, tt.duration
			keepsSchedule(t, mustSend(t, n, cfg))
		})
	}
}

func keepsSchedule(t *testing.T, r *packets.Result) {
	t.Helper()
	due, sent := r.Config.Rate*r.Config.Duration.Seconds(), float64(r.Sent)
	if sent > due+float64(r.Config.Workers) {
		t.Errorf("%.0f were sent, and %.0f due", sent, due)
	}
	if r.Seconds < r.Config.Duration.Seconds() {
		t.Errorf("took %.3f s, want %v", r.Seconds, r.Config.Duration)
	}
	if sent < 0.97*due && r.GeneratorLimit == "" {
		t.Errorf("%.0f were sent, %.0f due, and the result does not say so", sent, due)
	}
}

// TestPacedRunsEndOnSchedule does not pack the packets that find the receiver into
// the first moment and leave it at that.
func TestPacedRunsEndOnSchedule(t *testing.T) {
	n := newNetwork(t)
	cfg := config("198.18.0.1:9")
	cfg.Packets, cfg.Rate = 21, 100
	r := mustSend(t, n, cfg)
	if r.Sent != 21 || r.Seconds < 0.2 || r.SentPerSecond > 105 { // the last one is due after 0.2 s
		t.Errorf("%d packets at 100/s took %.3f s, %.0f/s", r.Sent, r.Seconds, r.SentPerSecond)
	}
}

// TestTimeBoundsARun flat out, and where each packet takes long.
func TestTimeBoundsARun(t *testing.T) {
	n := newNetwork(t)
	cfg := config("198.18.0.1:9")
	cfg.Packets, cfg.Rate, cfg.Duration = 0, 0, 150*time.Millisecond
	r := mustSend(t, n, cfg)
	if r.Seconds < 0.15 || r.Sent == 0 || r.Received == 0 {
		t.Errorf("took %.3f s for %+v, want 0.15 s", r.Seconds, r.Delivery)
	}
	if last := r.Course[len(r.Course)-1]; last.Sent != r.Sent || last.Received != r.Received {
		t.Errorf("the course ends with %+v, the result is %+v", last, r.Delivery)
	}
}
