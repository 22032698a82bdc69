package pair

import (
	"cmp"
	"slices"

	"github.com/natkit/natkit/internal/load"
)

// prefix is how many packets of each capture are read ahead to compare the clocks.
const prefix = 20_000

// bounds of the second clock's offset, one from each direction: beyond them packets would come
// out before they went in.
type bounds struct {
	low, high       int64
	hasLow, hasHigh bool
}

// add takes a packet: difference is its time in the second capture less that in the first.
func (b *bounds) add(direction uint8, difference int64) {
	switch {
	case direction == fromFirst && (!b.hasHigh || difference < b.high):
		b.high, b.hasHigh = difference, true
	case direction == fromSecond && (!b.hasLow || difference > b.low):
		b.low, b.hasLow = difference, true
	}
}

// shortest is the delay below which captures of one direction count as taken with one clock.
const shortest = 10_000_000 // ns

// choose returns the present offset unless something contradicts it, else the middle of the
// bounds.
func (b *bounds) choose(present int64) (int64, ClockBy) {
	switch {
	case b.hasLow && b.hasHigh:
		switch {
		case present < b.low || present > b.high:
		case present == 0:
			return 0, SameClock
		default:
			return present, BothWays
		}
		return b.low + (b.high-b.low)/2, BothWays
	case b.hasHigh:
		return b.oneWay(present, b.high, b.high-present)
	case b.hasLow:
		return b.oneWay(present, b.low, present-b.low)
	}
	return present, NoMatch
}

func (b *bounds) oneWay(present, extreme, delay int64) (int64, ClockBy) {
	if delay >= 0 && delay < shortest {
		return present, OneWay
	}
	return extreme, OneWay
}

// estimate compares the clocks by keys that appear once in each capture's beginning.
func estimate(first, second []observed, window int64) bounds {
	pairs := uniquePairs(first, second)
	if len(pairs) == 0 {
		return bounds{}
	}
	differences := make([]int64, len(pairs))
	for i, p := range pairs {
		differences[i] = p[1].at - p[0].at
	}
	slices.Sort(differences)
	middle := differences[len(differences)/2]
	var b bounds
	for _, p := range pairs {
		if b.hasLow && b.hasHigh && p[0].at-pairs[0][0].at > segment {
			break // clocks drift
		}
		difference := p[1].at - p[0].at
		if d := difference - middle; d > window || d < -window { // matched by chance
			continue
		}
		if direction := directionOf(p[0], p[1]); direction != unknown {
			b.add(direction, difference)
		}
	}
	if !b.hasLow && !b.hasHigh { // unknown directions: assume no delay
		b = bounds{low: middle, high: middle, hasLow: true, hasHigh: true}
	}
	return b
}

// uniquePairs are packets with a key that is there once on each side.
func uniquePairs(first, second []observed) [][2]*observed {
	type both struct {
		of [2]*observed
		n  [2]int
	}
	keys := map[uint64]*both{}
	for side, list := range [2][]observed{first, second} {
		for i := range list {
			o := &list[i]
			k := keys[o.key]
			if k == nil {
				k = &both{}
				keys[o.key] = k
			}
			k.of[side] = o
			k.n[side]++
		}
	}
	var pairs [][2]*observed
	for _, k := range keys {
		if k.n == [2]int{1, 1} {
			pairs = append(pairs, k.of)
		}
	}
	slices.SortFunc(pairs, func(a, b [2]*observed) int { return cmp.Compare(a[0].frame, b[0].frame) })
	return pairs
}

// directionOf returns the direction without any clock: routers decrement the TTL, and an outgoing
// packet gets another source, if the first capture is inside.
func directionOf(a, b *observed) uint8 {
	switch {
	case a.ttl > b.ttl:
		return fromFirst
	case a.ttl < b.ttl:
		return fromSecond
	case a.Src != b.Src && a.Dst == b.Dst:
		return fromFirst
	case a.Src == b.Src && a.Dst != b.Dst:
		return fromSecond
	}
	return unknown
}

// segment is the interval of corrections: two quartz clocks drift by some 50 µs in that time.
const segment = 1_000_000_000 // ns

// clock keeps the offset of the second capture's clock against the first one's.
type clock struct {
	by            ClockBy
	offset, began int64 // ns
	start         bounds
	present       bounds
	until         int64
	corrections   int
	delays        [2]delays
}

func newClock() clock { return clock{by: NoMatch, delays: [2]delays{newDelays(), newDelays()}} }

// set takes the first estimate.
func (c *clock) set(b bounds) {
	c.start = b
	c.offset, c.by = b.choose(0)
	c.began = c.offset
}

// matched records a packet's times in both captures, and corrects the offset once a segment.
func (c *clock) matched(direction uint8, first, second int64) {
	delay := second - c.offset - first
	if direction == fromSecond {
		delay = -delay
	}
	c.delays[direction].record(delay)
	if c.by == NoMatch {
		c.by = OneWay
	}
	c.present.add(direction, second-first)
	if first >= c.until {
		c.correct()
		c.until = first + segment
	}
}

// correct uses the packets of the last segment. If their bounds contradict each other, some were
// matched by chance.
func (c *clock) correct() {
	if b := c.present; b.hasLow && b.hasHigh && b.low <= b.high {
		offset, by := b.choose(c.offset)
		if offset != c.offset {
			c.offset = offset
			c.corrections++
		}
		if c.by == OneWay || by == BothWays {
			c.by = by
		}
	}
	c.present = bounds{}
}

func seconds(ns int64) float64 { return float64(ns) / 1e9 }

// report describes the clocks, with the first capture as the inside one.
func (c *clock) report() Clock {
	r := Clock{By: c.by, Offset: seconds(c.began), Drift: seconds(c.offset - c.began), Corrections: c.corrections}
	if c.start.hasLow {
		r.Lowest = new(seconds(c.start.low))
	}
	if c.start.hasHigh {
		r.Highest = new(seconds(c.start.high))
	}
	return r
}

// longestDelay is the longest possible delay; see MaxWindow.
const longestDelay = int64(MaxWindow) + slack

// delays are the times from one capture to the other, in one direction.
type delays struct {
	times *load.Histogram
	// usual follows the recent delays.
	usual int64
}

// newDelays counts nanoseconds: a router takes some thousand of them.
func newDelays() delays { return delays{times: load.NewHistogramOf(1, longestDelay, 3)} }

// record adds a delay in nanoseconds; a negative one counts as 0.
func (d *delays) record(ns int64) {
	ns = min(max(ns, 0), longestDelay)
	d.times.Record(ns)
	d.usual += (ns - d.usual) / 8
}
