package simulate

import (
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

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
		fill(reflect.ValueOf(&g))
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
