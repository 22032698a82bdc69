package aggregate

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/conntrack"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/unix"
)

// idleEntry is an ESTABLISHED one with so much time left.
func idleEntry(left uint32, status conntrack.Status) conntrack.Entry {
	e := samples[0]
	e.Orig.Proto, e.Reply.Proto = unix.IPPROTO_TCP, unix.IPPROTO_TCP
	e.TCPState, e.Timeout, e.Status = conntrack.TCPEstablished, left, status|conntrack.SeenReply|conntrack.Assured
	return e
}

func TestIdleSample(t *testing.T) {
	const timeout = 432000
	s := NewSampler()
	s.EstablishedTimeout(timeout)
	closed := idleEntry(100, 0)
	closed.TCPState = conntrack.TCPTimeWait
	for _, e := range []conntrack.Entry{
		idleEntry(timeout, 0), idleEntry(timeout-59, 0), idleEntry(timeout-60, 0),
		idleEntry(timeout-7439, 0), idleEntry(timeout-7440, 0), idleEntry(timeout-86400, 0), idleEntry(301, 0),
		idleEntry(300, 0), idleEntry(0, 0), // in use: they wait for an acknowledgement
		idleEntry(timeout+1000, 0), // made under a longer timeout: not known to be idle
		idleEntry(43200, conntrack.Offload), idleEntry(10, conntrack.FixedTimeout), closed,
	} {
		s.Add(&e)
	}
	got := s.Table(true).Idle
	want := []snapshot.IdleBand{
		{FromSeconds: 0, Entries: 3}, {FromSeconds: 60, Entries: 1}, {FromSeconds: 600, Entries: 1},
		{FromSeconds: 7440, Entries: 1}, {FromSeconds: 86400, Entries: 2},
	}
	if d := cmp.Diff(want, got.Bands); d != "" || got.Entries != 8 || got.TimeoutSeconds != timeout {
		t.Errorf("%+v (-want +got):\n%s", got, d)
	}
	if got.IdleFrom(snapshot.IdleLong) != 3 || got.Sources[0].Entries != 3 {
		t.Errorf("idle for long: %d entries, sources %v", got.IdleFrom(snapshot.IdleLong), got.Sources)
	}
}

