package pair

import (
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"time"
	"unsafe"

	"github.com/natkit/natkit/internal/frame"
)

// tally counts what was found, as if the first capture were the inside one.
type tally struct {
	Report
	lost [2][kinds]int64 // by direction
	hops [256]int64
	// inside are votes for which capture is the inside one.
	inside [2]int64
	losers []loser
}

// loser is a flow of which packets were lost.
type loser struct {
	FlowReport
	at int64 // of FirstLost, by the first capture's clock
}

func (t *tally) side(i uint8) *Side {
	if i == 0 {
		return &t.Inside
	}
	return &t.Outside
}

func (t *tally) direction(d uint8) *Direction {
	if d == fromFirst {
		return &t.Out
	}
	return &t.In
}

// married counts a flow that was found on both sides.
func (t *tally) married(a, b *sighting, direction uint8, most int) {
	t.Flows.Through++
	x, y := a.tuple(), b.tuple()
	if x == y {
		return
	}
	t.Flows.Translated++
	if x.Src.Port() == y.Src.Port() && x.Dst.Port() == y.Dst.Port() {
		t.Flows.PortKept++
	}
	if len(t.Mappings) < most {
		t.Mappings = append(t.Mappings, Mapping{Protocol: a.flow.protocol, Inside: x, Outside: y,
			InsideFrame: a.frame, OutsideFrame: b.frame, OutsideFirst: direction != fromFirst})
	}
}

// translated counts what differs between two sightings, and votes for the inside: outgoing
// packets get another source, incoming ones another destination.
func (t *tally) translated(a, b *sighting, direction uint8) {
	t.direction(direction).Matched++
	x, y := a.tuple(), b.tuple()
	count := func(n *int64, differs bool) {
		if differs {
			*n++
		}
	}
	changed := &t.Translation
	count(&changed.None, x == y)
	count(&changed.SourceAddress, x.Src.Addr() != y.Src.Addr())
	count(&changed.SourcePort, x.Src.Port() != y.Src.Port())
	count(&changed.DestinationAddress, x.Dst.Addr() != y.Dst.Addr())
	count(&changed.DestinationPort, x.Dst.Port() != y.Dst.Port())
	count(&changed.TCPTimestamps, a.mark != b.mark)
	count(&changed.IPID, a.ipid != b.ipid)
	in, out := a.ttl, b.ttl
	if direction == fromSecond {
		in, out = out, in
	}
	t.hops[in-out]++
	switch source, destination := x.Src != y.Src, x.Dst != y.Dst; {
	case source && !destination:
		t.inside[direction]++
	case destination && !source:
		t.inside[1-direction]++
	}
}

// unmatched judges a packet without counterpart; its direction is judged with its flow.
func (m *matcher) unmatched(s *sighting, candidates int) {
	other := m.sources[1-s.side]
	travels := s.flow.known(s.way)
	switch at := s.raw + m.ahead(1-s.side); {
	case candidates > 0 || s.unsure:
		m.tally.Ambiguous++
	case other.any && at > other.until():
		m.tally.side(s.side).Uncovered.After++
	case s.again && travels == 1-s.side:
		m.tally.direction(travels).Twice++
	default:
		s.flow.miss(s, other.any && at < other.first)
	}
}

// ahead returns how far a capture's clock is ahead of the other one's.
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
		m.flows.Remove(one.flowKey)
		if one.peer != nil {
			one.peer.peer = nil
		}
		l.Protocol, l.Matched = one.protocol, max(l.Matched, one.matched)
		tuple := one.tuple(one.firstWay)
		if one.side == 0 {
			l.Inside = &tuple
		} else {
			l.Outside = &tuple
		}
	}
	switch t := &m.tally.Flows; {
	case l.total() == 0:
		return
	case l.Matched > 0:
		t.Incomplete++
	case l.FirstLost.Outside:
		t.NeverIn++
	default:
		t.NeverOut++
	}
	m.tally.losers = append(m.tally.losers, l)
	if len(m.tally.losers) >= 2*m.Listed+100 {
		m.tally.sortLosers(m.Listed)
	}
}

func (l *loser) total() int64 { return l.LostOut + l.LostIn }

// sortLosers keeps the flows that matter most.
func (t *tally) sortLosers(most int) {
	never := func(l *loser) int { return int(min(l.Matched, 1)) }
	slices.SortFunc(t.losers, func(a, b loser) int {
		return cmp.Or(cmp.Compare(never(&a), never(&b)), cmp.Compare(b.total(), a.total()),
			cmp.Compare(a.at, b.at), cmp.Compare(a.FirstLost.Frame, b.FirstLost.Frame))
	})
	t.losers = t.losers[:min(len(t.losers), most)]
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
			m.tally.side(f.side).Uncovered.Before += n
		}
	}
}

