package simulate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// conserved says what does not add up: connections, SYNs, and the sum of the curve.
func conserved(r *Result) string {
	t := r.Totals
	ends := t.Accepted + t.Delayed + t.Failed
	var curve, batches, servers tally
	for i := range r.Curve {
		c := r.Curve[i].Counts
		curve.add(&tally{fConnections: c.Connections, fAccepted: c.Accepted, fDelayed: c.Delayed, fFailed: c.Failed, fSYNs: c.SYNs, fPAWS: c.PAWSRejects})
		for _, s := range r.Curve[i].Servers {
			servers[fAccepted] += s.Connections
		}
	}
	for _, b := range r.Batches {
		batches[fConnections] += b.Counts.Connections
	}
	switch {
	case ends != t.Connections:
		return fmt.Sprintf("%d connections, %d ended", t.Connections, ends)
	case t.SYNs+t.NoPort != t.Connections+t.SYNRetransmits:
		return fmt.Sprintf("SYNs: %d reached a server, %d the NAT dropped, %d were sent, %d again", t.SYNs, t.NoPort, t.Connections, t.SYNRetransmits)
	case t.SYNs != t.Accepted+t.Delayed+t.Rejects():
		return fmt.Sprintf("%d SYNs: %d accepted, %d rejected", t.SYNs, t.Accepted+t.Delayed, t.Rejects())
	case curve[fConnections] != t.Connections || curve[fFailed] != t.Failed || curve[fSYNs] != t.SYNs || curve[fPAWS] != t.PAWSRejects:
		return "the curve is not the whole"
	case servers[fAccepted] != t.Accepted+t.Delayed:
		return fmt.Sprintf("servers accepted %d of %d", servers[fAccepted], t.Accepted+t.Delayed)
	case len(r.Batches) > 0 && batches[fConnections] != t.Connections:
		return "the batches are not the whole"
	case r.Config.Balancer != nil && t.Sessions+t.SessionsReused == 0 && t.SYNs > 0:
		return "no sessions"
	}
	return ""
}

// Whatever is simulated: nothing is lost, and no port is given twice.
func TestConservation(t *testing.T) {
	for seed := range uint64(200) {
		c := anyConfig(1000 + seed)
		f := c.filled()
		e := newEngine(&f)
		for n := 0; !e.done(); n++ {
			if err := e.step(t.Context()); err != nil {
				t.Fatal(err)
			}
			if n%2000 == 0 {
				e.sound(t, seed)
			}
		}
		e.sample()
		if problem := conserved(e.result()); problem != "" {
			t.Errorf("seed %d: %s", seed, problem)
		}
		e.sound(t, seed)
	}
}

// sound fails where the parts of the state do not fit together.
func (e *engine) sound(t *testing.T, seed uint64) {
	t.Helper()
	for _, problem := range []string{e.portsHeld(), e.socketsLinked()} {
		if problem != "" {
			t.Fatalf("seed %d: %s", seed, problem)
		}
	}
}

// portsHeld compares the bits, the count of free ports, and what each slot says.
func (e *engine) portsHeld() string {
	for i := range e.ports {
		taken := 0
		for port := range e.portCount {
			until, has := e.slots[e.slotOf(int32(i), port)].heldUntil, e.ports[i].has(port)
			if has {
				taken++
			}
			if until > e.now && !has || until < e.now && has {
				return fmt.Sprintf("port %d of %d: taken %v, held until %d, now %d", port, i, has, until, e.now)
			}
		}
		if e.ports[i].free != e.portCount-taken {
			return fmt.Sprintf("%d ports taken, %d free of %d", taken, e.ports[i].free, e.portCount)
		}
	}
	return ""
}