func TestBirthsOfUnansweredBySource(t *testing.T) {
	b := NewFlowEstimator(1)
	b.EndFirst(true)
	b.BeginSecond(Gap{Seconds: 2})
	e := samples[0]
	for port := range 30 {
		e.Orig.SrcPort, e.Status, e.TCPState = uint16(port+1), conntrack.Confirmed, conntrack.TCPSynSent
		if port%3 == 0 {
			e.Status |= conntrack.SeenReply
		}
		b.Second(&e)
	}
	f := b.Flows(2, 30, true)
	want := []snapshot.Rate{{Who: "tcp " + e.Orig.Src.String(), PerSecond: 10}}
	if d := cmp.Diff(want, f.Unanswered); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestUnanswered(t *testing.T) {
	s := NewSampler()
	e := samples[0]
	e.Orig.Proto, e.Reply.Proto = unix.IPPROTO_UDP, unix.IPPROTO_UDP
	for _, c := range []struct {
		port   uint16
		status conntrack.Status
	}{{53, 0}, {53, conntrack.SeenReply}, {443, 0}, {8472, 0}, {4789, 0}, {514, 0}, {8125, 0}} {
		e.Orig.DstPort, e.Status = c.port, c.status|conntrack.Confirmed
		s.Add(&e)
	}
	if got := s.Table(true).Unanswered; got.UDP != 2 || got.Sources[0].Entries != 2 {
		t.Errorf("%d UDP, %+v: tunnels and reports have no answer to wait for", got.UDP, got.Sources)
	}
}

func askerEntry(port uint16, left uint32) conntrack.Entry {
	e := conntrack.Entry{Family: unix.AF_INET, Status: conntrack.Confirmed, Timeout: left, ID: uint32(port)}
	e.Orig = conntrack.Tuple{
		Src: netip.MustParseAddr("198.18.0.2"), Dst: netip.MustParseAddr("198.18.0.1"),
		Proto: unix.IPPROTO_UDP, SrcPort: port, DstPort: 53,
	}
	e.Reply = e.Orig.Mirror()
	e.Reply.Src = netip.MustParseAddr("198.19.0.2")
	return e
}

func TestOneWay(t *testing.T) {
	const gap = 5
	now := time.Unix(2000, 0)
	tests := map[string]struct {
		left             [2]uint32
		change           func(first, second *conntrack.Entry)
		entries          int64
		oldestSeconds    float64
		answered, silent bool
		given            string
	}{
		"a packet came": {left: [2]uint32{28, 29}, entries: 1, oldestSeconds: gap - tickSeconds},
		"none came":     {left: [2]uint32{28, 23}},
		"a packet came a moment after the first dump": {left: [2]uint32{29, 24}}, // undetectable
		"the kernel reports the age": {left: [2]uint32{28, 29}, entries: 1, oldestSeconds: 1000,
			change: func(a, b *conntrack.Entry) { a.Start, b.Start = 1000e9, 1000e9 }},
		"answered since":  {left: [2]uint32{28, 29}, change: func(_, b *conntrack.Entry) { b.Status |= conntrack.SeenReply }},
		"answered before": {left: [2]uint32{28, 29}, change: func(a, b *conntrack.Entry) { a.Status |= conntrack.SeenReply; b.Status |= conntrack.SeenReply }, entries: 1, oldestSeconds: gap - tickSeconds, answered: true},
		"answered before, and by the counters no more": {left: [2]uint32{28, 29}, change: func(a, b *conntrack.Entry) { countedEntry(a, 7, 7); countedEntry(b, 9, 7) }, entries: 1, oldestSeconds: gap - tickSeconds, answered: true, silent: true},
		"answered, by the counters":                    {left: [2]uint32{28, 29}, change: func(a, b *conntrack.Entry) { countedEntry(a, 7, 7); countedEntry(b, 9, 9) }},
		"answered, and not translated":                 {left: [2]uint32{28, 29}, change: func(a, b *conntrack.Entry) { untranslated(a); untranslated(b) }},
		"answered before, with another source":         {left: [2]uint32{28, 29}, change: func(a, b *conntrack.Entry) { masked(a); masked(b) }, entries: 1, oldestSeconds: gap - tickSeconds, answered: true, given: "203.0.113.1"},
		"answered with another source, by the counters": {left: [2]uint32{28, 29}, change: func(a, b *conntrack.Entry) {
			masked(a)
			masked(b)
			countedEntry(a, 7, 7)
			countedEntry(b, 9, 9)
		}},
		"another connection":     {left: [2]uint32{28, 29}, change: func(_, b *conntrack.Entry) { b.ID++ }},
		"translated by a helper": {left: [2]uint32{28, 29}, change: func(a, b *conntrack.Entry) { a.Status |= conntrack.Expected; b.Status |= conntrack.Expected }},
		"TCP": {left: [2]uint32{28, 29}, change: func(a, b *conntrack.Entry) {
			a.Orig.Proto, b.Orig.Proto = unix.IPPROTO_TCP, unix.IPPROTO_TCP
		}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			first, second := askerEntry(1000, tc.left[0]), askerEntry(1000, tc.left[1])
			if tc.change != nil {
				tc.change(&first, &second)
			}
			b := NewFlowEstimator(1)
			b.First(&first)
			b.EndFirst(true)
			b.BeginSecond(Gap{Seconds: gap, Now: now})
			b.Second(&second)
			f := b.Flows(gap, 1, true)
			if !f.OneWayKnown {
				t.Error("it was not looked for")
			}
			var want []snapshot.OneWay
			if tc.entries > 0 {
				want = []snapshot.OneWay{{
					Service: netip.MustParseAddrPort("198.18.0.1:53"), Target: netip.MustParseAddrPort("198.19.0.2:53"),
					Entries: tc.entries, OldestSeconds: tc.oldestSeconds, Source: first.Orig.Src,
					HadAnswers: tc.answered, Silent: tc.silent,
				}}
				if tc.given != "" {
					want[0].Target, want[0].Given = want[0].Service, netip.MustParseAddr(tc.given)
				}
			}
			if d := cmp.Diff(want, slices.Clone(f.OneWay), addrPorts); d != "" && (len(want) > 0 || len(f.OneWay) > 0) {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

// countedEntry makes an entry one that had answers, and whose packets the kernel counts.
func countedEntry(e *conntrack.Entry, sent, received uint64) {
	e.Status |= conntrack.SeenReply
	e.Fields |= conntrack.HasCounters
	e.Sent.Packets, e.Received.Packets = sent, received
}

func untranslated(e *conntrack.Entry) {
	e.Status |= conntrack.SeenReply
	e.Reply.Src = e.Orig.Dst
}

// masked makes an entry one that had answers and of which the source alone is translated.
func masked(e *conntrack.Entry) {
	untranslated(e)
	e.Reply.Dst = netip.MustParseAddr("203.0.113.1")
}

var addrPorts = cmp.Options{
	cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }), cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
}

// A scan reaches more destinations than are kept; a translation is found all the same.
func TestOneWayIsBounded(t *testing.T) {
	var entries []conntrack.Entry
	for i := range 3 * keptOneWay {
		e := askerEntry(2000, 28)
		e.Orig.Dst = netip.AddrFrom4([4]byte{198, 19, byte(i >> 8), byte(i)})
		e.Reply = e.Orig.Mirror()
		entries = append(entries, e)
	}
	entries = append(entries, askerEntry(1000, 28))
	b := NewFlowEstimator(1)
	for i := range entries {
		b.First(&entries[i])
	}
	b.EndFirst(true)
	b.BeginSecond(Gap{Seconds: 5})
	for i := range entries {
		entries[i].Timeout = 29
		b.Second(&entries[i])
	}
	f := b.Flows(5, int64(len(entries)), true)
	if len(b.oneWay.found) != keptOneWay+1 || len(f.OneWay) != shownOneWay || !f.OneWay[0].Translated() {
		t.Errorf("%d kept, %d listed, first %+v", len(b.oneWay.found), len(f.OneWay), f.OneWay[0])
	}
}
