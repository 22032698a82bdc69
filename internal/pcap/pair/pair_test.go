package pair

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/frame"
)

const (
	client  = "198.18.0.2:40000"
	client2 = "198.18.0.3:40000"
	server  = "198.19.0.2:80"
	public  = "198.19.0.1:61000"
	public2 = "198.19.0.1:61001"
)

func match(t testing.TB, inside, outside []byte, o Options) *Report {
	t.Helper()
	r, err := Match(bytes.NewReader(inside), bytes.NewReader(outside), o)
	if err != nil {
		t.Fatal(err)
	}
	if r.Out.Matched+r.Out.Lost+r.In.Lost+r.In.Matched < 0 {
		t.Fatal("negative counts")
	}
	return r
}

const us = time.Microsecond

// near is as good as histograms are.
func near(got, want float64) bool { return got > 0.998*want && got < 1.002*want }

// TestSNAT is the usual case: what is translated, lost, made twice and late each way.
func TestSNAT(t *testing.T) {
	syn := pkt{src: client, dst: server, flags: frame.SYN, seq: 100, ts: 7}
	synack := pkt{at: 300 * us, src: server, dst: client, flags: frame.SYN | frame.ACK, seq: 900, ack: 101, ts: 8}
	ack := pkt{at: 500 * us, src: client, dst: server, flags: frame.ACK, seq: 101, ack: 901, ts: 7}
	data := pkt{at: 600 * us, src: client, dst: server, flags: frame.ACK | frame.PSH, seq: 101, ack: 901, ts: 7, payload: "GET /"}
	answer := pkt{at: 900 * us, src: server, dst: client, flags: frame.ACK | frame.PSH, seq: 901, ack: 106, ts: 8, payload: "200"}
	last := pkt{at: 2 * time.Millisecond, src: client, dst: server, flags: frame.ACK, seq: 106, ack: 904, ts: 9}
	lost := pkt{at: 700 * us, src: client2, dst: server, flags: frame.SYN, seq: 5000, ts: 99}
	inside := file(t, 256, syn, synack.routed(0), ack, data, lost, answer.routed(0), last)
	out := func(p pkt, d time.Duration) pkt { return p.from(public).routed(d) }
	outside := file(t, 256, out(syn, 20*us),
		synack.to(public).delayed(-30*us), out(ack, 20*us), out(data, 40*us), out(data, 90*us),
		answer.to(public).delayed(-30*us), out(last, 20*us))

	for _, swapped := range []bool{false, true} {
		a, b := inside, outside
		if swapped {
			a, b = b, a
		}
		r := match(t, a, b, Options{})
		if r.Swapped != swapped || r.SidesBy != ByTranslation {
			t.Errorf("swapped %v, by %s; want %v", r.Swapped, r.SidesBy, swapped)
		}
		if r.Out.Matched != 4 || r.In.Matched != 2 || r.Out.Lost != 1 || r.In.Lost != 0 || r.Out.Twice != 1 || r.Ambiguous != 0 || r.In.Appeared != 0 || r.Out.Appeared != 0 {
			t.Errorf("out %+v\nin %+v", r.Out, r.In)
		}
		if r.Clock.By != SameClock || r.Clock.Offset != 0 {
			t.Errorf("clock %+v", r.Clock)
		}
		if !near(r.Out.Delay.Median, 0.02) || !near(r.In.Delay.Median, 0.03) || !near(r.Out.Delay.Max, 0.04) {
			t.Errorf("delays out %+v, in %+v", r.Out.Delay, r.In.Delay)
		}
		want := Translation{SourceAddress: 4, SourcePort: 4, DestinationAddress: 2, DestinationPort: 2, Hops: 1}
		if diff := cmp.Diff(want, r.Translation); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff(Flows{Through: 1, NeverOut: 1, Translated: 1, PortChanged: 1}, r.Flows); diff != "" {
			t.Error(diff)
		}
		at := func(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }
		wantLost := []FlowReport{{
			Protocol: 6, Inside: &frame.Tuple{Src: at(client2), Dst: at(server)}, LostOut: 1,
			FirstLost: LostPacket{Frame: 5, Time: began.Add(700 * us), Kind: SYN},
		}}
		compare := cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })
		if diff := cmp.Diff(wantLost, r.Incomplete, compare); diff != "" {
			t.Error(diff)
		}
		wantMapping := []Mapping{{Protocol: 6, Inside: frame.Tuple{Src: at(client), Dst: at(server)}, Outside: frame.Tuple{Src: at(public), Dst: at(server)}, InsideFrame: 1, OutsideFrame: 1}}
		if diff := cmp.Diff(wantMapping, r.Mappings, compare); diff != "" {
			t.Error(diff)
		}
	}
}

