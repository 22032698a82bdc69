package pair

import "math"

// mostAlike bounds how many packets with one key are looked at together: where there are
// more, as with a generator that sends the same packet over and over, the others wait for
// their turn.
const mostAlike = 64

// resolve pairs the packets that are like the oldest one as far as it is clear which is
// which, from the surest way to the least. It tells how many are left on the other side
// of which any may be the oldest one's counterpart.
func (m *matcher) resolve(oldest *sighting) (candidates int) {
	var room [2][mostAlike]*sighting
	lists := [2][]*sighting{room[0][:0], room[1][:0]}
	for s, k := oldest, 0; k < mostAlike; k++ {
		if s.state == waiting {
			lists[s.side] = append(lists[s.side], s)
		}
		if s.next == 0 {
			break
		}
		s = m.at(s.next)
	}
	if len(lists[0]) == 0 || len(lists[1]) == 0 {
		return 0
	}
	m.resolveLists(lists[0], lists[1])
	if oldest.state == paired {
		return 0
	}
	same, other := left(lists[oldest.side], nil), left(lists[1-oldest.side], nil)
	if oneStream(same) && oneStream(other) { // what is missing is known by number
		return 0
	}
	for _, s := range other {
		if m.plausible(oldest, s) {
			s.unsure = true
			candidates++
		}
	}
	return candidates
}

func (m *matcher) resolveLists(first, second []*sighting) {
	if len(first) == 1 && len(second) == 1 { // nearly always
		if m.plausible(first[0], second[0]) {
			m.pair(first[0], second[0])
		}
		return
	}
	m.byValue(first, second, func(s *sighting) uint64 { return s.mark })
	m.byValue(first, second, func(s *sighting) uint64 { return uint64(s.ipid) })
	m.byPeers(first, second)
	m.byElimination(first, second)
	markAgain(first)
	markAgain(second)
}

// stream is a way of a flow.
type stream struct {
	flow *flow
	way  uint8
}

func (s *sighting) stream() stream { return stream{s.flow, s.way} }

// left are those that wait, of one stream where it is given.
func left(list []*sighting, of *stream) (some []*sighting) {
	for _, s := range list {
		if s.state == waiting && (of == nil || s.stream() == *of) {
			some = append(some, s)
		}
	}
	return some
}

// byPeers pairs packets of flows that are known to be one.
func (m *matcher) byPeers(first, second []*sighting) {
	for _, s := range first {
		peer := s.flow.peer
		if s.state != waiting || peer == nil {
			continue
		}
		mine, theirs := s.stream(), stream{peer, s.way}
		if s.flow.flipped {
			theirs.way = 1 - s.way
		}
		m.inOrder(left(first, &mine), left(second, &theirs))
	}
}

// byValue pairs packets that alone of each side have the same value, which is not 0.
func (m *matcher) byValue(first, second []*sighting, value func(*sighting) uint64) {
	only := func(list []*sighting, v uint64) (s *sighting) {
		for _, c := range list {
			switch {
			case c.state != waiting || value(c) != v:
			case s != nil:
				return nil
			default:
				s = c
			}
		}
		return s
	}
	for _, s := range first {
		v := value(s)
		if s.state != waiting || v == 0 || only(first, v) != s {
			continue
		}
		if t := only(second, v); t != nil && m.plausible(s, t) {
			m.pair(s, t)
		}
	}
}

// byElimination pairs what is left where that is of one stream on each side.
func (m *matcher) byElimination(first, second []*sighting) {
	a, b := left(first, nil), left(second, nil)
	if len(a) == 0 || len(b) == 0 || !oneStream(a) || !oneStream(b) || !m.plausible(a[0], b[0]) {
		return
	}
	m.inOrder(a, b)
}

func oneStream(list []*sighting) bool {
	for _, s := range list {
		if s.stream() != list[0].stream() {
			return false
		}
	}
	return true
}

// plausible refuses pairs of packets with weak keys where the flows are known to have
// other peers, or nothing in common.
func (m *matcher) plausible(a, b *sighting) bool {
	if !a.weak {
		return true
	}
	if a.flow.peer == b.flow {
		return true
	}
	if a.flow.peer != nil && b.flow.peer != nil {
		return false
	}
	x, y := a.flow.ends(a.way), b.flow.ends(b.way)
	return x.Source == y.Source || x.Destination == y.Destination || a.ipid != 0 && a.ipid == b.ipid
}

// slack is how much earlier a packet may come out than it went in: the clocks of CPUs,
// and what the offset is off by.
const slack = 1_000_000 // ns

func (m *matcher) slack() int64 {
	if m.clock.by == NoMatch { // nothing is known of the clocks yet
		return int64(m.Window)
	}
	return slack
}

// inOrder pairs packets of one stream that are all alike: each that came out with the one
// that went in when it should have, by the delay that others had of late. Of those that
// are lost, the number is known then, if not always which ones.
func (m *matcher) inOrder(first, second []*sighting) {
	if len(first) == 0 || len(second) == 0 {
		return
	}
	direction := m.direction(first[0], second[0])
	entered, left := first, second
	if direction == fromSecond {
		entered, left = second, first
	}
	for _, out := range left {
		in := m.nearest(entered, out, m.clock.delays[direction].usual)
		switch {
		case in == nil:
		case in.side == 0:
			m.pair(in, out)
		default:
			m.pair(out, in)
		}
	}
}

// nearest is the packet that went in closest to a delay before another one came out.
func (m *matcher) nearest(entered []*sighting, out *sighting, delay int64) (best *sighting) {
	least := int64(math.MaxInt64)
	for _, in := range entered {
		if in.state != waiting || in.at > out.at+m.slack() {
			continue
		}
		if off := abs(out.at - delay - in.at); off < least {
			best, least = in, off
		}
	}
	return best
}

func abs(n int64) int64 {
	if n < 0 {
		return -n
	}
	return n
}

// direction tells where a packet went in: by its time to live, by its flow, by the clock.
func (m *matcher) direction(a, b *sighting) uint8 {
	switch {
	case a.ttl > b.ttl:
		return fromFirst
	case a.ttl < b.ttl:
		return fromSecond
	}
	if d := a.flow.known(a.way); d != unknown {
		return d
	}
	if d := b.flow.known(b.way); d != unknown {
		return d
	}
	if b.at < a.at {
		return fromSecond
	}
	return fromFirst
}

// markAgain marks what is left of a stream of which others were paired.
func markAgain(list []*sighting) {
	for _, s := range list {
		for _, t := range list {
			if s.state == waiting && t.state == paired && t.stream() == s.stream() {
				s.again = true
				break
			}
		}
	}
}

// pair takes a of the first capture and b of the second for one packet.
func (m *matcher) pair(a, b *sighting) {
	d := m.direction(a, b)
	a.state, b.state = paired, paired
	a.flow.travel[a.way], b.flow.travel[b.way] = d, d
	a.flow.matched++
	b.flow.matched++
	if marry(a.flow, b.flow, a.way != b.way) {
		m.tally.married(a, b, d, m.Listed)
	}
	m.clock.matched(d, a.raw, b.raw)
	m.tally.translated(a, b, d)
	in := [2]*sighting{a, b}[d]
	if set := m.behind[d]; len(set) < mostAddresses {
		set[in.flow.ends(in.way).Source.Addr()] = true
	}
}
