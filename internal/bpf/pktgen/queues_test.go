package pktgen

import (
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/natkit/natkit/internal/load/packets"
	"github.com/natkit/natkit/internal/netns"
)

// vethQueues makes a veth pair whose ends have several queues.
func vethQueues(t testing.TB, a, b *netns.Handle, name string, queues int) {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.Namespace, attrs.NumRxQueues, attrs.NumTxQueues = name, netlink.NsFd(a.Fd()), queues, queues
	pair := &netlink.Veth{
		LinkAttrs: attrs, PeerName: name, PeerNamespace: netlink.NsFd(b.Fd()),
		PeerNumRxQueues: uint32(queues), PeerNumTxQueues: uint32(queues),
	}
	if err := netlink.LinkAdd(pair); err != nil {
		t.Fatal(err)
	}
	for _, ns := range []*netns.Handle{a, b} {
		up(t, ns, name)
	}
	for _, ns := range []*netns.Handle{a, b} {
		carrier(t, ns, name)
	}
}

// TestSeveralQueues has two CPUs send, and as many receive where there is a queue for
// each.
func TestSeveralQueues(t *testing.T) {
	needCPUs(t, 2)
	n := newNetwork(t)
	vethQueues(t, n.client, n.gateway, "wide0", 2)
	address(t, n.client, "wide0", "203.0.113.1/30")
	address(t, n.gateway, "wide0", "203.0.113.2/30")
	if concurrent(Port{n.gateway, "eth0"}) || !concurrent(Port{n.gateway, "wide0"}) {
		t.Fatal("one queue needs no lock, two need one")
	}
	if !concurrent(Port{n.gateway, "lo"}) {
		t.Error("an interface that does not report its queues may have several")
	}
	cfg := config("203.0.113.2:9")
	cfg.Workers = 2
	r, err := send(t, n, cfg, &Port{n.gateway, "wide0"})
	if err != nil {
		t.Fatal(err)
	}
	if want := (packets.Delivery{Sent: few, Received: few}); r.Delivery != want || r.Corrupted.Total() != 0 {
		t.Errorf("%+v, want %+v", r.Delivery, want)
	}
}

// TestReceiverInTheStack counts on an interface whose driver runs no XDP programs.
func TestReceiverInTheStack(t *testing.T) {
	n := newNetwork(t)
	vethQueues(t, n.client, n.gateway, "port0", 1)
	addBridge(t, n.gateway, "br0", "port0")
	address(t, n.client, "port0", "203.0.113.1/30")
	address(t, n.gateway, "br0", "203.0.113.2/30")
	cfg := config("203.0.113.2:9")
	r, err := send(t, n, cfg, &Port{n.gateway, "br0"})
	if err != nil {
		t.Fatal(err)
	}
	if want := (packets.Delivery{Sent: few, Received: few}); r.Delivery != want || r.Corrupted.Total() != 0 {
		t.Errorf("%+v %+v, want %+v", r.Delivery, r.Corrupted, want)
	}
	wantNotes(t, r, "br0 runs no XDP programs", "passes everything")
}

// addBridge makes a bridge of one port.
func addBridge(t testing.TB, ns *netns.Handle, name, port string) {
	t.Helper()
	do(t, ns, func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		bridge := &netlink.Bridge{LinkAttrs: attrs}
		if err := netlink.LinkAdd(bridge); err != nil {
			return err
		}
		l, err := netlink.LinkByName(port)
		if err != nil {
			return err
		}
		return netlink.LinkSetMaster(l, bridge)
	})
	up(t, ns, name)
	carrier(t, ns, name)
}
