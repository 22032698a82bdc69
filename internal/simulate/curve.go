package simulate

import (
	"math"
	"math/rand/v2"
	"sort"
	"time"
)

const (
	second = int64(time.Second)
	day    = 24 * time.Hour
)

// At is the curve's value, in connections per second, so long after the beginning,
// which is at the time of day start.
func (a *Arrivals) At(start, since time.Duration) float64 {
	switch {
	case len(a.Hours) > 0:
		return hourly(a.Hours, start+since)
	case a.Daily != nil:
		phase := 2 * math.Pi * (start + since - a.Daily.Peak.Duration).Hours() / 24
		return a.Daily.Low + (a.Daily.High-a.Daily.Low)*(1+math.Cos(phase))/2
	case len(a.Points) > 0:
		return between(a.Points, since)
	}
	return a.Rate
}

// hourly goes from the middle of each hour to that of the next.
func hourly(hours []float64, at time.Duration) float64 {
	h := math.Mod((at%day).Hours()-0.5+24, 24)
	n := int(h)
	share := h - float64(n)
	return hours[n]*(1-share) + hours[(n+1)%24]*share
}

func between(points []RatePoint, at time.Duration) float64 {
	n := sort.Search(len(points), func(i int) bool { return points[i].At.Duration > at })
	switch n {
	case 0:
		return points[0].Rate
	case len(points):
		return points[n-1].Rate
	}
	a, b := points[n-1], points[n]
	share := float64(at-a.At.Duration) / float64(b.At.Duration-a.At.Duration)
	return a.Rate*(1-share) + b.Rate*share
}

// stream gives the times of arrivals by a curve. Within a second the rate is that of
// its middle.
type stream struct {
	arrivals *Arrivals
	start    time.Duration
	share    float64 // connections for each arrival
	even     bool
	random   *rand.Rand
	end      int64
	// at is the last arrival, rate that of the second whose end is known.
	at, secondEnd, rate float64
}

func newStream(c *Config, random *rand.Rand) *stream {
	return &stream{
		arrivals: c.Arrivals, start: c.Start.Duration, share: 1 / float64(c.Connection.Requests),
		even: c.Arrivals.Spacing == SpacingEven, random: random, end: int64(c.Duration.Duration),
	}
}

// next is the time of the next arrival, never after the end.
func (s *stream) next() int64 {
	need := 1.0
	if !s.even {
		need = s.random.ExpFloat64()
	}
	for {
		if left := (s.secondEnd - s.at) * s.rate; need <= left {
			s.at += need / s.rate
			if at := int64(s.at); at < s.end {
				return at
			}
			return never
		} else if s.secondEnd >= float64(s.end) {
			return never
		} else {
			need -= left
		}
		s.at = s.secondEnd
		middle := time.Duration(s.at) + time.Second/2
		s.rate = s.arrivals.At(s.start, middle) * s.share / float64(second)
		s.secondEnd += float64(second)
	}
}
