package pktgen

import (
	"testing"

	"github.com/natkit/natkit/internal/load/packets"
)

// TestLossIsExact drops each tenth packet on the way, and compares with what the rule
// has counted.
func TestLossIsExact(t *testing.T) {
	n := newNetwork(t)
	n.forward(t)
	n.nft(t, `table ip filter { counter dropped { }; chain forward { type filter hook forward priority 0;
		ip protocol udp numgen inc mod 10 == 3 counter name dropped drop; }; }`)
	cfg := config("198.19.0.2:9")
	r := n.through(t, cfg)
	dropped := n.counter(t, "ip filter", "dropped")
	if want := (packets.Delivery{Sent: few, Received: few - dropped, Lost: dropped}); r.Delivery != want || dropped != few/10 {
		t.Errorf("%+v, want %+v; the rule dropped %d", r.Delivery, want, dropped)
	}
}

// TestDuplicatesAreExact copies each seventh packet.
func TestDuplicatesAreExact(t *testing.T) {
	n := newNetwork(t)
	n.forward(t)
	n.nft(t, `table ip mangle { counter copied { }; chain pre { type filter hook prerouting priority mangle;
		iifname "eth0" ip protocol udp numgen inc mod 7 == 3 counter name copied dup to 198.19.0.2 device "eth1"; }; }`)
	cfg := config("198.19.0.2:9")
	cfg.Packets, cfg.Flows.Count = few*3/4, 10 // copies have to have a place, too
	r := n.through(t, cfg)
	copied := n.counter(t, "ip mangle", "copied")
	if want := (packets.Delivery{Sent: cfg.Packets, Received: cfg.Packets + copied, Duplicated: copied}); r.Delivery != want || copied < 20 {
		t.Errorf("%+v, want %+v; the rule copied %d", r.Delivery, want, copied)
	}
}

// TestForeignPacketsPass lets the receiver's stack have what is not of the run: it
// answers a neighbour's request, without which the gateway could not send.
func TestForeignPacketsPass(t *testing.T) {
	n := newNetwork(t)
	n.forward(t)
	r := n.through(t, config("198.19.0.2:9"))
	if r.OtherPackets == 0 || r.Received != r.Sent {
		t.Errorf("%+v, %d other packets; want all and at least the ARP request", r.Delivery, r.OtherPackets)
	}
}
