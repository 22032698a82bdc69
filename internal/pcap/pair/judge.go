package pair

import (
	"cmp"
	"slices"
	"time"
)

// tally counts what was found, by number of the file: the report knows which is inside.
type tally struct {
	side [2]struct{ compared, before, after, local int64 }
	way  [2]struct {
		matched, twice, appeared int64
		lost                     [len(kinds)]int64
	}
	ambiguous int64
	early     int64
	forgotten int64
	flows     struct {
		through, incomplete, translated, kept int64
		never                                 [2]int64
	}
	changed Translation
	hops    [256]int64
	// inside are votes for which file is the inside one.
	inside   [2]int64
	mappings []mapping
	losers   []loser
}

// mapping is a flow on both sides, with the direction of its first matched packet.
type mapping struct {
	protocol  uint8
	ends      [2]Ends
	frames    [2]int64
	direction uint8
}

// loser is a flow of which packets were lost.
type loser struct {
	protocol uint8
	ends     [2]*Ends
	lost     [2]int64 // by direction
	matched  int64
	first    missing
}

func (l *loser) total() int64 { return l.lost[0] + l.lost[1] }

// married notes a flow that was found on both sides.
func (t *tally) married(a, b *sighting, direction uint8, most int) {
	t.flows.through++
	x, y := a.flow.ends(a.way), b.flow.ends(b.way)
	if x == y {
		return
	}
	t.flows.translated++
	if x.Source.Port() == y.Source.Port() && x.Destination.Port() == y.Destination.Port() {
		t.flows.kept++
	}
	if len(t.mappings) < most {
		t.mappings = append(t.mappings, mapping{a.flow.protocol, [2]Ends{x, y}, [2]int64{a.frame, b.frame}, direction})
	}
}

// translated counts what is different of a packet, and votes for which side is inside:
// what gets another source goes out, what gets another destination comes in.
func (t *tally) translated(a, b *sighting, direction uint8) {
	t.way[direction].matched++
	x, y := a.flow.ends(a.way), b.flow.ends(b.way)
	count := func(n *int64, differs bool) {
		if differs {
			*n++
		}
	}
	count(&t.changed.None, x == y)
	count(&t.changed.SourceAddress, x.Source.Addr() != y.Source.Addr())
	count(&t.changed.SourcePort, x.Source.Port() != y.Source.Port())
	count(&t.changed.DestinationAddress, x.Destination.Addr() != y.Destination.Addr())
	count(&t.changed.DestinationPort, x.Destination.Port() != y.Destination.Port())
	count(&t.changed.TCPTimestamps, a.mark != b.mark)
	count(&t.changed.IPID, a.ipid != b.ipid)
	in, out := a.ttl, b.ttl
	if direction == fromSecond {
		in, out = out, in
	}
	t.hops[in-out]++
	switch source, destination := x.Source != y.Source, x.Destination != y.Destination; {
	case source && !destination:
		t.inside[direction]++
	case destination && !source:
		t.inside[1-direction]++
	}
}

// unmatched judges a packet without a counterpart; which way it went is judged with its
// flow.
func (m *matcher) unmatched(s *sighting, candidates int) {
	other := m.sources[1-s.side]
	travels := s.flow.known(s.way)
	switch at := s.raw + m.ahead(1-s.side); {
	case candidates > 0 || s.unsure:
		m.tally.ambiguous++
	case other.any && at > other.until():
		m.tally.side[s.side].after++
	case s.again && travels == 1-s.side:
		m.tally.way[travels].twice++
	default:
		s.flow.miss(s, other.any && at < other.first)
	}
}

// ahead is how far a capture's clock is ahead of the other one's.
func (m *matcher) ahead(side uint8) int64 {
	if side == 0 {
		return -m.clock.offset
	}
	return m.clock.offset
}

func (f *flow) miss(s *sighting, before bool) {
	if f.missed == nil {
		f.missed = &missed{}
	}
	if before {
		f.missed.before[s.way].add(s)
		return
	}
	f.missed.covered[s.way].add(s)
}

