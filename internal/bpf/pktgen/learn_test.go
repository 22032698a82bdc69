package pktgen

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/load/packets"
)

// learnConfig is a packet in each of few flows, from the address that the gateway finds its neighbour by.
func learnConfig(to string) packets.Config {
	cfg := config(to)
	cfg.Flows.Count, cfg.Packets, cfg.Flows.Sources = few, few, cfg.Flows.Sources[:1]
	return cfg
}

// TestReply: replies go back through translations of both ends, in both families.
func TestReply(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, to, rules string
		src             string // of the first reply
		dst             string // its address, empty for the client's own
	}{
		{"masquerade", "198.19.0.2:9", "table ip nat { chain post { type nat hook postrouting priority srcnat; masquerade; }; }", "198.19.0.2:9", "198.19.0.1"},
		{"masquerade IPv6", "[2001:db8:19::2]:9", "table ip6 nat { chain post { type nat hook postrouting priority srcnat; masquerade; }; }", "[2001:db8:19::2]:9", "2001:db8:19::1"},
		{"DNAT", "198.18.0.1:8080", "table ip nat { chain pre { type nat hook prerouting priority dstnat; udp dport 8080 dnat to 198.19.0.2:80; }; }", "198.19.0.2:80", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNetwork(t)
			n.forward(t)
			n.nft(t, tt.rules)
			learned := learn(t, n, learnConfig(tt.to))
			src, dst, err := learned.First()
			if err != nil {
				t.Fatal(err)
			}
			if src != netip.MustParseAddrPort(tt.src) || tt.dst != "" && dst.Addr() != netip.MustParseAddr(tt.dst) || dst.Port() < 1024 {
				t.Errorf("the first reply goes from %v to %v", src, dst)
			}
			r := reply(t, n, learned)
			if want := (packets.Delivery{Sent: few, Received: few}); r.Delivery != want || r.Corrupted.Total() != 0 {
				t.Errorf("%+v %+v, want %+v", r.Delivery, r.Corrupted, want)
			}
		})
	}
}

// TestReplyToForgotten: what the translator has forgotten does not come back.
func TestReplyToForgotten(t *testing.T) {
	n := newNetwork(t)
	n.forward(t)
	n.nft(t, "table ip nat { chain post { type nat hook postrouting priority srcnat; masquerade; }; }")
	learned := learn(t, n, learnConfig("198.19.0.2:9"))
	if err := dump.Flush(n.gateway); err != nil {
		t.Fatal(err)
	}
	var none *NoneArrivedError
	_, err := learned.Reply(t.Context(), gentle, n.back(t, learned), Port{n.client, "eth0"}, nil)
	if !errors.As(err, &none) {
		t.Errorf("got %v", err)
	}
}

func learn(t *testing.T, n *network, cfg packets.Config) *Learned {
	t.Helper()
	r, learned, err := Learn(t.Context(), cfg, egress(t, n, cfg.Flows.Destinations[0].Addr().String()), Port{n.server, "eth0"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { learned.Close() })
	if want := (packets.Delivery{Sent: few, Received: few}); r.Delivery != want {
		t.Fatalf("%+v, want %+v", r.Delivery, want)
	}
	return learned
}

// back is the server's way to whom replies go.
func (n *network) back(t *testing.T, l *Learned) Egress {
	t.Helper()
	_, dst, err := l.First()
	if err != nil {
		t.Fatal(err)
	}
	return egressOf(t, n.server, dst.Addr().String())
}

func reply(t *testing.T, n *network, l *Learned) *packets.Result {
	t.Helper()
	r, err := l.Reply(t.Context(), gentle, n.back(t, l), Port{n.client, "eth0"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}
