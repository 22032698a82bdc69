package ports

import "math"

// forever is longer than anybody waits.
const forever = 30 * 86400

// Never is SecondsLeft where the ports do not run out, or where it is not known.
const Never = -1

// SecondsLeft is how long the ports of a range last: used of size now, which grew
// by came and shrank by went in so many seconds. The connections' mean lifetime is
// taken from what went; at the present rate the ports then come to a level, and if
// that is below the range they last forever. A growth that chance explains (two
// standard deviations of arrivals and departures) is none. Where none went, every
// port is held for longer than the time that was watched, and the growth goes on.
func SecondsLeft(size, used int, came, went int64, seconds float64) float64 {
	left := float64(size - used)
	net := float64(came - went)
	if seconds <= 0 || net <= 2*math.Sqrt(float64(came+went)) {
		if left <= 0 && came > 0 {
			return 0
		}
		return Never
	}
	if left <= 0 {
		return 0
	}
	rate := float64(came) / seconds
	if went == 0 {
		return bounded(left / rate)
	}
	// du/dt = rate - u/lifetime. The number in use was, on average, the mean of what
	// it was before and after.
	lifetime := (float64(used) - net/2) * seconds / float64(went)
	level := rate * lifetime
	if level <= float64(size) {
		return Never
	}
	return bounded(lifetime * math.Log((level-float64(used))/(level-float64(size))))
}

func bounded(seconds float64) float64 {
	if !(seconds < forever) {
		return Never
	}
	return max(0, seconds)
}

// takenShare is how often the preferred port of a new connection is taken, from
// the ports that new connections kept and from those that were moved: as a part of
// fails of the moved ones is not seen, each stands for 1/(1-fails). Where there
// are few, or where none that is moved survives, the part of the range that is in
// use counts.
func takenShare(kept, moved int64, fails, usedShare float64) (share float64, seen bool) {
	survive := 1 - fails
	if kept+moved == 0 || survive < 0.005 {
		return usedShare, false
	}
	was := float64(moved) / survive
	return (was + usedShare) / (float64(kept) + was + 1), true
}
