package pcap

import (
	"unsafe"

	"github.com/natkit/natkit/internal/frame"
)

// tracker follows the TCP connections of a capture.
type tracker struct {
	o      Options
	report Report
	table  *table
	kept   incidents
	clocks clocks
	moves  moves
	icmp   icmpErrors
	order  sorter
	one    segment // of the packet at hand
	reuse  spread
	// backoff are the times between transmissions of a SYN.
	backoff [maxIntervals]spread
	// fromServers counts packets of those to whom a SYN went.
	fromServers int64
	now         int64 // time of the latest packet that was taken
	latest      int64 // time of the latest packet
	ended       bool  // there are no more
	forgetting  bool  // a tuple makes room for another
	// troubled is the memory of attempts that will be incidents, in bytes.
	troubled, maxTroubled, peakTroubled int64
}

func newTracker(o Options) *tracker {
	t := &tracker{o: o}
	t.report.Schema = Schema
	t.table, t.maxTroubled = newTable(o.Memory/2, t.forget), o.Memory/8
	t.kept = newIncidents(o.Memory/4, o.Incidents)
	t.clocks = newClocks(o.Memory / 16)
	t.moves, t.order = newMoves(o.Memory/32), newSorter(o.Memory/32)
	t.icmp = icmpErrors{}
	return t
}

// packet takes one packet.
func (t *tracker) packet(p *Packet) {
	t.latest = max(t.latest, p.At)
	if p.Reason != Decoded || t.o.Only != nil && !t.o.Only(p) {
		return
	}
	if segmentOf(p, &t.one) {
		t.order.add(&t.one, t.take)
	}
}

// take takes packets in the order of their times.
func (t *tracker) take(s *segment) {
	t.now = max(t.now, s.at)
	if s.icmp != nil {
		t.quoted(s.icmp)
		return
	}
	t.tcp(s)
}

func (t *tracker) tcp(s *segment) {
	c := t.table.get(&s.key, s.at)
	c.is4 = s.is4
	r := s.record
	if c.duplicate(&r) {
		t.report.Connections.Duplicates++
		return
	}
	if r.flags&(frame.SYN|frame.ACK|frame.RST|frame.FIN) == frame.SYN {
		t.syn(c, &r, s.scale)
	} else {
		t.segment(c, &r, s.scale)
	}
	c.push(r)
	if c.trouble != nil {
		c.trouble.add(&r)
	}
	for t.troubled > t.maxTroubled && t.table.drop(s.at) {
	}
}

// forget evicts a tuple.
func (t *tracker) forget(c *conn) {
	t.forgetting = true
	t.finish(c)
	t.forgetting = false
}

// duplicate reports whether the packet was captured twice. Acknowledgements without data may be
// equal, which does no harm.
func (c *conn) duplicate(r *record) bool {
	if r.length == 0 && r.flags&(frame.SYN|frame.FIN|frame.RST) == 0 {
		return false
	}
	for i := c.seen - min(c.seen, ringSize); i != c.seen; i++ {
		if r.copies(&c.ring[i%ringSize]) {
			return true
		}
	}
	return false
}

// Times between two copies of one packet in a capture of several interfaces, in nanoseconds. Few
// retransmissions are as fast as the first, and those of IPv4 have another identification. Up to
// the second it is a copy if the identification or the sender's clock is the same.
const (
	duplicateWithin = 1_000_000
	delayedWithin   = 100_000_000
)

// copies reports whether the packet is another one's copy.
func (r *record) copies(o *record) bool {
	if o.seq != r.seq || o.dir != r.dir || o.ack != r.ack || o.flags != r.flags || o.length != r.length ||
		o.tsval != r.tsval || o.tsecr != r.tsecr || o.window != r.window || o.id != r.id {
		return false
	}
	apart := r.at - o.at
	return apart < duplicateWithin || apart < delayedWithin && (r.id != 0 || r.hasTimestamps())
}

// segment takes all but SYNs.
func (t *tracker) segment(c *conn, r *record, scale uint8) {
	if c.packets == 0 && !c.begun {
		t.report.Connections.Total++
	}
	if c.begun && r.from() != c.client {
		t.fromServers++
	}
	if c.syn.open {
		t.answer(c, r)
	}
	if c.syn.open && !c.accepted { // belongs to the former connection
		return
	}
	switch {
	case r.flags&frame.RST != 0:
		t.rst(c, r)
		return
	case r.flags&frame.SYN != 0:
		t.synAck(c, r, scale)
	}
	t.sequence(c, r)
	c.side[r.from()].acknowledge(r)
	t.point(c, r)
}

// acknowledge notes what the end has received and offers.
func (s *side) acknowledge(r *record) {
	if r.flags&frame.ACK != 0 {
		if !s.hasAck || after(r.ack, s.ack) {
			s.ack = r.ack
		}
		right := r.ack + uint32(r.window)<<s.scaleOf(r)
		if !s.hasAck || after(right, s.right) {
			s.right = right
		}
		s.hasAck = true
	}
	if r.hasTimestamps() && (!s.hasTS || after(r.tsval, s.tsval)) {
		s.tsval, s.hasTS = r.tsval, true
	}
	if r.flags&frame.FIN != 0 {
		s.fin = true
	}
}

// scaleOf returns the shift of the window: none in a SYN (RFC 7323, section 2.2).
func (s *side) scaleOf(r *record) uint8 {
	if r.flags&frame.SYN != 0 {
		return 0
	}
	return s.scale
}

