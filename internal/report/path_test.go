package report

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/natkit/natkit/internal/snapshot"
)

// wayOfSYN is a SYN that NAT rewrites and a rule drops, and its copy for a packet
// socket.
func wayOfSYN() *snapshot.PacketPath {
	before := snapshot.PathAddresses{Protocol: "tcp", Source: "198.18.1.2:1000", Destination: "198.18.1.1:80", TCPFlags: "SYN", TTL: 64}
	after := before
	after.Destination, after.TTL = "198.18.2.2:8080", 63
	step := func(ns uint64, event, function string, depth, buffer int, at snapshot.PathAddresses) snapshot.PathStep {
		return snapshot.PathStep{Nanoseconds: ns, Event: event, Function: function, Depth: depth, Buffer: buffer, CPU: 1,
			Netns: 4026532171, NetnsName: "router", Interface: "near", Length: 60, PathAddresses: at}
	}
	p := &snapshot.PacketPath{Number: 3, Time: time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC), Steps: []snapshot.PathStep{
		step(0, snapshot.StepCall, "ip_rcv", 0, 1, before),
		step(1500, snapshot.StepClone, "__copy_skb_header", 1, 2, before),
		step(1600, snapshot.StepFreed, "", 2, 2, before),
		step(2500, snapshot.StepCall, "nf_hook_slow", 1, 1, before),
		step(12500, snapshot.StepCall, "nft_do_chain_ipv4", 2, 1, after),
		step(13000, snapshot.StepReturn, "nft_do_chain", 3, 1, after),
		step(14000, snapshot.StepDropped, "nf_hook_slow", 3, 1, after),
	}}
	p.Steps[3].Hook, p.Steps[3].Returned = "FORWARD", "DROP"
	p.Steps[4].Module, p.Steps[4].Netns, p.Steps[4].NetnsName = "nf_tables", 4026532225, ""
	p.Steps[5].Returned = "ACCEPT"
	p.Steps[6].Reason, p.Steps[6].Offset = "NETFILTER_DROP", 0x8a
	p.Verdict = snapshot.PathVerdict{Result: snapshot.PathDropped, Function: "nf_hook_slow", Reason: "NETFILTER_DROP", Netns: 4026532171, NetnsName: "router"}
	return p
}

func TestPath(t *testing.T) {
	var out strings.Builder
	if err := Path(&out, Style{}, wayOfSYN()); err != nil {
		t.Fatal(err)
	}
	want := `packet 3 at 03:04:05.000006  tcp 198.18.1.2:1000 → 198.18.1.1:80 SYN 60 B
    Δ µs  CPU  function
               ── netns router, near
     0.0    1  ip_rcv
     1.5    1    copied to sk_buff 2
     0.1    1      freed  (sk_buff 2)
     0.9    1    nf_hook_slow  FORWARD = DROP
               ── netns 4026532225, near
               ** destination 198.18.1.1:80 → 198.18.2.2:8080
               ** ttl 64 → 63
    10.0    1      nft_do_chain_ipv4 [nf_tables]
     0.5    1        nft_do_chain (return)  = ACCEPT
     1.0    1        dropped in nf_hook_slow+0x8a  NETFILTER_DROP
dropped in nf_hook_slow, netns router: NETFILTER_DROP  (14.0 µs)
`
	if d := cmp.Diff(want, out.String()); d != "" {
		t.Error(d)
	}
}

func TestPathVerdicts(t *testing.T) {
	for want, v := range map[string]snapshot.PathVerdict{
		"delivered to tcp_v4_rcv, netns 7":                                   {Result: snapshot.PathDelivered, Function: "tcp_v4_rcv", Netns: 7},
		"sent by eth0, netns a":                                              {Result: snapshot.PathSent, Interface: "eth0", Netns: 7, NetnsName: "a"},
		"dropped in ip_rcv, netns 7":                                         {Result: snapshot.PathDropped, Function: "ip_rcv", Netns: 7},
		"not freed yet; last seen in ip_rcv: it lies in a queue or a socket": {Result: snapshot.PathOpen, Function: "ip_rcv"},
		"freed without a drop; last seen in ip_rcv":                          {Result: snapshot.PathConsumed, Function: "ip_rcv"},
	} {
		var out strings.Builder
		if err := Path(&out, Style{}, &snapshot.PacketPath{Verdict: v, Incomplete: true}); err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(out.String(), "\n"+want+"\nincomplete: events were lost\n") {
			t.Errorf("%+v: %q", v, out.String())
		}
	}
}

// TestPathTones: what changed and what was dropped stands out, and nothing that the
// packet or an interface brings along steers the terminal.
func TestPathTones(t *testing.T) {
	p := wayOfSYN()
	p.Steps[0].Interface = "a\x1b[2Jb"
	var out strings.Builder
	if err := Path(&out, Style{Colour: true}, p); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"\x1b[33m** destination", "\x1b[31mdropped in nf_hook_slow+0x8a", "\x1b[31mFORWARD = DROP", "\x1b[32m= ACCEPT"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in %q", want, out.String())
		}
	}
	if strings.Contains(out.String(), "\x1b[2J") {
		t.Error("an interface's name clears the screen")
	}
}