// socketsLinked compares the servers' counts of TIME_WAITs with those of the slots, where
// a server has at most one.
func (e *engine) socketsLinked() string {
	counts := make([]int32, len(e.servers))
	for i := range e.slots {
		seen := map[int16]bool{}
		for n := e.slots[i].timeWait; n != none; n = e.nodes[n].next {
			s := e.nodes[n].server
			if counts[s]++; seen[s] || int(e.nodes[n].slot) != i {
				return fmt.Sprintf("slot %d: server %d twice, or another slot's", i, s)
			}
			seen[s] = true
		}
	}
	for i := range e.servers {
		if counts[i] != e.servers[i].count {
			return fmt.Sprintf("server %d counts %d TIME_WAITs, there are %d", i, e.servers[i].count, counts[i])
		}
	}
	return ""
}

// The same seed gives the same result, and another one another.
func TestSeed(t *testing.T) {
	c := anyConfig(3)
	first, again := run(t, c), run(t, c)
	if diff := cmp.Diff(first, again); diff != "" {
		t.Error(diff)
	}
	c.Seed++
	if other := run(t, c); cmp.Equal(first.Totals, other.Totals) {
		t.Error("another seed gives the same")
	}
}

// Run leaves the configuration that it is given as it was.
func TestRunChangesNothing(t *testing.T) {
	c, same := anyConfig(4), anyConfig(4)
	run(t, c)
	if diff := cmp.Diff(same, c); diff != "" {
		t.Error(diff)
	}
}

func TestCancel(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	c := sourceCase(Servers{Name: "s"})
	c.Arrivals, c.Duration.Duration = &Arrivals{Rate: 1000}, 10*time.Hour
	calls := 0
	r, err := Run(ctx, c, func(p Progress) {
		if calls++; calls == 1 {
			cancel()
		}
	})
	if r != nil || !errors.Is(err, context.Canceled) || calls != 1 {
		t.Errorf("result %v, error %v, %d calls", r, err, calls)
	}
}

func TestProgress(t *testing.T) {
	c := sourceCase(Servers{Name: "s"})
	c.Arrivals = &Arrivals{Rate: 10}
	var all []Progress
	if _, err := Run(t.Context(), c, func(p Progress) { all = append(all, p) }); err != nil {
		t.Fatal(err)
	}
	last := Progress{}
	for _, p := range all {
		if p.Seconds <= last.Seconds || p.Seconds > p.Total || p.Total != 3600 || p.Connections < last.Connections {
			t.Fatalf("%+v after %+v", p, last)
		}
		last = p
	}
	if len(all) < 80 || len(all) > 120 || last.Seconds != 3600 {
		t.Errorf("%d calls, the last one %+v", len(all), last)
	}
}

// A course of batches that takes long has a curve of bounded size, which is the whole.
func TestThinning(t *testing.T) {
	c := sourceCase(Servers{Name: "s"})
	c.Duration.Duration, c.Interval.Duration = 0, time.Second
	c.Batches = []Batch{{Connections: 10}, {Connections: 100, Pause: Duration{day / 2}, Rate: 0.1}}
	r := run(t, c)
	if len(r.Curve) > 2*mostPoints || r.IntervalSeconds < 2 || r.Curve[1].StartSeconds != r.IntervalSeconds {
		t.Errorf("%d points of %v s, the second at %v", len(r.Curve), r.IntervalSeconds, r.Curve[1].StartSeconds)
	}
	if problem := conserved(r); problem != "" {
		t.Error(problem)
	}
	// Many points of many sessions.
	c = anyConfig(8)
	c.Balancer, c.Interval.Duration = &Balancer{}, 100*time.Millisecond
	f := c.filled()
	e := newEngine(&f)
	e.scanBudget = 100 * len(e.sessions)
	if err := e.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r = e.result(); r.IntervalSeconds < 0.8 || len(r.Curve) > 500 || conserved(r) != "" {
		t.Errorf("%d points of %v s: %s", len(r.Curve), r.IntervalSeconds, conserved(r))
	}
}

// A result can be read back from JSON.
func TestResultJSON(t *testing.T) {
	want := run(t, anyConfig(7))
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	got := new(Result)
	if err := json.Unmarshal(text, got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Error(diff)
	}
}
