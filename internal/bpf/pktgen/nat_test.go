package pktgen

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/load/packets"
)

// A natCase is rules of the kernel's, and the mapping that they do. The wrong one
// must show each packet.
type natCase struct {
	name, to, rules    string
	source, dest       string // as packets.ParseEnd reads it
	wrongSrc, wrongDst string
}

var natCases = []natCase{
	{
		name: "forwarding alone", to: "198.19.0.2:9",
		source: "same", dest: "same", wrongSrc: "198.19.0.1", wrongDst: "198.19.0.3",
	},
	{
		name: "forwarding IPv6", to: "[2001:db8:19::2]:9",
		source: "same", dest: "same", wrongSrc: "2001:db8:19::1", wrongDst: "2001:db8:19::/127",
	},
	{
		name: "DNAT", to: "198.18.0.1:8080",
		rules:  "table ip nat { chain pre { type nat hook prerouting priority dstnat; udp dport 8080 dnat to 198.19.0.2:80; }; }",
		source: "same", dest: "198.19.0.2:80", wrongSrc: "198.19.0.1", wrongDst: "198.19.0.2:8080",
	},
	{
		name: "DNAT IPv6", to: "[2001:db8:18::1]:8080",
		rules:  "table ip6 nat { chain pre { type nat hook prerouting priority dstnat; udp dport 8080 dnat to [2001:db8:19::2]:80; }; }",
		source: "same", dest: "[2001:db8:19::2]:80", wrongSrc: "2001:db8:19::1", wrongDst: "same",
	},
	{
		name: "SNAT to a range of ports", to: "198.19.0.2:9",
		rules:  "table ip nat { chain post { type nat hook postrouting priority srcnat; ip protocol udp snat to 198.19.0.77:20000-21999; }; }",
		source: "198.19.0.77:20000-21999", dest: "same", wrongSrc: "198.19.0.77:22000-23999", wrongDst: "198.19.0.77",
	},
	{
		name: "masquerade", to: "198.19.0.2:9",
		rules:  "table ip nat { chain post { type nat hook postrouting priority srcnat; masquerade; }; }",
		source: "198.19.0.1:1024-65535", dest: "same:same", wrongSrc: "same", wrongDst: "198.19.0.1",
	},
	{
		name: "NETMAP", to: "198.19.0.2:9",
		rules:  "table ip nat { chain post { type nat hook postrouting priority srcnat; snat ip prefix to ip saddr map { 198.18.0.0/24 : 203.0.113.0/24 }; }; }",
		source: "netmap:203.0.113.0/24", dest: "same", wrongSrc: "netmap:10.0.113.0/24", wrongDst: "netmap:203.0.113.0/24",
	},
	{
		name: "stateless rewriting", to: "198.18.0.1:9",
		rules: `table ip raw { chain pre { type filter hook prerouting priority raw; iifname "eth0" ip daddr 198.18.0.1 udp dport 9 notrack ip daddr set 198.19.0.2 udp dport set 90; };
			chain post { type filter hook postrouting priority srcnat; oifname "eth1" ip saddr set 203.0.113.5; }; }`,
		source: "203.0.113.5:same", dest: "198.19.0.2:90", wrongSrc: "same", wrongDst: "198.19.0.2:9",
	},
}

func TestThroughKernelNAT(t *testing.T) {
	t.Parallel()
	for _, tt := range natCases {
		t.Run(tt.name, func(t *testing.T) {
			n := newNetwork(t)
			n.forward(t)
			if tt.rules != "" {
				n.nft(t, tt.rules)
			}
			r := n.through(t, tt.config(t, []int{82, 594, 1514}, tt.source, tt.dest))
			if want := (packets.Delivery{Sent: few, Received: few}); r.Delivery != want || r.Corrupted.Total() != 0 {
				t.Errorf("%+v %+v, want %+v", r.Delivery, r.Corrupted, want)
			}
			want := packets.Delivery{Sent: few, Lost: few, Misdelivered: few}
			for _, ends := range [][2]string{{tt.wrongSrc, tt.dest}, {tt.source, tt.wrongDst}} {
				cfg := tt.config(t, []int{82}, ends[0], ends[1])
				r := n.through(t, cfg)
				if r.Delivery != want || len(r.MisdeliveredAs) == 0 {
					t.Errorf("expected %s → %s: %+v, want %+v", ends[0], ends[1], r.Delivery, want)
				}
				right, err := packets.ParseEnd(tt.dest)
				if err != nil {
					t.Fatal(err)
				}
				for _, s := range r.MisdeliveredAs {
					if !right.Fits(cfg.Flows.Destinations[0], s.Destination) {
						t.Errorf("came as %v, and goes to %s", s, tt.dest)
					}
				}
			}
		})
	}
}

func (tt natCase) config(t *testing.T, sizes []int, source, dest string) packets.Config {
	t.Helper()
	cfg := config(tt.to)
	cfg.Spec.Sizes = sizes
	var err error
	if cfg.Expect.Source, err = packets.ParseEnd(source); err != nil {
		t.Fatal(err)
	}
	if cfg.Expect.Destination, err = packets.ParseEnd(dest); err != nil {
		t.Fatal(err)
	}
	return cfg
}

// through sends from the client to the server.
func (n *network) through(t *testing.T, cfg packets.Config) *packets.Result {
	t.Helper()
	r, err := send(t, n, cfg, &Port{n.server, "eth0"})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestThroughGRO sends TCP segments of all kinds through a gateway that gathers
// segments: these must not be gathered.
func TestThroughGRO(t *testing.T) {
	n := newNetwork(t)
	n.forward(t)
	for _, name := range []string{"eth0", "eth1"} {
		do(t, nil, func() error { return n.gateway.SetGRO(name, true) })
	}
	do(t, nil, func() error { return n.server.SetGRO("eth0", true) })
	cfg := config("198.19.0.2:80")
	cfg.Spec.Protocol, cfg.Flows.Count = unix.IPPROTO_TCP, 3
	cfg.Spec.TCPFlags = []frame.TCPFlags{frame.SYN, frame.ACK, frame.ACK, frame.PSH | frame.ACK, frame.ACK, frame.FIN | frame.ACK, frame.RST}
	cfg.Expect = packets.Expectation{Source: packets.End{Address: packets.Same, Port: packets.Same}, Destination: packets.End{Address: packets.Same, Port: packets.Same}}
	if r := n.through(t, cfg); r.Delivery != (packets.Delivery{Sent: few, Received: few}) || r.Corrupted.Total() != 0 {
		t.Errorf("%+v %+v", r.Delivery, r.Corrupted)
	}
}
