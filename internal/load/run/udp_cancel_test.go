package run

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/load"
)

func TestUDPCancel(t *testing.T) {
	addr, _ := startServeUDP(t, ServeUDPConfig{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cfg := udpConfig(addr, 0)
	cfg.Rate, cfg.Duration, cfg.Flows = 1000, time.Hour, 4
	r, err := UDP(ctx, cfg, Options{Progress: func(p load.Progress) {
		if p.Completed > 100 {
			cancel()
		}
	}})
	if err != nil || r.Received < 100 || r.Seconds >= cfg.Duration.Seconds() {
		t.Errorf("%v, %+v", err, r)
	}
}

// TestUDPCancelInFlight: an interrupt loses nothing that may still be answered.
func TestUDPCancelInFlight(t *testing.T) {
	n := 0
	addr := rawUDP(t, func(c *net.UDPConn, from netip.AddrPort, payload []byte) {
		if n++; n <= 200 { // and then it is slow
			c.WriteToUDPAddrPort(payload, from)
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cfg := udpConfig(addr, 0)
	cfg.Duration, cfg.Timeout, cfg.Concurrency = time.Hour, time.Minute, 50
	r, err := UDP(ctx, cfg, Options{Progress: func(p load.Progress) {
		if p.Completed == 200 && p.InFlight == 50 {
			cancel()
		}
	}})
	if err != nil || r.Sent != 250 || r.Received != 200 || r.Lost != 0 || r.InFlight != 50 {
		t.Errorf("%v, %+v", err, r)
	}
}
