package simulate

import "slices"

// field is one of the numbers of Counts.
type field uint8

const (
	fConnections field = iota
	fAccepted
	fDelayed
	fFailed
	fNoPort
	fSYNs
	fRetransmits
	fReused
	fPAWS
	fSequence
	fResets
	fSessions
	fSessionsReused
	fTimeWaits
	fOverflow
	fields
)

// tally counts.
type tally [fields]int64

func (t *tally) counts() Counts {
	return Counts{
		Connections: t[fConnections], Accepted: t[fAccepted], Delayed: t[fDelayed], Failed: t[fFailed], NoPort: t[fNoPort],
		SYNs: t[fSYNs], SYNRetransmits: t[fRetransmits], Reused: t[fReused], PAWSRejects: t[fPAWS],
		SequenceRejects: t[fSequence], Resets: t[fResets], Sessions: t[fSessions], SessionsReused: t[fSessionsReused],
		TimeWaits: t[fTimeWaits], TimeWaitOverflow: t[fOverflow],
	}
}

func (t *tally) add(other *tally) {
	for i := range t {
		t[i] += other[i]
	}
}

// waited counts how long clients waited: a few values, as SYNs are repeated after
// fixed times.
type waited map[int64]int64

// summary takes the time of the first SYN's answer, rtt, for those who waited for
// nothing else.
func (w waited) summary(rtt int64) Delay {
	var keys []int64
	var n, sum float64
	for at, count := range w {
		keys = append(keys, at)
		n += float64(count)
		sum += float64(count) * float64(at+rtt)
	}
	if n == 0 {
		return Delay{}
	}
	slices.Sort(keys)
	rank := func(share float64) float64 {
		seen := 0.0
		for _, at := range keys {
			if seen += float64(w[at]); seen >= share*n {
				return seconds(at + rtt)
			}
		}
		return seconds(keys[len(keys)-1] + rtt)
	}
	return Delay{MeanSeconds: sum / n / float64(second), P50Seconds: rank(0.5), P99Seconds: rank(0.99), MaxSeconds: rank(1)}
}

func seconds(at int64) float64 { return float64(at) / float64(second) }

// lives are how long TIME_WAITs stood.
type lives struct{ count, sum, least, longest int64 }

func (l *lives) add(life int64) {
	if l.count == 0 || life < l.least {
		l.least = life
	}
	l.longest = max(l.longest, life)
	l.sum += life
	l.count++
}

func (l *lives) life() Life {
	if l.count == 0 {
		return Life{}
	}
	return Life{MinSeconds: seconds(l.least), MeanSeconds: seconds(l.sum) / float64(l.count), MaxSeconds: seconds(l.longest), Count: l.count}
}
