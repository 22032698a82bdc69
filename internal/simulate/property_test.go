package simulate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
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
	c.Batches = []Batch{{Connections: 10}, {Connections: 100, Pause: Duration{3 * day}, Rate: 0.01}}
	r := run(t, c)
	if len(r.Curve) > 2*mostPoints || r.IntervalSeconds < 2 || r.Curve[1].StartSeconds != r.IntervalSeconds {
		t.Errorf("%d points of %v s, the second at %v", len(r.Curve), r.IntervalSeconds, r.Curve[1].StartSeconds)
	}
	if problem := conserved(r); problem != "" {
		t.Error(problem)
	}
}

// Curves: values, and as many arrivals as they promise.
func TestCurves(t *testing.T) {
	hours := make([]float64, 24)
	hours[10], hours[11] = 100, 200
	for _, tt := range []struct {
		name         string
		a            Arrivals
		start, since time.Duration
		want         float64
	}{
		{"constant", Arrivals{Rate: 7}, 0, time.Hour, 7},
		{"middle of an hour", Arrivals{Hours: hours}, 10 * time.Hour, 30 * time.Minute, 100},
		{"between hours", Arrivals{Hours: hours}, 10 * time.Hour, time.Hour, 150},
		{"around midnight", Arrivals{Hours: append(hours[1:], 24)}, 23 * time.Hour, time.Hour, 12},
		{"the next day", Arrivals{Hours: hours}, 10 * time.Hour, 24*time.Hour + 90*time.Minute, 200},
		{"peak", Arrivals{Daily: &Daily{10, 90, Duration{11 * time.Hour}}}, 9 * time.Hour, 2 * time.Hour, 90},
		{"night", Arrivals{Daily: &Daily{10, 90, Duration{11 * time.Hour}}}, 23 * time.Hour, 0, 10},
		{"before the points", Arrivals{Points: []RatePoint{{Duration{time.Minute}, 5}}}, 0, 0, 5},
		{"between the points", Arrivals{Points: []RatePoint{{Rate: 10}, {Duration{time.Minute}, 20}}}, 0, 15 * time.Second, 12.5},
		{"after the points", Arrivals{Points: []RatePoint{{Rate: 10}, {Duration{time.Minute}, 20}}}, 0, time.Hour, 20},
	} {
		if got := tt.a.At(tt.start, tt.since); math.Abs(got-tt.want) > 1e-9 {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
	c := sourceCase(Servers{Name: "s"})
	for _, spacing := range []string{SpacingEven, SpacingPoisson} {
		c.Arrivals = &Arrivals{Daily: &Daily{Low: 5, High: 15, Peak: Duration{30 * time.Minute}}, Spacing: spacing}
		near(t, spacing, float64(run(t, c).Totals.Connections), c.total(), 0.015)
	}
}

// The times between SYNs are those of the kernel.
func TestSYNWaits(t *testing.T) {
	number := func(n int) *int { return &n }
	span := func(d time.Duration) *Duration { return &Duration{d} }
	for _, tt := range []struct {
		name  string
		s     SYN
		hurry bool
		want  []float64
	}{
		{"Linux 6.5", SYN{}, false, []float64{1, 1, 1, 1, 1, 2, 4, 8, 16, 32, 64}},
		{"hastened", SYN{}, true, []float64{0.008, 1, 1, 1, 1, 2, 4, 8, 16, 32, 64}},
		{"before", SYN{Linear: number(0), AfterACK: span(0)}, false, []float64{1, 2, 4, 8, 16, 32, 64}},
		{"Linux 2.6", SYN{Linear: number(0), First: Duration{3 * time.Second}, Retries: number(5)}, false, []float64{3, 6, 12, 24, 48, 96}},
		{"120 s at most", SYN{Linear: number(0), First: Duration{50 * time.Second}, Retries: number(3)}, false, []float64{50, 100, 120, 120}},
		{"application", SYN{Linear: number(0), Timeout: Duration{5 * time.Second}}, false, []float64{1, 2, 2}},
		{"no repetition", SYN{Retries: number(0), Linear: number(0)}, false, []float64{1}},
		{"impatient", SYN{Timeout: Duration{time.Second}}, false, []float64{1}},
	} {
		g := Clients{SYN: tt.s}
		g.fill()
		first := g.SYN.First.Duration
		if tt.hurry {
			first = g.SYN.AfterACK.Duration
		}
		var got []float64
		for _, w := range g.SYN.waits(first) {
			got = append(got, seconds(w))
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s: %s", tt.name, diff)
		}
	}
}

// tcp_timewait_state_process: what it makes of a SYN.
func TestTimeWaitSYN(t *testing.T) {
	const minute = 60 * second
	for _, tt := range []struct {
		name       string
		t          timeWait
		isn, stamp uint32
		stamps     bool
		want       verdict
	}{
		{"newer timestamp", timeWait{rcvNxt: 1000, tsRecent: 500, hasStamps: true}, 0, 501, true, twSYN},
		{"the same timestamp, older number", timeWait{rcvNxt: 1000, tsRecent: 500, hasStamps: true}, 1000, 500, true, twSequence},
		{"the same timestamp, newer number", timeWait{rcvNxt: 1000, tsRecent: 500, hasStamps: true}, 1001, 500, true, twSYN},
		{"older timestamp", timeWait{rcvNxt: 1000, tsRecent: 500, hasStamps: true}, 5000, 499, true, twPAWS},
		{"timestamps wrap", timeWait{rcvNxt: 1000, tsRecent: 0xfffffff0, hasStamps: true}, 0, 16, true, twSYN},
		{"half the way round", timeWait{rcvNxt: 1000, tsRecent: 1, hasStamps: true}, 5000, 1<<31 + 2, true, twPAWS},
		{"of 24 days ago", timeWait{rcvNxt: 1000, tsRecent: 500, born: minute - paws24Days, hasStamps: true}, 5000, 499, true, twSYN},
		{"zero says nothing", timeWait{rcvNxt: 1000, tsRecent: 0, hasStamps: true}, 5000, 0xffffffff, true, twSYN},
		{"client without timestamps", timeWait{rcvNxt: 1000, tsRecent: 500, hasStamps: true}, 999, 0, false, twSequence},
		{"connection without timestamps", timeWait{rcvNxt: 1000}, 999, 1, true, twSequence},
		{"sequence numbers wrap", timeWait{rcvNxt: 0xfffffff0}, 16, 0, false, twSYN},
	} {
		if got := tt.t.syn(tt.isn, tt.stamp, tt.stamps, minute); got != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, got, tt.want)
		}
	}
}

// Incidents: what is apart by some intervals is two.
func TestIncidents(t *testing.T) {
	r := &Result{Seconds: 100}
	for i := range 10 {
		r.Curve = append(r.Curve, Point{StartSeconds: float64(10 * i), Counts: Counts{Connections: int64(100 + 10*i)}})
	}
	for _, i := range []int{1, 3, 8, 9} {
		r.Curve[i].Counts.PAWSRejects = 5
	}
	r.Curve[2].Counts.Sessions, r.Curve[2].Counts.SessionsReused = 1, 2
	want := []Incident{
		{Kind: IncidentRejects, StartSeconds: 10, EndSeconds: 40, Rate: 11, Count: 10},
		{Kind: IncidentSessions, StartSeconds: 20, EndSeconds: 30, Rate: 12, Count: 2},
		{Kind: IncidentRejects, StartSeconds: 80, EndSeconds: 100, Rate: 18, Count: 10},
	}
	if diff := cmp.Diff(want, incidents(r)); diff != "" {
		t.Error(diff)
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
