package load

import (
	"github.com/natkit/natkit/internal/testutil"
	"testing"
	"time"
)

func TestPace(t *testing.T) {
	p := Pace{PerSecond: 1000}
	for k, want := range map[int64]time.Duration{0: 0, 1: time.Millisecond, 2500: 2500 * time.Millisecond} {
		if got := p.At(k); got != want {
			t.Errorf("request %d at %v, want %v", k, got, want)
		}
	}
	for elapsed, want := range map[time.Duration]int64{
		-1: 0, 0: 1, time.Millisecond - 1: 1, time.Millisecond: 2, time.Second: 1001,
	} {
		if got := p.Due(elapsed); got != want {
			t.Errorf("%d due after %v, want %d", got, elapsed, want)
		}
	}
	if got := (Pace{PerSecond: 1e-9}).At(1 << 60); got != never {
		t.Errorf("far future at %v", got)
	}
}

// FuzzPace holds that Due counts exactly the requests that At has had by then.
func FuzzPace(f *testing.F) {
	f.Add(1000.0, int64(12345))
	f.Add(3.0, int64(1))
	f.Add(99999.7, int64(1<<40))
	f.Fuzz(func(t *testing.T, rate float64, elapsed int64) {
		defer testutil.Bounded(t, 16)()
		if !(rate >= 0.01 && rate <= 1e8) || elapsed < 0 || elapsed > int64(100*time.Hour) {
			return
		}
		p := Pace{PerSecond: rate}
		e := time.Duration(elapsed)
		n := p.Due(e)
		if n > 0 && p.At(n-1) > e || p.At(n) <= e {
			t.Fatalf("%d due after %v at %v/s, but they are due at %v and %v", n, e, rate, p.At(n-1), p.At(n))
		}
	})
}
