package pair

import (
	"fmt"
	"io"
	"net/netip"
	"unsafe"
)

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
	side, way      uint8
	kind, ttl      uint8
	state          uint8
	weak           bool
	// again tells that there is one more of it on this side, which was paired.
	again bool
	// unsure tells that an older one could have been its counterpart, or others.
	unsure bool
}

// bucket is a list of sightings with one key, the oldest first.
type bucket struct{ first, last uint64 }

// matcher goes through both captures at once, in the order of time. Each packet is judged
// when its counterpart can come no more, with all that is known of the flows by then.
type matcher struct {
	Options
	sources [2]*source
	clock   clock
	flows   flows
	// queue is a ring of sightings in the order of time: number n is at n modulo its
	// length. From oldest to before next they wait; numbers begin with 1.
	queue        []sighting
	oldest, next uint64
	mostWaiting  int
	buckets      map[uint64]bucket
	// proposed are the pairs of those packets that are looked at.
	proposed [][2]*sighting
	// behind are addresses that packets came from on each side.
	behind [2]map[netip.Addr]bool
	now    int64
	tally  tally
}

// What is kept takes, with its places in the tables.
const (
	sightingBytes = int64(unsafe.Sizeof(sighting{})) + 40
	flowBytes     = int64(unsafe.Sizeof(flow{})+unsafe.Sizeof(missed{})) + 180
	// mostAddresses bounds each set of addresses.
	mostAddresses = 50_000
	// aheadBytes is what the packets read ahead take.
	aheadBytes = 2 * prefix * int64(unsafe.Sizeof(observed{}))
)

func newMatcher(o Options) *matcher {
	// The garbage collector lets the heap become twice what is in use.
	half := (o.Memory/2 - aheadBytes) / 2
	return &matcher{
		Options: o, clock: newClock(),
		flows:       flows{byKey: map[flowKey]*flow{}, most: int(half / flowBytes)},
		queue:       make([]sighting, 1024),
		oldest:      1,
		next:        1,
		mostWaiting: int(half / sightingBytes),
		buckets:     map[uint64]bucket{},
		behind:      [2]map[netip.Addr]bool{{}, {}},
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
	for m.flows.oldest != nil {
		m.forget(m.flows.oldest)
	}
}

// compareClocks reads ahead. Where the captures' beginnings have nothing in common, one
// may have begun long before the other: its packets up to there are passed over.
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
		m.tally.side[side].compared++
		m.tally.side[side].before++
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
		m.tally.early++
		m.expire()
	}
	m.tally.side[side].compared++
	f, way := m.flows.find(side, o)
	f.waiting++
	m.push(sighting{
		at: at, raw: o.at, frame: o.frame, key: o.key, mark: o.mark, flow: f, ipid: o.ipid,
		side: side, way: way, kind: o.kind, ttl: o.ttl, weak: o.weak,
	})
	if len(m.flows.byKey) > m.flows.most {
		m.makeRoom()
	}
}

// makeRoom forgets the flow that has been silent for longest.
func (m *matcher) makeRoom() {
	f := m.flows.oldest
	m.tally.forgotten++
	for f.waiting > 0 && m.oldest < m.next {
		m.tally.early++
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
