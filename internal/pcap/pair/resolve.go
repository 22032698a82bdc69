package pair

import "math"

// mostAlike bounds the packets with one key that are compared at once; the others wait for their
// turn.
const mostAlike = 32

// resolve pairs the oldest packet if its counterpart is clear, or returns how many candidates it
// has.
//
// All alike packets are compared, from the surest way to the least, but only the oldest one's
// pair is kept, so that flows are learned in the order of time.
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
	defer m.withdraw()
	for _, p := range m.proposed {
		if p[0] == oldest || p[1] == oldest {
			m.pair(p[0], p[1])
			return 0
		}
	}
	same, other := lists[oldest.side], lists[1-oldest.side]
	if t := m.only(oldest, other); t != nil && m.only(t, same) != nil {
		return 0 // what is missing of one stream is known by number
	}
	for _, s := range other {
		if s.state == waiting && m.plausible(oldest, s) {
			s.unsure = true
			candidates++
		}
	}
	return candidates
}

func (m *matcher) resolveLists(first, second []*sighting) {
	if len(first) == 1 && len(second) == 1 { // nearly always
		if m.plausible(first[0], second[0]) {
			m.propose(first[0], second[0])
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

// propose takes two packets out of those that wait, until withdraw.
func (m *matcher) propose(a, b *sighting) {
	a.state, b.state = proposed, proposed
	m.proposed = append(m.proposed, [2]*sighting{a, b})
}

// withdraw lets packets wait again that were not paired.
func (m *matcher) withdraw() {
	for _, p := range m.proposed {
		for _, s := range p {
			if s.state == proposed {
				s.state = waiting
			}
		}
	}
	m.proposed = m.proposed[:0]
}

// stream is a way of a flow.
type stream struct {
	flow *flow
	way  uint8
}

func (s *sighting) stream() stream { return stream{s.flow, s.way} }

// left are those of a stream that wait.
func left(list []*sighting, of stream) (some []*sighting) {
	for _, s := range list {
		if s.state == waiting && s.stream() == of {
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
		m.inOrder(left(first, mine), left(second, theirs))
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
			m.propose(s, t)
		}
	}
}

// byElimination pairs what is left of streams that could only be each other's.
func (m *matcher) byElimination(first, second []*sighting) {
	for _, s := range first {
		if s.state != waiting {
			continue
		}
		if t := m.only(s, second); t != nil && m.only(t, first) != nil {
			m.inOrder(left(first, s.stream()), left(second, t.stream()))
		}
	}
}

// only returns a packet of the only stream that s can belong to; nil for several or none.
func (m *matcher) only(s *sighting, others []*sighting) (one *sighting) {
	for _, t := range others {
		switch {
		case t.state != waiting || !m.plausible(s, t):
		case one == nil:
			one = t
		case t.stream() != one.stream():
			return nil
		}
	}
	return one
}

// plausible rejects packets with weak keys of flows with other peers, or without a common end.
func (m *matcher) plausible(a, b *sighting) bool {
	if !a.weak {
		return true
	}
	if a.flow.peer == b.flow {
		return (a.way != b.way) == a.flow.flipped
	}
	if a.flow.peer != nil && b.flow.peer != nil {
		return false
	}
	x, y := a.tuple(), b.tuple()
	return x.Src == y.Src || x.Dst == y.Dst || a.ipid != 0 && a.ipid == b.ipid
}

// slack is how much earlier a packet may come out than it went in, by errors of clocks.
const slack = 1_000_000 // ns

func (m *matcher) slack() int64 {
	if m.clock.by == NoMatch { // nothing is known of the clocks yet
		return int64(m.Window)
	}
	return slack
}

// inOrder pairs alike packets of one stream by the recent delay. Of lost ones the number is
// exact, if not always which.
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
			m.propose(in, out)
		default:
			m.propose(out, in)
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

// direction returns where a packet went in: by TTL, flow, or clock.
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

// markAgain marks what is left of a stream of which others have a counterpart.
func markAgain(list []*sighting) {
	for _, s := range list {
		for _, t := range list {
			if s.state == waiting && t.state == proposed && t.stream() == s.stream() {
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
		set[in.tuple().Src.Addr()] = true
	}
}
