package pktgen

import (
	"testing"

	"github.com/natkit/natkit/internal/packet"
	"golang.org/x/sys/unix"
)

func TestAllPacketsArrive(t *testing.T) {
	n := newNetwork(t)
	for _, tt := range []struct {
		name   string
		to     string
		change func(*packet.Config)
	}{
		{"UDP", "198.18.0.1:9", func(c *packet.Config) { c.Spec.Sizes = []int{64} }},
		{"UDP over IPv6", "[2001:db8:18::1]:9", func(*packet.Config) {}},
		{"TCP", "198.18.0.1:80", func(c *packet.Config) {
			c.Spec.Protocol, c.Spec.TCPFlags = unix.IPPROTO_TCP, []packet.TCPFlags{packet.SYN, packet.ACK, packet.FIN | packet.ACK}
		}},
		{"IMIX in a VLAN", "198.18.0.1:9", func(c *packet.Config) {
			c.Spec.Sizes, c.Spec.VLAN = []int{68, 594, 68, 1518}, 7
		}},
		{"every size", "198.18.0.1:9", func(c *packet.Config) {
			c.Spec.Sizes = nil
			for i := range 64 {
				c.Spec.Sizes = append(c.Spec.Sizes, 64+i*23)
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := config(tt.to)
			tt.change(&cfg)
			cfg.Expect.Source = packet.End{Address: packet.Same, Port: packet.Same}
			cfg.Expect.Destination = packet.End{Address: packet.Same, Port: packet.Same}
			r, err := send(t, n, cfg, &Port{n.gateway, "eth0"})
			if err != nil {
				t.Fatal(err)
			}
			want := packet.Delivery{Sent: cfg.Packets, Received: cfg.Packets}
			if r.Delivery != want || r.Corrupted.Total() != 0 {
				t.Errorf("%+v %+v, want %+v", r.Delivery, r.Corrupted, want)
			}
			t.Logf("%.0f/s %+v", r.ReceivedPerSecond, r.Notes)
		})
	}
}
