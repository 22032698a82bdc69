package pktgen

import (
	"testing"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/load/packets"
	"golang.org/x/sys/unix"
)

func TestAllPacketsArrive(t *testing.T) {
	n := newNetwork(t)
	for _, tt := range []struct {
		name   string
		to     string
		change func(*packets.Config)
	}{
		{"UDP", "198.18.0.1:9", func(c *packets.Config) { c.Spec.Sizes = []int{64} }},
		{"UDP over IPv6", "[2001:db8:18::1]:9", func(*packets.Config) {}},
		{"TCP", "198.18.0.1:80", func(c *packets.Config) {
			c.Spec.Protocol, c.Spec.TCPFlags = unix.IPPROTO_TCP, []frame.TCPFlags{frame.SYN, frame.ACK, frame.FIN | frame.ACK}
		}},
		{"IMIX in a VLAN", "198.18.0.1:9", func(c *packets.Config) {
			c.Spec.Sizes, c.Spec.VLAN = []int{68, 594, 68, 1518}, 7
		}},
		{"every size", "198.18.0.1:9", func(c *packets.Config) {
			c.Spec.Sizes = nil
			for i := range 64 {
				c.Spec.Sizes = append(c.Spec.Sizes, 64+i*23)
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := config(tt.to)
			tt.change(&cfg)
			cfg.Expect.Source = packets.End{Address: packets.Same, Port: packets.Same}
			cfg.Expect.Destination = packets.End{Address: packets.Same, Port: packets.Same}
			r, err := send(t, n, cfg, &Port{n.gateway, "eth0"})
			if err != nil {
				t.Fatal(err)
			}
			want := packets.Delivery{Sent: cfg.Packets, Received: cfg.Packets}
			if r.Delivery != want || r.Corrupted.Total() != 0 {
				t.Errorf("%+v %+v, want %+v", r.Delivery, r.Corrupted, want)
			}
			t.Logf("%.0f/s %+v", r.ReceivedPerSecond, r.Notes)
		})
	}
}
