package pktgen

import (
	"testing"

	"github.com/natkit/natkit/internal/load/packets"
	"golang.org/x/sys/unix"
)

// TestDue calls the program of an even run before and after a packet is due.
func TestDue(t *testing.T) {
	cfg := config("198.18.0.1:9")
	cfg.Rate, cfg.Even = 1, true
	w := loadWorker(t, loadTables(t, cfg.Flows), cfg, 0)
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		t.Fatal(err)
	}
	const second, hour = 1e9, 3600e9
	for _, tt := range []struct {
		name    string
		start   int64 // from now
		sent    uint64
		verdict uint32
		least   uint64 // lateness, in seconds
	}{
		{"the first, at the start", 0, 0, xdpRedirect, 0},
		{"the first, before the start", hour, 0, xdpDrop, 0},
		{"the second, an hour early", 0, 3600, xdpDrop, 0},
		{"the second, late", -hour, 1, xdpRedirect, 3599},
		{"of a time long ago", -hour, 3599, xdpRedirect, 1},
		{"no schedule yet", -now.Nano(), 1 << 40, xdpRedirect, 0},
	} {
		s := pktgenGeneratorState{Limit: 1 << 50, Sent: tt.sent, Start: uint64(now.Nano() + tt.start)}
		if err := w.objects.Generator.Set(s); err != nil {
			t.Fatal(err)
		}
		verdict, _ := runProgram(t, w.objects.Program, make([]byte, 128))
		after, err := w.state()
		if err != nil {
			t.Fatal(err)
		}
		want := tt.sent
		if tt.verdict == xdpRedirect {
			want++
		}
		if verdict != tt.verdict || after.Sent != want || after.Late < tt.least*second || after.Behind != after.Late {
			t.Errorf("%s: verdict %d, want %d; %+v", tt.name, verdict, tt.verdict, after)
		}
	}
}

// TestEvenRuns send every packet, and none before it is due.
func TestEvenRuns(t *testing.T) {
	n := newNetwork(t)
	for _, workers := range []int{1, 2} {
		cfg := config("198.18.0.1:9")
		cfg.Even, cfg.Workers = true, workers
		r := mustSend(t, n, cfg)
		if want := (packets.Delivery{Sent: few, Received: few}); r.Delivery != want {
			t.Errorf("%d workers: %+v, want %+v", workers, r.Delivery, want)
		}
		if last := float64(few/workers-1) / (gentle / float64(workers)); r.Seconds < last || r.LateSeconds <= 0 || r.BehindSeconds > r.LateSeconds {
			t.Errorf("%d workers: took %v s, the last packet was due after %v s; %v s late, at the end %v s", workers, r.Seconds, last, r.LateSeconds, r.BehindSeconds)
		}
	}
}
