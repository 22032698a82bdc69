package load

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// TestHistogramAgainstSorting compares with the exact figures of the same values.
func TestHistogramAgainstSorting(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	a, b := NewHistogram(), NewHistogram()
	var all []float64
	for i := range 20000 {
		v := int64(math.Exp(r.Float64()*14+7)) * int64(time.Microsecond) / 1000
		all = append(all, float64(v)/1e6)
		if i%3 == 0 {
			a.Record(v)
		} else {
			b.Record(v)
		}
	}
	a.Merge(b)
	slices.Sort(all)
	sum, sq := 0.0, 0.0
	for _, v := range all {
		sum += v
	}
	mean := sum / float64(len(all))
	for _, v := range all {
		sq += (v - mean) * (v - mean)
	}
	got := a.Times()
	at := func(q float64) float64 { return all[int(math.Ceil(q*float64(len(all))))-1] }
	for _, c := range []struct {
		name      string
		got, want float64
		within    float64
	}{
		{"min", got.Min, all[0], 0},
		{"max", got.Max, all[len(all)-1], 0},
		{"mean", got.Mean, mean, 1e-9},
		{"sd", got.SD, math.Sqrt(sq / float64(len(all))), 1e-6},
		{"median", got.Median, at(0.5), 2e-3},
		{"p90", got.P90, at(0.9), 2e-3},
		{"p95", got.P95, at(0.95), 2e-3},
		{"p99", got.P99, at(0.99), 2e-3},
		{"p99.9", got.P999, at(0.999), 2e-3},
	} {
		if math.Abs(c.got-c.want) > c.within*c.want {
			t.Errorf("%s: %v, want %v within %v of it", c.name, c.got, c.want, c.within)
		}
	}
}

func TestHistogramEdges(t *testing.T) {
	h := NewHistogram()
	if h.Times() != (Times{}) || h.Quantile(0.5) != 0 {
		t.Errorf("an empty histogram has %+v", h.Times())
	}
	h.Record(-5)
	if got := h.Times(); got.Min != 0 || got.Max != 0 || h.Count() != 1 {
		t.Errorf("a negative value: %+v", got)
	}
	day := int64(24 * time.Hour)
	h.Record(day)
	if got := h.Times(); got.Max != float64(day)/1e6 || h.Count() != 2 || h.Beyond() != 1 || got.P999 < highestNs/1e6*0.999 {
		t.Errorf("a value above the range: %+v, %d beyond", got, h.Beyond())
	}
	h.Reset()
	if h.Count() != 0 || h.Beyond() != 0 || h.Times() != (Times{}) {
		t.Errorf("after Reset: %+v", h.Times())
	}
	one := NewHistogram()
	one.Record(1_234_567)
	if got := one.Times(); got.SD != 0 || got.Median != 1.234567 || got.P999 != 1.234567 {
		t.Errorf("one value: %+v", got)
	}
}

func TestRecordDoesNotAllocate(t *testing.T) {
	tally, in := NewTally(true), NewInterval()
	v := int64(1000)
	if n := testing.AllocsPerRun(1000, func() {
		tally.Complete(Sample{Intended: 0, Start: 1, Connected: v, Sent: v, First: v, Done: v * 2})
		tally.Fail(InWait, TimedOut)
		in.Complete(v)
		v += 7919
	}); n != 0 {
		t.Errorf("%v allocations per request", n)
	}
}