// ranBefore reports whether a capture states at its end that it ran at a time of the other's
// clock.
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
		m.tally.side(f.side).Local += n
	case direction != f.side:
		m.tally.direction(direction).Appeared += n
	default:
		for k, packets := range missed.packets {
			m.tally.lost[direction][k] += int64(packets)
		}
		if first := missed.first; l.total() == 0 || first.at < l.at {
			l.at = first.at
			l.FirstLost = LostPacket{Outside: first.side != 0, Frame: first.frame, Time: time.Unix(0, first.raw).UTC(), Kind: first.kind}
		}
		if direction == fromFirst {
			l.LostOut += n
		} else {
			l.LostIn += n
		}
	}
}

// travels returns the direction of a flow's unmatched packets: that of the flow's others; by
// addresses whose side is known; else onward. A flow with packets both ways and none on the other
// side is local to its side or to the NAT machine: unknown.
func (m *matcher) travels(f *flow, way uint8) uint8 {
	if d := f.known(way); d != unknown {
		return d
	}
	ends := f.tuple(way)
	switch src, dst := ends.Src.Addr(), ends.Dst.Addr(); {
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

// What became of a sighting.
const (
	waiting uint8 = iota
	proposed
	paired
)

// sighting is a packet on one side that waits for its counterpart.
type sighting struct {
	at, raw, frame int64 // at by the first capture's clock, raw by its own
	key, mark      uint64
	flow           *flow
	next           uint64 // number of the next one with the same key; 0 for none
	ipid           uint16
	side, way, ttl uint8
	kind           Kind
	state          uint8
	weak           bool
	// again is set if another packet of the stream on this side was paired.
	again bool
	// unsure is set if an older packet may have been its counterpart.
	unsure bool
}

func (s *sighting) tuple() frame.Tuple { return s.flow.tuple(s.way) }

// bucket is a list of sightings with one key, the oldest first.
type bucket struct{ first, last uint64 }

// matcher reads both captures in the order of time, and judges each packet once its counterpart
// can no longer come.
type matcher struct {
	Options
	sources [2]*source
	clock   clock
	flows   flows
	// queue is a ring of sightings by time: number n is at n modulo its length; those from oldest
	// to before next wait. Numbers begin with 1.
	queue        []sighting
	oldest, next uint64
	mostWaiting  int
	buckets      map[uint64]bucket
	// proposed are the candidate pairs of the packets being resolved.
	proposed [][2]*sighting
	// behind are source addresses of each side.
	behind [2]map[netip.Addr]bool
	now    int64
	tally  tally
}

// What is kept takes, with its places in the tables.
const (
	sightingBytes = int64(unsafe.Sizeof(sighting{})) + 40
	flowBytes     = int64(unsafe.Sizeof(flow{})+unsafe.Sizeof(missed{})+unsafe.Sizeof(flowKey{})) + 230
	// mostAddresses bounds each set of addresses.
	mostAddresses = 50_000
	// aheadBytes is what the packets read ahead take.
	aheadBytes = 2 * prefix * int64(unsafe.Sizeof(observed{}))
)

func newMatcher(o Options) *matcher {
	o.Window, o.Memory, o.Listed = cmp.Or(o.Window, 2*time.Second), cmp.Or(o.Memory, DefaultMemory), cmp.Or(o.Listed, 100)
	// The garbage collector lets the heap become twice what is in use.
	half := (o.Memory/2 - aheadBytes) / 2
	return &matcher{
		Options: o, clock: newClock(),
		flows:       newFlows(int(half / flowBytes)),
		queue:       make([]sighting, 1024),
		oldest:      1,
		next:        1,
		mostWaiting: int(half / sightingBytes),
		buckets:     map[uint64]bucket{},
		behind:      [2]map[netip.Addr]bool{{}, {}},
		tally:       tally{Report: Report{Mappings: []Mapping{}}},
	}
}

// read goes through both captures.
func (m *matcher) read(first, second io.Reader) error {
	m.sources = [2]*source{openSource(first), openSource(second)}
	defer m.sources[0].stop()
	defer m.sources[1].stop()
	m.run()
	for i, name := range []string{"first", "second"} {
		if err := m.sources[i].err; err != nil {
			return fmt.Errorf("match captures: the %s one: %w", name, err)
		}
	}
	return nil
}

// run sees all packets, and judges all.
func (m *matcher) run() {
	m.compareClocks()
	for {
		side, o := m.earlier()
		if o == nil {
			break
		}
		m.see(side, o)
		m.sources[side].take()
	}
	for m.oldest < m.next {
		m.expire()
	}
	m.clock.correct()
	for f := m.flows.oldest(); f != nil; f = m.flows.oldest() {
		m.forget(f)
	}
}

// compareClocks reads ahead. If the beginnings have nothing in common, it skips to the later one.
func (m *matcher) compareClocks() {
	a, b := m.sources[0], m.sources[1]
	a.fill(prefix)
	b.fill(prefix)
	found := estimate(a.ahead, b.ahead, int64(m.Window))
	if found == (bounds{}) && len(a.ahead) > 0 && len(b.ahead) > 0 {
		early, late := uint8(0), b.ahead[0].at
		if a.ahead[0].at > late {
			early, late = 1, a.ahead[0].at
		}
		m.skipTo(early, late-int64(m.Window))
		found = estimate(a.ahead[a.taken:], b.ahead[b.taken:], int64(m.Window))
	}
	m.clock.set(found)
}

// skipTo judges a capture's packets before a time: the other one does not cover them.
func (m *matcher) skipTo(side uint8, at int64) {
	s := m.sources[side]
	for o := s.peek(); o != nil && o.at < at; o = s.peek() {
		m.tally.side(side).Compared++
		m.tally.side(side).Uncovered.Before++
		s.take()
	}
	s.fill(prefix)
}

// earlier is the next packet of both captures by the first one's clock.
func (m *matcher) earlier() (side uint8, o *observed) {
	a, b := m.sources[0].peek(), m.sources[1].peek()
	switch {
	case b == nil:
		return 0, a
	case a == nil || b.at-m.clock.offset < a.at:
		return 1, b
	}
	return 0, a
}

// see takes a packet in, and judges those that have waited long enough.
func (m *matcher) see(side uint8, o *observed) {
	at := o.at
	if side == 1 {
		at -= m.clock.offset
	}
	m.now = max(m.now, at)
	if m.next == 1 {
		m.now = at
	}
	for m.oldest < m.next && m.now-m.at(m.oldest).at > int64(m.Window) {
		m.expire()
	}
	for m.next-m.oldest >= uint64(m.mostWaiting) {
		m.tally.Limits.Early++
		m.expire()
	}
	m.tally.side(side).Compared++
	f, way := m.flows.find(side, o)
	f.waiting++
	m.push(sighting{
		at: at, raw: o.at, frame: o.frame, key: o.key, mark: o.mark, flow: f, ipid: o.ipid,
		side: side, way: way, kind: o.kind, ttl: o.ttl, weak: o.weak,
	})
	if m.flows.Len() > m.flows.most {
		m.makeRoom()
	}
}

// makeRoom forgets the flow that has been silent for longest.
func (m *matcher) makeRoom() {
	f := m.flows.oldest()
	m.tally.Limits.ForgottenFlows++
	for f.waiting > 0 && m.oldest < m.next {
		m.tally.Limits.Early++
		m.expire()
	}
	m.forget(f)
}

func (m *matcher) at(n uint64) *sighting { return &m.queue[n%uint64(len(m.queue))] }

func (m *matcher) push(s sighting) {
	if m.next-m.oldest == uint64(len(m.queue)) {
		m.grow()
	}
	n := m.next
	m.next++
	*m.at(n) = s
	b, ok := m.buckets[s.key]
	if ok {
		m.at(b.last).next = n
		b.last = n
	} else {
		b = bucket{n, n}
	}
	m.buckets[s.key] = b
}

func (m *matcher) grow() {
	old := m.queue
	m.queue = make([]sighting, 2*len(old))
	for n := m.oldest; n < m.next; n++ {
		*m.at(n) = old[n%uint64(len(old))]
	}
}

// expire judges the packet that has waited longest.
func (m *matcher) expire() {
	s := m.at(m.oldest)
	if s.state == waiting {
		if candidates := m.resolve(s); s.state == waiting {
			m.unmatched(s, candidates)
		}
	}
	if s.next == 0 {
		delete(m.buckets, s.key)
	} else {
		b := m.buckets[s.key]
		b.first = s.next
		m.buckets[s.key] = b
	}
	s.flow.waiting--
	s.flow = nil
	m.oldest++
}
