package drops

import (
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/testutil"
)

// TestOnlyMatchingDropsCount: a filter in the kernel, by words, by interface, by
// namespace, in both programs. What does not match is sent first, so that it would
// have been counted by the time that what matches is.
func TestOnlyMatchingDropsCount(t *testing.T) {
	n := newNetwork(t)
	testutil.Nft(t, n.gateway, "table ip f { chain c { type filter hook prerouting priority raw; udp dport { 9, 10, 11 } drop; }; }")
	words := func(text string) *frame.Filter {
		e, err := frame.ParseFilter(strings.Fields(text))
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	const others, matching = 20, 5
	for _, tt := range []struct {
		name string
		opt  Options
		want uint64
	}{
		{"all", Options{Netns: n.gateway}, others + matching},
		{"port", Options{Netns: n.gateway, Filter: words("udp and dst port 10")}, matching},
		{"not port, host", Options{Netns: n.gateway, Filter: words("src host 198.18.0.2 and not port 9")}, matching},
		{"net", Options{Netns: n.gateway, Filter: words("dst net 198.19.0.0/24 and (port 9 or port 10)")}, others + matching},
		{"all, its interface", Options{Netns: n.gateway, Interface: "eth0"}, others + matching},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, untyped := range []bool{false, true} {
				opt := tt.opt
				opt.untyped = untyped
				tr := start(t, opt)
				toServer(t, n, others)
				datagrams(t, n.client, serverIP+":10", matching)
				d := until(t, tr, tt.want)
				if d.Packets != tt.want {
					t.Errorf("%s counted %d drops, want %d: %+v", d.Source, d.Packets, tt.want, d.Sites)
				}
			}
		})
	}
	t.Run("none", func(t *testing.T) {
		all := start(t, Options{Netns: n.gateway})
		none := []*Tracer{
			start(t, Options{Netns: n.gateway, Interface: "eth1"}), start(t, Options{Netns: n.server}),
			start(t, Options{Netns: n.gateway, Filter: words("tcp")}), start(t, Options{Netns: n.gateway, Filter: words("ip6")}),
		}
		toServer(t, n, others)
		until(t, all, others)
		for i, tr := range none {
			if d := read(t, tr); d.Packets != 0 {
				t.Errorf("tracer %d counted %+v", i, d.Sites)
			}
		}
	})
}

// TestInterfaceIsKnown: one that is not there is an error that says so.
func TestInterfaceIsKnown(t *testing.T) {
	testutil.NeedRoot(t)
	tr, err := Start(t.Context(), Options{Netns: newNamespace(t, "here"), Interface: "eth7"})
	if tr != nil || err == nil || !strings.Contains(err.Error(), `find interface "eth7"`) {
		t.Errorf("Start = %v, %v", tr, err)
	}
}

// TestEvents: every drop is shown as it was, and those for which there was no room
func TestEvents(t *testing.T) {
	n := newNetwork(t)
	testutil.Nft(t, n.gateway, "table ip f { chain c { type filter hook prerouting priority raw; udp dport 9 drop; tcp dport 9 drop; }; }")
	seen := make(chan Event, 100)
	tr := start(t, Options{Netns: n.gateway, Events: func(e Event) { seen <- e }})
	before := time.Now()
	toServer(t, n, 3)
	for range 3 {
		e := next(t, seen)
		source := netip.MustParseAddrPort(e.Source)
		want := Event{
			Time: e.Time, Function: e.Function, Offset: e.Offset, Module: e.Module, Reason: e.Reason, Protocol: "udp",
			Source: clientIP + ":" + strings.Split(e.Source, ":")[1], Destination: serverIP + ":9",
			Length: 29, Interface: "eth0", Netns: n.gateway.Inode(),
		}
		if e != want || source.Port() == 0 || !slices.Contains([]string{hook, "nft_do_chain"}, base(e.Function)) {
			t.Errorf("got %+v, want %+v", e, want)
		}
		// The kernel's clock of events and the time of day are compared once, at the start.
		if slack := time.Second; e.Time.Before(before.Add(-slack)) || e.Time.After(time.Now().Add(slack)) {
			t.Errorf("the drop was at %v, sent at %v, seen at %v", e.Time, before, time.Now())
		}
	}
	syn := append(udp(clientIP, serverIP, 64, 0), make([]byte, 11)...)
	syn[9], syn[20+13] = 6, 0x12
	raw(t, n.client, syn, 1)
	if e := next(t, seen); e.TCPFlags != "SYN,ACK" || e.Protocol != "tcp" {
		t.Errorf("got %+v, want a SYN,ACK", e)
	}
	if d := read(t, tr); d.LostEvents != 0 || d.Packets != 4 {
		t.Errorf("%d drops, %d events lost", d.Packets, d.LostEvents)
	}
}

