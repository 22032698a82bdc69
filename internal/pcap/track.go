package pcap

import (
	"cmp"
	"net/netip"
	"time"
	"unsafe"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/natkit/natkit/internal/frame"
)

// tracker follows the TCP connections of a capture.
type tracker struct {
	o      Options
	report Report
	table  table
	kept   incidents
	clocks clocks
	moves  moves
	icmp   icmpErrors
	order  sorter
	came   arrivals
	one    segment // of the current packet
	reuse  spread
	// backoff are the times between transmissions of a SYN.
	backoff [maxIntervals]spread
	// fromServers counts packets of those to whom a SYN went.
	fromServers int64
	now         int64 // time of the latest packet that was taken
	latest      int64 // time of the latest packet
	ended       bool  // there are no more
	forgetting  bool  // a tuple makes room for another
	// headersAlone: see HeadersAlone.
	headersAlone bool
	// troubled is the memory of attempts that will be incidents, in bytes.
	troubled, maxTroubled, peakTroubled int64
}

func newTracker(o Options) *tracker {
	o.Memory, o.Incidents, o.TimeWait = cmp.Or(o.Memory, DefaultMemory), cmp.Or(o.Incidents, 10_000), cmp.Or(o.TimeWait, 60*time.Second)
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
	if !segmentOf(p, &t.one) {
		return
	}
	t.headersAlone = t.headersAlone || p.HeadersAlone
	if p.Dropped {
		t.came.on = true
		if t.one.icmp != nil || !t.one.isSYN() { // the receiver had none of it
			return
		}
	}
	t.order.add(&t.one, t.take)
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
	if s.isSYN() && t.came.had(s) {
		t.report.Connections.Duplicates++
		return
	}
	c := t.table.get(&s.key)
	c.is4 = s.is4
	r := s.record
	if c.duplicate(&r) {
		t.report.Connections.Duplicates++
		return
	}
	if r.isSYN() {
		t.syn(c, &r, s.scale)
	} else {
		t.segment(c, &r, s.scale)
	}
	c.push(r)
	if c.trouble != nil {
		c.trouble.add(&r)
	}
	for t.troubled > t.maxTroubled && t.table.Len() > 1 {
		t.table.RemoveOldest()
	}
}

// forget ends a tuple that is evicted.
func (t *tracker) forget(_ key, c *conn) {
	t.forgetting = true
	t.finish(c)
	t.forgetting = false
	silent := int64(0)
	if last := c.lastOf(); last != nil {
		silent = max(0, t.now-last.at)
	}
	if t.table.forgotten == 0 || silent < t.table.shortest {
		t.table.shortest = silent
	}
	t.table.forgotten++
	t.table.spare = c
}

// duplicate reports whether the packet was captured twice. Acknowledgements without data may be
// equal, which does no harm.
func (c *conn) duplicate(r *record) bool {
	if r.length == 0 && r.flags&(frame.SYN|frame.FIN|frame.RST) == 0 {
		return false
	}
	for o := range c.recent {
		if r.copies(o) {
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
	if t.o.Each != nil {
		t.o.Each(c.report(server))
	}
}

// Connection is a TCP connection, as far as it is in the capture.
type Connection struct {
	// Client sent the SYN; where Begun is false there was none, and it is the end with the higher port.
	Client, Server netip.AddrPort
	Begun          bool
	// First and Last are the times of its first and its last packet.
	First, Last time.Time
	// Outcome is Connected, OutcomeOpen, or the verdict on the last SYN; empty where Begun is false.
	Outcome string
	Closed  Closed
	// Handshake is from the first SYN to the SYN-ACK; 0 where there was none.
	Handshake time.Duration
	// SYNs were sent, and Retransmissions of data or a FIN captured.
	SYNs            int
	Retransmissions int64
	FromClient      Sent
	FromServer      Sent
}

// Sent counts packets, and the bytes of their payload.
type Sent struct{ Packets, Bytes int64 }

// report is the connection for Options.Each.
func (c *conn) report(server uint8) *Connection {
	o := &Connection{Client: c.addr(1 - server), Server: c.addr(server), Begun: c.begun, First: timeOf(c.firstAt), Last: timeOf(c.firstAt),
		Closed: c.closedFor(server), Retransmissions: c.resent, FromClient: c.sent[1-server], FromServer: c.sent[server]}
	if last := c.lastOf(); last != nil {
		o.Last = timeOf(max(c.firstAt, last.at))
	}
	if !c.begun {
		return o
	}
	o.SYNs, o.Outcome = int(c.syn.count), c.ended
	if c.accepted {
		o.Outcome = string(Connected)
	}
	if c.acceptedAt != 0 {
		o.Handshake = time.Duration(max(0, c.acceptedAt-c.syn.first))
	}
	return o
}

// table has the tuples by their last packet, within a bounded memory: the longest silent one makes
// room.
type table struct {
	*simplelru.LRU[key, *conn]
	most  int   // that there were at once
	spare *conn // was evicted last, for the next one
	// forgotten were evicted, shortest is the least silence of those, in nanoseconds.
	forgotten int64
	shortest  int64
}

// perConn is the memory of a tuple with its places in the list and in the index, which is at
// least 7/16 full.
const perConn = int64(unsafe.Sizeof(conn{})+unsafe.Sizeof(key{})) + 64 + int64(unsafe.Sizeof(key{})+8)*16/7

func newTable(memory int64, forget func(key, *conn)) table {
	lru, _ := simplelru.NewLRU(int(max(1, memory/perConn)), forget)
	return table{LRU: lru}
}

// memory at its most, in bytes.
func (t *table) memory() int64 { return int64(t.most) * perConn }

// get returns a tuple, made if need be, and makes it the newest.
func (t *table) get(k *key) *conn {
	c, ok := t.Get(*k)
	if !ok {
		if c, t.spare = t.spare, nil; c == nil {
			c = new(conn)
		}
		*c = conn{key: *k}
		t.Add(*k, c)
		t.most = max(t.most, t.Len())
	}
	return c
}
