package pair

import "net/netip"

// flowKey is a pair of addresses and ports on one side, whichever way packets go.
type flowKey struct {
	low, high netip.AddrPort
	protocol  uint8
	side      uint8
}

// The directions of travel, by number of the file where packets go in; a third value
// means unknown.
const (
	fromFirst = iota
	fromSecond
	unknown
)

// flow is what is known of a flow on one side. Its ways are 0 from low to high and 1
// back.
type flow struct {
	flowKey
	// travel is the direction of each way's packets.
	travel [2]uint8
	seen   [2]bool
	// firstWay is that of the first packet.
	firstWay uint8
	// flipped tells that this flow's way 0 is the peer's way 1.
	flipped bool
	// peer is the same flow on the other side, as it was matched last.
	peer    *flow
	matched int64
	missed  *missed
	// waiting packets are not judged yet.
	waiting      int32
	older, newer *flow // by the time of the last packet
}

// missed are a flow's packets without counterparts, by way: those of the time of which the
// other capture has packets, and those before.
type missed struct{ covered, before [2]misses }

// misses are counted by kind.
type misses struct {
	packets [len(kinds)]uint32
	first   missing
}

// missing is a packet that is missed on the other side.
type missing struct {
	at, raw, frame int64
	side, kind     uint8
}

func (m *misses) total() (n int64) {
	for _, k := range m.packets {
		n += int64(k)
	}
	return n
}

func (m *misses) add(s *sighting) {
	if m.total() == 0 {
		m.first = missing{s.at, s.raw, s.frame, s.side, s.kind}
	}
	m.packets[s.kind]++
}

// ends are addresses and ports of a way.
func (f *flow) ends(way uint8) Ends {
	if way == 0 {
		return Ends{f.low, f.high}
	}
	return Ends{f.high, f.low}
}

// known is the direction that packets of a way travel.
func (f *flow) known(way uint8) uint8 {
	if d := f.travel[way]; d != unknown {
		return d
	}
	if d := f.travel[1-way]; d != unknown {
		return 1 - d
	}
	return unknown
}

// flows holds them by key, and in the order of their last packets.
type flows struct {
	byKey          map[flowKey]*flow
	oldest, newest *flow
	most           int
}

func (t *flows) find(side uint8, o *observed) (f *flow, way uint8) {
	key := flowKey{o.src, o.dst, o.protocol, side}
	if o.dst.Compare(o.src) < 0 {
		key.low, key.high, way = o.dst, o.src, 1
	}
	f = t.byKey[key]
	if f == nil {
		f = &flow{flowKey: key, firstWay: way, travel: [2]uint8{unknown, unknown}}
		t.byKey[key] = f
	} else {
		t.unlink(f)
	}
	t.append(f)
	f.seen[way] = true
	return f, way
}

func (t *flows) append(f *flow) {
	f.older, f.newer = t.newest, nil
	if t.newest != nil {
		t.newest.newer = f
	} else {
		t.oldest = f
	}
	t.newest = f
}

func (t *flows) unlink(f *flow) {
	if f.older != nil {
		f.older.newer = f.newer
	} else {
		t.oldest = f.newer
	}
	if f.newer != nil {
		f.newer.older = f.older
	} else {
		t.newest = f.older
	}
}

func (t *flows) remove(f *flow) {
	t.unlink(f)
	delete(t.byKey, f.flowKey)
}

// marry makes two flows each other's peer; it reports whether they were not before.
func marry(a, b *flow, flipped bool) bool {
	if a.peer == b && b.peer == a {
		return false
	}
	for _, f := range []*flow{a, b} {
		if f.peer != nil {
			f.peer.peer = nil
		}
	}
	a.peer, b.peer, a.flipped, b.flipped = b, a, flipped, flipped
	return true
}