func next(t *testing.T, events <-chan Event) (e Event) {
	t.Helper()
	select {
	case e = <-events:
	case <-time.After(testutil.Patience(time.Minute)):
		t.Fatal("no event came")
	}
	return e
}

// TestLostEventsAreCounted holds the reader back and drops more than a page takes:
// what was shown and what was lost is all.
func TestLostEventsAreCounted(t *testing.T) {
	n := newNetwork(t)
	testutil.Nft(t, n.gateway, "table ip f { chain c { type filter hook prerouting priority raw; udp dport 9 drop; }; }")
	hold, shown := make(chan struct{}), 0
	tr, err := Start(t.Context(), Options{Netns: n.gateway, smallRing: true, Events: func(Event) { <-hold; shown++ }})
	if err != nil {
		t.Fatal(err)
	}
	const count = 500
	toServer(t, n, count)
	d := until(t, tr, count)
	close(hold)
	testutil.Eventually(t, "what is in the ring", func() bool { return tr.ring.reader.AvailableBytes() == 0 })
	if err := tr.Close(); err != nil {
		t.Fatal(err)
	}
	if d.LostEvents == 0 || uint64(shown)+d.LostEvents != count || d.Packets != count {
		t.Errorf("%d events shown and %d lost of %d drops, want %d", shown, d.LostEvents, d.Packets, count)
	}
}

// TestFewDropsAreAllLookedAt, however few of many are.
func TestFewDropsAreAllLookedAt(t *testing.T) {
	n := newNetwork(t)
	testutil.Nft(t, n.gateway, "table ip f { chain c { type filter hook prerouting priority raw; udp dport 9 drop; }; }")
	const count = 60
	tr := start(t, Options{Netns: n.gateway, FlowSample: 1_000_000})
	toServer(t, n, count)
	d := until(t, tr, count)
	if len(d.Flows) != 1 || d.Flows[0].Packets != count {
		t.Errorf("flows %+v of %d drops, want all in one flow", d.Flows, count)
	}
}

// TestSampledFlows: the flow of one drop in each sample is recorded, here all of one flow.
func TestSampledFlows(t *testing.T) {
	n := newNetwork(t)
	testutil.Nft(t, n.gateway, "table ip f { chain c { type filter hook prerouting priority raw; udp dport 9 drop; }; }")
	const count, sample = 20_000, 10
	tr := start(t, Options{Netns: n.gateway, FlowSample: sample})
	toServer(t, n, count)
	d := until(t, tr, count)
	var flows uint64
	for _, f := range d.Flows {
		flows += f.Packets
	}
	// Three standard deviations, and the first 64 on each CPU.
	if flows < count/sample-130 || flows > count/sample+130+64*uint64(runtime.NumCPU()) {
		t.Errorf("%d of %d drops were sampled, want one in %d", flows, count, sample)
	}
	if len(d.Flows) != 1 || d.FlowSample != sample {
		t.Errorf("flows %+v, one in %d; want one flow", d.Flows, d.FlowSample)
	}
}
