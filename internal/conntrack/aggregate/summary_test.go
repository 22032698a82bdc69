package aggregate

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/unix"
)

func overviewOf(t Timeouts, entries []conntrack.Entry) *Overview {
	s := NewSummary(roomy())
	for i := range entries {
		s.Add(&entries[i])
	}
	return s.Overview(2, t)
}

func TestOverview(t *testing.T) {
	o := overviewOf(Timeouts{}, variety())
	o.Idle = nil // tested apart
	sixth := func(n int64) float64 { return float64(n) / 6 }
	want := &Overview{
		Entries:   6,
		Families:  []Part{{"ipv4", 5, sixth(5), 0}, {"ipv6", 1, sixth(1), 0}},
		Protocols: []Part{{"tcp", 3, 0.5, 0}, {"icmp", 1, sixth(1), 0}, {"udp", 1, sixth(1), 0}, {"sctp", 1, sixth(1), 0}},
		TCPStates: []Part{{"ESTABLISHED", 1, 1. / 3, 0}, {"TIME_WAIT", 1, 1. / 3, 0}, {"-", 1, 1. / 3, 0}},
		Status: []Part{{"unreplied", 2, sixth(2), 0}, {"answered", 4, sixth(4), 0},
			{"assured", 3, sixth(3), 0}, {"offloaded", 2, sixth(2), 0}},
		Translated:   []Part{{"none", 3, sixth(3), 0}, {"snat", 1, sixth(1), 0}, {"dnat", 1, sixth(1), 0}, {"both", 1, sixth(1), 0}},
		Zones:        Frequent{3, true, 0, []Part{{"0", 4, sixth(4), 0}, {"3", 1, sixth(1), 0}, {"orig 4, reply 0", 1, sixth(1), 0}}},
		Sources:      Frequent{3, true, 0, []Part{{"198.18.0.1", 3, sixth(3), 0}, {"198.18.1.2", 2, sixth(2), 0}}},
		Destinations: Frequent{3, true, 0, []Part{{"203.0.113.1", 3, sixth(3), 0}, {"203.0.113.2", 2, sixth(2), 0}}},
		Services:     Frequent{5, true, 0, []Part{{"tcp 203.0.113.1:443", 2, sixth(2), 0}, {"icmp 203.0.113.1", 1, sixth(1), 0}}},
	}
	if d := cmp.Diff(want, o); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

func TestOverviewOfNothing(t *testing.T) {
	o := overviewOf(Timeouts{}, nil)
	if o.Entries != 0 || o.Idle != nil || len(o.Protocols) != 0 || o.Sources.Different != 0 || !o.Sources.Exact {
		t.Errorf("got %+v", o)
	}
}

// TestOverviewSketched: where sources find no room their counts say so.
func TestOverviewSketched(t *testing.T) {
	s := NewSummary(Memory{Budget: NewBudget(0), Seed: 1})
	e := entry(unix.IPPROTO_TCP, "198.18.0.1:1", "203.0.113.1:80")
	for i := range 20_000 {
		raw := [4]byte{198, 18, byte(i >> 8), byte(i)}
		e.Orig.Src = netip.AddrFrom4(raw)
		s.Add(&e)
	}
	o := s.Overview(5, Timeouts{})
	if o.Sources.Exact || o.Sources.Bound == 0 || o.Sources.Top[0].Excess == 0 {
		t.Errorf("sources: %+v", o.Sources)
	}
	if !o.Destinations.Exact || o.Destinations.Top[0].Entries != 20_000 {
		t.Errorf("destinations: %+v", o.Destinations)
	}
}

func established(left uint32, status conntrack.Status) conntrack.Entry {
	e := entry(unix.IPPROTO_TCP, "198.18.0.1:1", "203.0.113.1:80")
	e.Timeout, e.Status = left, status
	return e
}

func TestIdle(t *testing.T) {
	const assured = conntrack.SeenReply | conntrack.Assured
	entries := []conntrack.Entry{
		established(432000, assured), established(431940, assured), // now, a minute ago
		established(431939, assured), established(431400, assured),
		established(428400, assured), established(428399, assured),
		established(345600, assured), established(345599, assured),
		established(300, assured), established(299, assured), established(5, assured),
		established(500000, assured),
		// None of these ages by packets.
		established(1, assured|conntrack.Offload), established(1, assured|conntrack.FixedTimeout),
	}
	entries = append(entries, established(7, assured))
	entries[len(entries)-1].TCPState = conntrack.TCPTimeWait
	none := established(0, assured)
	none.Fields = conntrack.NoTimeout
	entries = append(entries, none)

	idle := overviewOf(Timeouts{Established: 432000, Short: 300}, entries).Idle
	share := func(n int64) float64 { return float64(n) / 12 }
	want := &Idle{Timeout: 432000, TimeoutFrom: TimeoutRead, Entries: 12, ShortTimeout: 300, Waiting: 2, Unknown: 1,
		Steps: []IdleStep{{60, 2, share(2)}, {600, 2, share(2)}, {3600, 1, share(1)}, {21600, 1, share(1)}, {86400, 1, share(1)}, {0, 2, share(2)}}}
	if d := cmp.Diff(want, idle); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

func TestIdleTimeout(t *testing.T) {
	for _, tt := range []struct {
		known   Timeouts
		largest uint32
		want    uint32
		from    string
	}{
		{Timeouts{Established: 86400}, 86390, 86400, TimeoutRead},
		{Timeouts{}, 431_990, 432_000, TimeoutDefault},
		{Timeouts{}, 432_000, 432_000, TimeoutDefault},
		{Timeouts{}, 86_395, 86_395, TimeoutLargest},
		{Timeouts{}, 500_000, 500_000, TimeoutLargest},
		{Timeouts{}, 0, 0, TimeoutLargest},
		{Timeouts{}, 1<<32 - 1, restMax, TimeoutLargest},
	} {
		idle := overviewOf(tt.known, []conntrack.Entry{established(tt.largest, 0), established(tt.largest/2, 0)}).Idle
		if idle.Timeout != tt.want || idle.TimeoutFrom != tt.from {
			t.Errorf("largest %d: %d from %s, want %d from %s", tt.largest, idle.Timeout, idle.TimeoutFrom, tt.want, tt.from)
		}
	}
}

func TestSummaryAllocatesNothing(t *testing.T) {
	s, entries := NewSummary(roomy()), variety()
	add := func() {
		for i := range entries {
			s.Add(&entries[i])
		}
	}
	add()
	if n := testing.AllocsPerRun(100, add); n != 0 {
		t.Errorf("%v allocations for %d entries", n, len(entries))
	}
}