// TestVerdicts are small cases, one rule of the matching each.
func TestVerdicts(t *testing.T) {
	udp := func(at time.Duration, src, dst, payload string, id uint16) pkt {
		return pkt{at: at, src: src, dst: dst, payload: payload, id: id}
	}
	syn := pkt{src: client, dst: server, flags: frame.SYN, seq: 1}
	keep := pkt{at: 10 * time.Second, src: client2, dst: server, flags: frame.SYN, seq: 77} // so that both captures last
	through := func(p pkt) pkt { return p.from(public).routed(10 * us) }
	for _, tt := range []struct {
		name            string
		inside, outside []pkt
		want            string
	}{
		{"a SYN retransmitted without timestamps, the first one lost",
			[]pkt{keep.delayed(-20 * time.Second), syn, syn.delayed(time.Second), keep},
			[]pkt{through(keep.delayed(-20 * time.Second)), through(syn.delayed(time.Second)), through(keep)},
			"out 3 lost 1 twice 0 in 0 lost 0 ambiguous 0 through 3"},
		{"one that came out twice",
			[]pkt{syn, keep}, []pkt{through(syn), through(syn).delayed(us), through(keep)},
			"out 2 lost 0 twice 1 in 0 lost 0 ambiguous 0 through 2"},
		{"the same datagram in two flows, distinguished by their IP IDs",
			[]pkt{udp(0, client, server, "x", 5), udp(us, client2, server, "x", 6), keep},
			[]pkt{through(udp(0, client, server, "x", 5)), udp(12*us, public2, server, "x", 6), through(keep)},
			"out 3 lost 0 twice 0 in 0 lost 0 ambiguous 0 through 3"},
		{"the same datagram in two flows, and nothing that distinguishes them",
			[]pkt{udp(0, client, server, "x", 0), udp(us, client2, server, "x", 0), keep},
			[]pkt{through(udp(0, client, server, "x", 0)), udp(12*us, public2, server, "x", 0), through(keep)},
			"out 1 lost 0 twice 0 in 0 lost 0 ambiguous 4 through 1"},
		{"flows known by other datagrams distinguish the same ones",
			[]pkt{udp(0, client, server, "a", 0), udp(us, client2, server, "b", 0), udp(2*us, client, server, "x", 0), udp(3*us, client2, server, "x", 0), keep},
			[]pkt{udp(10*us, public, server, "a", 0), udp(11*us, public2, server, "b", 0), udp(12*us, public, server, "x", 0), udp(13*us, public2, server, "x", 0), through(keep)},
			"out 5 lost 0 twice 0 in 0 lost 0 ambiguous 0 through 3"},
		{"an echo is alike both ways: its answer is lost, the question is not",
			[]pkt{udp(0, client, server, "x", 0), keep},
			[]pkt{through(udp(0, client, server, "x", 0)), udp(30*us, server, public, "x", 0), through(keep)},
			"out 2 lost 0 twice 0 in 0 lost 1 ambiguous 0 through 2"},
		{"an ICMP error is translated with what it quotes",
			[]pkt{syn, {at: 100 * us, src: "198.51.100.1:0", dst: client, quotes: &syn, ttl: 60}, keep},
			[]pkt{through(syn), {at: 80 * us, src: "198.51.100.1:0", dst: public, quotes: new(through(syn)), ttl: 61}, through(keep)},
			"out 2 lost 0 twice 0 in 1 lost 0 ambiguous 0 through 3"},
		{"another identifier for a ping",
			[]pkt{{src: client, dst: "198.19.0.2:0", echo: true, seq: 3, payload: "abc"}, {at: 90 * us, src: "198.19.0.2:0", dst: client, echo: true, seq: 3, payload: "abc", ttl: 63}, keep},
			[]pkt{{at: us, src: public, dst: "198.19.0.2:0", echo: true, seq: 3, payload: "abc", ttl: 63}, {at: 80 * us, src: "198.19.0.2:0", dst: public, echo: true, seq: 3, payload: "abc"}, through(keep)},
			"out 2 lost 0 twice 0 in 1 lost 0 ambiguous 0 through 2"},
		{"IPv6 inside, IPv4 outside",
			[]pkt{{src: "[2001:db8::2]:40000", dst: "[2001:db8:64::c613:2]:80", flags: frame.SYN, seq: 5}, {at: 20 * us, src: "[2001:db8::2]:40000", dst: "[2001:db8:64::c613:2]:53", payload: "q"}, keep},
			[]pkt{{at: 5 * us, src: public, dst: server, flags: frame.SYN, seq: 5, ttl: 63}, through(keep)},
			"out 2 lost 1 twice 0 in 0 lost 0 ambiguous 0 through 2"},
		{"pings of the NAT machine itself are no loss",
			[]pkt{{src: client, dst: "198.18.0.1:0", echo: true, seq: 1}, {at: us, src: "198.18.0.1:0", dst: client, echo: true, seq: 1}, keep, syn.delayed(11 * time.Second), keep.delayed(12 * time.Second)},
			[]pkt{through(keep), through(syn.delayed(11 * time.Second)), through(keep).delayed(12 * time.Second)},
			"out 3 lost 0 twice 0 in 0 lost 0 ambiguous 0 through 3"},
		{"an answer that did not come in",
			[]pkt{syn, keep},
			[]pkt{through(syn), {at: 50 * us, src: server, dst: public, flags: frame.SYN | frame.ACK, seq: 9, ack: 2}, through(keep)},
			"out 2 lost 0 twice 0 in 0 lost 1 ambiguous 0 through 2"},
		{"an empty capture outside: nothing came out", []pkt{syn, keep}, nil,
			"out 0 lost 2 twice 0 in 0 lost 0 ambiguous 0 through 0"},
		{"DNAT: the file given as inside is the server's",
			[]pkt{syn.to("198.18.9.9:8080").routed(10 * us), keep.to("198.18.9.9:8080").routed(10 * us)}, []pkt{syn, keep},
			"out 0 lost 0 twice 0 in 2 lost 0 ambiguous 0 through 2"},
		{"multicast is not for routers", []pkt{udp(0, client, "224.0.0.251:5353", "q", 1), syn, keep}, []pkt{through(syn), through(keep)},
			"out 2 lost 0 twice 0 in 0 lost 0 ambiguous 0 through 2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := match(t, file(t, 200, tt.inside...), file(t, 200, tt.outside...), Options{})
			got := fmt.Sprintf("out %d lost %d twice %d in %d lost %d ambiguous %d through %d",
				r.Out.Matched, r.Out.Lost, r.Out.Twice, r.In.Matched, r.In.Lost, r.Ambiguous, r.Flows.Through)
			if got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

// TestClocks shifts the outside capture's clock, by more than any window.
func TestClocks(t *testing.T) {
	for _, shift := range []time.Duration{0, 40 * us, time.Millisecond, -3 * time.Second, time.Hour, -26 * time.Hour} {
		for _, drift := range []float64{0, 50e-6} {
			var inside, outside []pkt
			for i := range 600 {
				at := time.Duration(i) * 100 * time.Millisecond
				wrong := shift + time.Duration(drift*float64(at))
				out := pkt{at: at, src: client, dst: server, flags: frame.ACK, seq: uint32(i + 1), ack: 5}
				in := pkt{at: at + 10*time.Millisecond, src: server, dst: client, flags: frame.ACK, seq: 5, ack: uint32(i + 1)}
				inside = append(inside, out, in.routed(300*us))
				outside = append(outside, out.from(public).routed(200*us+wrong), in.to(public).delayed(wrong))
			}
			r := match(t, file(t, 100, inside...), file(t, 100, outside...), Options{})
			if r.Out.Matched != 600 || r.In.Matched != 600 || r.Out.Lost+r.In.Lost+r.Ambiguous != 0 {
				t.Fatalf("shift %v: out %+v, in %+v", shift, r.Out, r.In)
			}
			// What is left of the offset is within what the delays allow.
			if wrong := r.Clock.Offset - shift.Seconds(); wrong > 300e-6 || wrong < -300e-6 {
				t.Errorf("shift %v: offset %v", shift, r.Clock.Offset)
			}
			if want := shift == 0 || shift == 40*us; drift == 0 && (r.Clock.By == SameClock) != want {
				t.Errorf("shift %v: clocks by %s", shift, r.Clock.By)
			}
			if sum := r.Out.Delay.Median + r.In.Delay.Median; drift == 0 && (sum < 0.49 || sum > 0.51) {
				t.Errorf("shift %v: delays %v and %v", shift, r.Out.Delay.Median, r.In.Delay.Median)
			}
			if r.Out.Delay.Max > 4 || r.In.Delay.Max > 4 {
				t.Errorf("shift %v, drift %v: delays up to %v and %v ms", shift, drift, r.Out.Delay.Max, r.In.Delay.Max)
			}
			if drift != 0 && (r.Clock.Drift < 0.0015 || r.Clock.Drift > 0.0035) {
				t.Errorf("shift %v: drift %v in a minute of 50 ppm", shift, r.Clock.Drift)
			}
		}
	}
}

// TestLongBefore begins one capture long before the other.
func TestLongBefore(t *testing.T) {
	var inside, outside []pkt
	for i := range 3 * prefix {
		p := pkt{at: time.Duration(i) * time.Millisecond, src: client, dst: server, flags: frame.ACK, seq: uint32(i), ack: 5}
		inside = append(inside, p)
		if i >= 2*prefix {
			outside = append(outside, p.from(public).routed(100*us))
		}
	}
	r := match(t, file(t, 100, inside...), file(t, 100, outside...), Options{})
	if r.Out.Matched != prefix || r.Out.Lost > 1 || r.Inside.Uncovered.Before < 2*prefix-1 {
		t.Errorf("out %+v, inside %+v", r.Out, r.Inside.Uncovered)
	}
}

// TestMemory keeps within its bound with more flows and more packets under way than fit.
func TestMemory(t *testing.T) {
	m := newMatcher(Options{Memory: MinMemory})
	rng := rand.New(rand.NewPCG(1, 2))
	m.sources = [2]*source{{ended: true}, {ended: true}}
	for i := range 400_000 {
		o := observed{at: int64(i), frame: int64(i), key: rng.Uint64(), Tuple: frame.Tuple{Src: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 1), Dst: netip.MustParseAddrPort(server)}, protocol: 6}
		m.see(uint8(i%2), &o)
	}
	if len(m.flows.Keys()) > m.flows.most+1 || int(m.next-m.oldest) > m.mostWaiting || len(m.buckets) > m.mostWaiting {
		t.Errorf("%d flows, %d packets, %d keys; bounds %d, %d", len(m.flows.Keys()), m.next-m.oldest, len(m.buckets), m.flows.most, m.mostWaiting)
	}
	if m.tally.Limits.Early == 0 || m.tally.Limits.ForgottenFlows == 0 {
		t.Error("nothing was judged early")
	}
}

func TestOptions(t *testing.T) {
	for _, o := range []Options{{Window: time.Nanosecond}, {Window: time.Hour}, {Memory: 1}, {Listed: -1}} {
		if _, err := Match(strings.NewReader(""), strings.NewReader(""), o); err == nil {
			t.Errorf("%+v was accepted", o)
		}
	}
	good := file(t, 100, pkt{src: client, dst: server, payload: "x"})
	_, err := Match(strings.NewReader("no capture at all"), bytes.NewReader(good), Options{})
	if err == nil || !strings.Contains(err.Error(), "first") {
		t.Errorf("no capture: %v", err)
	}
}