// synAck takes the other end's SYN.
func (t *tracker) synAck(c *conn, r *record, scale uint8) {
	s := &c.side[r.from()]
	if s.hasSYN && s.next == r.end() {
		t.report.Retransmissions.SYNACK++
		return
	}
	s.hasSYN = true
	s.scale = scale
	if s.scale == noScale || c.side[1-r.from()].scale == noScale { // both or none (RFC 7323, 2.2)
		c.side[0].scale, c.side[1].scale = 0, 0
	}
}

// noScale is a SYN without the option.
const noScale = 0xff

func windowScale(tcp *frame.TCP) uint8 {
	if v, ok := tcp.Option(frame.OptionWindowScale); ok && len(v) == 1 {
		return min(v[0], 14)
	}
	return noScale
}

// noteFIN notes who closes first.
func (c *conn) noteFIN(r *record) {
	if r.flags&frame.FIN != 0 && c.finFirst == 0 {
		c.finFirst = r.from() + 1
	}
}

// finish counts a connection that is over, or that is forgotten.
func (t *tracker) finish(c *conn) {
	t.close(c)
	if c.packets == 0 {
		return
	}
	server := uint8(1)
	if c.begun {
		server = 1 - c.client
	} else if c.key.port[0] < c.key.port[1] {
		server = 0 // a guess: servers have the lower ports
	}
	counts := &t.report.Connections
	if c.reset {
		counts.Reset++
	}
	switch c.closedFor(server) {
	case ClosedByServer:
		counts.ServerClosedFirst++
	case ClosedByClient:
		counts.ClientClosedFirst++
	}
	for i := range c.side {
		t.endAgain(c, uint8(i))
	}
	t.endRST(c)
}

// table has the tuples, within a bounded memory: the longest silent one makes room.
type table struct {
	index  map[key]int32
	slots  [][]conn // chunks, so that growing copies nothing
	used   int32
	free   []int32 // slots of tuples that were given up, and had no successor yet
	max    int32
	newest int32 // ends of the list by last packet; -1 where there is none
	oldest int32
	// forget is called before a tuple is evicted.
	forget func(*conn)
	// forgotten were evicted, shortest is the least silence of those, in nanoseconds.
	forgotten int64
	shortest  int64
}

const chunk = 1 << 10

// perConn is the memory of a tuple with its entry of the index, which is at least 7/16 full.
const perConn = int64(unsafe.Sizeof(conn{})) + int64(unsafe.Sizeof(key{})+8)*16/7

func newTable(memory int64, forget func(*conn)) *table {
	return &table{index: map[key]int32{}, max: int32(min(memory/perConn, 1<<30)), newest: -1, oldest: -1, forget: forget}
}

func (t *table) at(i int32) *conn { return &t.slots[i/chunk][i%chunk] }

// memory in use, in bytes.
func (t *table) memory() int64 { return int64(t.used) * perConn }

// find returns an existing tuple.
func (t *table) find(k *key) *conn {
	if i, ok := t.index[*k]; ok {
		return t.at(i)
	}
	return nil
}

// get returns a tuple, made if need be, and makes it the newest.
func (t *table) get(k *key, now int64) *conn {
	i, ok := t.index[*k]
	if !ok {
		i = t.add(k, now)
	} else if i != t.newest {
		t.unlink(i)
		t.link(i)
	}
	return t.at(i)
}

func (t *table) add(k *key, now int64) int32 {
	i := t.used
	if n := len(t.free); n > 0 {
		i, t.free = t.free[n-1], t.free[:n-1]
	} else if i < t.max {
		if int(i/chunk) == len(t.slots) {
			t.slots = append(t.slots, make([]conn, chunk))
		}
		t.used++
	} else {
		i = t.evict(now)
	}
	c := t.at(i)
	*c = conn{key: *k}
	t.index[*k] = i
	t.link(i)
	return i
}

// evict evicts the tuple that has been silent for longest.
func (t *table) evict(now int64) int32 {
	i := t.oldest
	c := t.at(i)
	t.forget(c)
	silent := int64(0)
	if last := c.lastOf(); last != nil {
		silent = max(0, now-last.at)
	}
	if t.forgotten == 0 || silent < t.shortest {
		t.shortest = silent
	}
	t.forgotten++
	t.unlink(i)
	delete(t.index, c.key)
	return i
}

// drop evicts without a successor; false if only the newest tuple is left.
func (t *table) drop(now int64) bool {
	if t.oldest == t.newest {
		return false
	}
	t.free = append(t.free, t.evict(now))
	return true
}

func (t *table) link(i int32) {
	c := t.at(i)
	c.prev, c.next = t.newest, -1
	if t.newest >= 0 {
		t.at(t.newest).next = i
	} else {
		t.oldest = i
	}
	t.newest = i
}

func (t *table) unlink(i int32) {
	c := t.at(i)
	if c.prev >= 0 {
		t.at(c.prev).next = c.next
	} else {
		t.oldest = c.next
	}
	if c.next >= 0 {
		t.at(c.next).prev = c.prev
	} else {
		t.newest = c.prev
	}
}

// each calls fn for all tuples, the longest silent first.
func (t *table) each(fn func(*conn)) {
	for i := t.oldest; i >= 0; i = t.at(i).next {
		fn(t.at(i))
	}
}
