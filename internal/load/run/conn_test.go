package run

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/load"
)

// TestBatchesWaitForEachOther: no request of a batch begins before all of the last one
// are over and the caller has agreed.
func TestBatchesWaitForEachOther(t *testing.T) {
	const size, requests = 30, 100
	var mu sync.Mutex
	accepted, allowed, turns := 0, size, []int{}
	addr := startRaw(t, func(c *net.TCPConn) {
		mu.Lock()
		accepted++
		if accepted > allowed {
			t.Errorf("connection %d, and only %d are due", accepted, allowed)
		}
		mu.Unlock()
		write(c, helloResponse)
		untilClosed(c)
	})
	cfg := testConfig(addr, requests, 10)
	cfg.Batch, cfg.Close = size, load.CloseClient
	r := mustRun(t, cfg, Options{NextBatch: func(_ context.Context, n int) error {
		mu.Lock()
		defer mu.Unlock()
		if accepted != allowed {
			t.Errorf("batch %d may begin after %d connections, want %d", n, accepted, allowed)
		}
		allowed, turns = min(allowed+size, requests), append(turns, n)
		return nil
	}})
	if r.Completed != requests || len(turns) != 3 || turns[2] != 3 {
		t.Errorf("%d requests completed in %v more batches: %+v", r.Completed, turns, r)
	}
}

func TestBatchesEndWithAnError(t *testing.T) {
	addr := startServe(t, ServeConfig{})
	cfg := testConfig(addr.String(), 100, 10)
	cfg.Batch = 20
	stop := errors.New("no more")
	r, err := HTTP(t.Context(), cfg, Options{NextBatch: func(context.Context, int) error { return stop }})
	if !errors.Is(err, stop) || r != nil {
		t.Errorf("%+v, error %v", r, err)
	}
}

func TestPauseBetweenBatches(t *testing.T) {
	addr := startServe(t, ServeConfig{})
	cfg := testConfig(addr.String(), 30, 10)
	cfg.Batch, cfg.Pause = 10, 50*time.Millisecond
	if r := mustRun(t, cfg, Options{}); r.Completed != 30 || r.Seconds < 0.1 {
		t.Errorf("%d requests in %.3f s, want 30 in 0.1 s or more", r.Completed, r.Seconds)
	}
}

// TestConnectToInTurn: every destination gets its share from every source.
func TestConnectToInTurn(t *testing.T) {
	listening := netip.MustParseAddrPort("0.0.0.0:0")
	addr := startServe(t, ServeConfig{Listen: listening})
	cfg := testConfig(netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), addr.Port()).String(), 400, 4)
	cfg.Workers = 1
	for _, a := range []string{"127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4"} {
		cfg.ConnectTo = append(cfg.ConnectTo, netip.MustParseAddr(a))
	}
	if r := mustRun(t, cfg, Options{}); r.Completed != 400 {
		t.Errorf("%+v", r)
	}
	w := &worker{run: &httpRun{origin: origin{to: make([]sockaddr, 4)}}}
	pairs := map[[2]int]bool{}
	for k := range 32 {
		to := w.destination()
		for i := range w.run.origin.to {
			if to == &w.run.origin.to[i] {
				pairs[[2]int{k % 2, i}] = true
			}
		}
	}
	if len(pairs) != 8 {
		t.Errorf("two sources in turn meet four destinations in %d ways of 8", len(pairs))
	}
}

// TestLateConnections: a connection whose first SYN is lost takes a second.
func TestLateConnections(t *testing.T) {
	tally := load.NewTally(false)
	for _, connected := range []int64{100_000, 1_002_000_000, 3_000_000_000} {
		tally.Complete(load.Sample{Connected: connected, Sent: connected, First: connected, Done: connected})
	}
	var r load.Result
	if tally.Fill(&r); r.ConnectLate != 2 || r.Completed != 3 {
		t.Errorf("%d of %d late, want 2 of 3", r.ConnectLate, r.Completed)
	}
}
