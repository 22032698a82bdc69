package load

import (
	"math"
	"time"
)

// Pace is the schedule of an open loop: request k is due k/PerSecond after the
// start, whatever became of the requests before it.
type Pace struct{ PerSecond float64 }

// never is a time after every run's end.
const never = time.Duration(math.MaxInt64)

// At is when request k (from 0) is due.
func (p Pace) At(k int64) time.Duration {
	at := math.Ceil(float64(k) / p.PerSecond * 1e9)
	if at >= float64(never) || math.IsNaN(at) {
		return never
	}
	return time.Duration(at)
}

// Due is how many requests are due once elapsed has passed: those with
// At(k) <= elapsed.
func (p Pace) Due(elapsed time.Duration) int64 {
	if elapsed < 0 {
		return 0
	}
	k := int64(elapsed.Seconds()*p.PerSecond) + 1
	// Rounding may be off by one either way; At decides.
	for k > 0 && p.At(k-1) > elapsed {
		k--
	}
	for p.At(k) <= elapsed {
		k++
	}
	return k
}