// forget judges a flow, with its peer, and drops them.
func (m *matcher) forget(f *flow) {
	pairOf := []*flow{f}
	if p := f.peer; p != nil && p.waiting == 0 {
		pairOf = append(pairOf, p)
	}
	var l loser
	for _, one := range pairOf {
		m.judge(one, &l)
		m.flows.remove(one)
		if one.peer != nil {
			one.peer.peer = nil
		}
		l.matched = max(l.matched, one.matched)
		ends := one.ends(one.firstWay)
		l.protocol, l.ends[one.side] = one.protocol, &ends
	}
	switch t := &m.tally.flows; {
	case l.total() == 0:
		return
	case l.matched > 0:
		t.incomplete++
	default:
		t.never[l.first.side]++
	}
	m.keep(l)
}

// judge adds a flow's packets without counterparts to where they belong.
func (m *matcher) judge(f *flow, l *loser) {
	if f.missed == nil {
		return
	}
	for way := range uint8(2) {
		m.place(f, way, &f.missed.covered[way], l)
		before := &f.missed.before[way]
		switch n := before.total(); {
		case n == 0:
		case m.ranBefore(1-f.side, before.first.raw):
			m.place(f, way, before, l)
		default:
			m.tally.side[f.side].before += n
		}
	}
}

// ranBefore reports whether a capture says of itself that it ran at a time of the other
// one's clock. It says so at its end.
func (m *matcher) ranBefore(side uint8, at int64) bool {
	s := m.sources[side]
	began, ok := s.began()
	return ok && at+m.ahead(side) >= began
}

// place counts packets without counterparts by where they went.
func (m *matcher) place(f *flow, way uint8, missed *misses, l *loser) {
	n := missed.total()
	if n == 0 {
		return
	}
	direction := m.travels(f, way)
	switch {
	case direction == unknown:
		m.tally.side[f.side].local += n
	case direction != f.side:
		m.tally.way[direction].appeared += n
	default:
		for k, packets := range missed.packets {
			m.tally.way[direction].lost[k] += int64(packets)
		}
		if l.total() == 0 || missed.first.at < l.first.at {
			l.first = missed.first
		}
		l.lost[direction] += n
	}
}

// travels tells which way a flow's packets without counterparts went: as others of the
// flow; as its addresses say, of which is known on which side they are; else onward from
// where they were seen. A flow with packets both ways and none on the other side is the
// NAT machine's own, or stays on its side: unknown.
func (m *matcher) travels(f *flow, way uint8) uint8 {
	if d := f.known(way); d != unknown {
		return d
	}
	ends := f.ends(way)
	switch src, dst := ends.Source.Addr(), ends.Destination.Addr(); {
	case m.behind[1-f.side][dst]:
		return f.side
	case m.behind[1-f.side][src]:
		return 1 - f.side
	case f.seen[0] && f.seen[1]:
		return unknown
	case m.behind[f.side][dst] && !m.behind[f.side][src]:
		return 1 - f.side
	}
	return f.side
}

// keep lists a flow, and drops those that matter less where there are too many.
func (m *matcher) keep(l loser) {
	m.tally.losers = append(m.tally.losers, l)
	if len(m.tally.losers) >= 2*m.Listed+100 {
		m.sortLosers()
	}
}

func (m *matcher) sortLosers() {
	slices.SortFunc(m.tally.losers, func(a, b loser) int {
		return cmp.Or(boolCompare(a.matched > 0, b.matched > 0), cmp.Compare(b.total(), a.total()),
			cmp.Compare(a.first.at, b.first.at), cmp.Compare(a.first.frame, b.first.frame))
	})
	m.tally.losers = m.tally.losers[:min(len(m.tally.losers), m.Listed)]
}

func boolCompare(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

func wallTime(ns int64) time.Time { return time.Unix(0, ns).UTC() }
