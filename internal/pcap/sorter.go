package pcap

import (
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/packet"
)

// segment is what the tracker takes of a packet: a TCP segment, or an ICMP error.
type segment struct {
	record
	key   key
	icmp  *Packet // without its data; nil where it is TCP
	is4   bool
	scale uint8 // of a SYN's window
}

// segmentOf is that of a packet that is TCP or an ICMP error; false for all others.
func segmentOf(p *Packet, s *segment) bool {
	f := &p.Frame
	switch {
	case f.Transport == unix.IPPROTO_TCP:
		var dir uint8
		s.key, dir = keyOf(f.Source, f.Destination, f.TCP.SourcePort, f.TCP.DestinationPort)
		s.record, s.is4, s.icmp = recordOf(p, dir), f.Version == 4, nil
		if s.flags&packet.SYN != 0 {
			s.scale = windowScale(&f.TCP)
		}
		return true
	case p.HasQuoted:
		about := *p
		about.Data, about.Frame.Payload, about.Quoted.Payload = nil, nil, nil
		*s = segment{record: record{number: p.Number, at: p.At}, icmp: &about}
		return true
	}
	return false
}

// sorter puts segments into the order of their times: programs that capture on several
// interfaces write the packets of each together. Nothing waits where the order is right
// but for the second in which something earlier may come.
type sorter struct {
	pool  []segment
	free  []int32
	order []int32 // indexes of pool by time, from head on
	head  int
	max   int
	// newest is the latest time that came, done the latest that went.
	newest, done int64
	begun        bool
	late         int64 // segments that came too late to be put where they belong
}

// Bounds of what waits: a second, which is longer than programs hold packets back
// (dumpcap: 250 ms), and so many segments.
const (
	sortedWithin = 1_000_000_000 // ns
	mostWaiting  = 8192
	perSegment   = int64(unsafe.Sizeof(segment{})) + int64(unsafe.Sizeof(Packet{})) + 16
)

func newSorter(memory int64) sorter {
	return sorter{max: int(max(1, min(mostWaiting, memory/perSegment)))}
}

func (s *sorter) waiting() int { return len(s.order) - s.head }

// memory at its most, in bytes.
func (s *sorter) memory() int64 { return int64(len(s.pool)) * perSegment }

func (s *sorter) first() *segment { return &s.pool[s.order[s.head]] }

// add takes a segment, and gives fn those that waited long enough.
func (s *sorter) add(g *segment, fn func(*segment)) {
	if s.begun && g.at < s.newest-sortedWithin { // the clock was set, or another file begins
		s.late++
		s.flush(fn)
		s.begun = false
	}
	if !s.begun {
		s.begun, s.newest, s.done = true, g.at, g.at-sortedWithin
	}
	if g.at < s.done {
		s.late++
		fn(g)
		return
	}
	if s.waiting() == s.max {
		if g.at < s.first().at {
			s.done = g.at
			fn(g)
			return
		}
		s.pop(fn)
	}
	s.insert(g)
	s.newest = max(s.newest, g.at)
	for s.waiting() > 0 && s.first().at < s.newest-sortedWithin {
		s.pop(fn)
	}
}

// insert puts a segment behind all that are not later: mostly at the end.
func (s *sorter) insert(g *segment) {
	i := int32(len(s.pool))
	if n := len(s.free); n > 0 {
		i, s.free = s.free[n-1], s.free[:n-1]
		s.pool[i] = *g
	} else {
		s.pool = append(s.pool, *g)
	}
	if s.head > s.max { // seldom: all that wait move to the front
		s.order = append(s.order[:0], s.order[s.head:]...)
		s.head = 0
	}
	if s.waiting() == 0 || s.pool[s.order[len(s.order)-1]].at <= g.at {
		s.order = append(s.order, i)
		return
	}
	at, _ := slices.BinarySearchFunc(s.order[s.head:], g.at, func(j int32, at int64) int {
		if s.pool[j].at <= at {
			return -1
		}
		return 1
	})
	s.order = slices.Insert(s.order, s.head+at, i)
}

// pop lets the earliest go.
func (s *sorter) pop(fn func(*segment)) {
	i := s.order[s.head]
	s.head++
	s.done = s.pool[i].at
	fn(&s.pool[i])
	s.free = append(s.free, i)
}

// flush lets all go.
func (s *sorter) flush(fn func(*segment)) {
	for s.waiting() > 0 {
		s.pop(fn)
	}
}
