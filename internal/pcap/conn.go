package pcap

import (
	"net/netip"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/natkit/natkit/internal/frame"
)

// key is a tuple, the same for both directions.
type key struct {
	addr [2][16]byte
	port [2]uint16
}

// keyOf returns the key, and which of its ends is the source.
func keyOf(source, destination netip.Addr, from, to uint16) (k key, dir uint8) {
	if c := source.Compare(destination); c > 0 || c == 0 && from > to {
		source, destination, from, to, dir = destination, source, to, from, 1
	}
	k.addr[0], k.addr[1] = source.As16(), destination.As16()
	k.port[0], k.port[1] = from, to
	return k, dir
}

// record is what a ladder needs of a packet; many are kept.
type record struct {
	number, at   int64
	seq, ack     uint32
	tsval, tsecr uint32
	length       uint32
	window       uint16
	id           uint16 // of IPv4: 0 where the sender has none
	flags        frame.TCPFlags
	dir          uint8 // the low bit; recordTS is the second one
}

const recordTS = 2

func (r *record) from() uint8         { return r.dir & 1 }
func (r *record) hasTimestamps() bool { return r.dir&recordTS != 0 }

func recordOf(p *Packet, dir uint8) record {
	tcp := &p.Frame.TCP
	r := record{number: p.Number, at: p.At, seq: tcp.SequenceNumber, ack: tcp.AcknowledgmentNumber,
		length: uint32(len(p.Frame.Payload) + p.Frame.Missing), window: tcp.Window, flags: tcp.Flags, dir: dir}
	if p.HasTimestamps {
		r.tsval, r.tsecr, r.dir = p.TSVal, p.TSEcr, dir|recordTS
	}
	if p.Frame.Version == 4 {
		r.id = p.Frame.IPv4.Identification
	}
	return r
}

// isSYN reports whether the packet begins a connection.
func (r *record) isSYN() bool {
	return r.flags&(frame.SYN|frame.ACK|frame.RST|frame.FIN) == frame.SYN
}

// end returns the sequence number after the segment.
func (r *record) end() uint32 {
	end := r.seq + r.length
	if r.flags&frame.SYN != 0 {
		end++
	}
	if r.flags&frame.FIN != 0 {
		end++
	}
	return end
}

// side is what one end of a connection sent.
type side struct {
	next  uint32 // behind the highest sequence number
	ack   uint32 // highest acknowledgement number
	right uint32 // right edge of the window that it offered
	tsval uint32 // highest timestamp
	// The last segment that occupied sequence numbers.
	lastSeq uint32
	lastAt  int64
	again   again
	scale   uint8
	// clock is the number of its clock in the pair, fed when it gave its last point.
	clock                          uint8
	fed                            int64
	fedVal                         uint32
	hasNext, hasAck, hasTS, hasSYN bool
	fin                            bool
}

// again is a segment that was sent more than once.
type again struct {
	seq       uint32
	count     uint8 // transmissions after the first
	at        int64
	first     int64 // frame of the first retransmission
	firstAt   int64
	intervals [maxIntervals]float32
}

const maxIntervals = 6

// ringSize is how many packets of a tuple are remembered.
const ringSize = 8

// conn is a tuple with its current connection and the remains of the former one.
type conn struct {
	key key
	is4 bool
	// client is the end that sent the SYN, where begun.
	client uint8
	begun  bool
	// accepted: the SYN-ACK was seen, or data.
	accepted bool
	reset    bool
	icmp     bool // an ICMP error was about it
	// finFirst is the end that sent the first FIN, plus one.
	finFirst uint8
	side     [2]side
	syn      pending
	former   former
	packets  int64 // of this connection
	// sent is what came from each end.
	sent [2]Sent
	// firstAt is the time of the first packet, acceptedAt that of the SYN-ACK; 0 where there is none.
	firstAt, acceptedAt int64
	// resent are retransmissions of data.
	resent int64
	// ended is how the attempt to connect ended; empty where it succeeded.
	ended   string
	seen    uint32
	ring    [ringSize]record
	trouble *trouble
	ignored *ignoredRST
}

// pending is the last SYN, on which there is no verdict yet.
type pending struct {
	open            bool
	number, at      int64
	first           int64 // time of the attempt's first SYN
	firstNumber     int64
	seq, tsval      uint32
	hasTS           bool
	count, id       uint16 // id is the last one's identification
	answerID        uint16
	answer, reset   int64 // frames
	answerAck       uint32
	answerEcr       uint32
	answerHasTS     bool
	refused         bool
	reused          bool
	timestampBehind bool
}

// former is what a tuple's last connection left.
type former struct {
	valid, killed, hasTS, hasAck bool
	begun                        bool // its SYN is in the capture
	closed                       Closed
	number, at                   int64 // last packet
	since                        int64 // the receiver of the SYN is in TIME_WAIT at least from here on
	rcvNxt, sndNxt, tsval        uint32
}

// addr returns an end as in the packet.
func (c *conn) addr(i uint8) netip.AddrPort {
	a := netip.AddrFrom16(c.key.addr[i])
	if c.is4 {
		a = a.Unmap()
	}
	return netip.AddrPortFrom(a, c.key.port[i])
}

// push remembers a packet.
func (c *conn) push(r record) {
	c.ring[c.seen%ringSize] = r
	c.seen++
	if c.packets == 0 {
		c.firstAt = r.at
	}
	c.packets++
	c.sent[r.from()].Packets++
	c.sent[r.from()].Bytes += int64(r.length)
}

// recent are the remembered packets, the oldest first.
func (c *conn) recent(yield func(*record) bool) {
	for i := c.seen - min(c.seen, ringSize); i != c.seen && yield(&c.ring[i%ringSize]); i++ {
	}
}

// remembered returns a copy of them.
func (c *conn) remembered() (records []record) {
	for r := range c.recent {
		records = append(records, *r)
	}
	return records
}

// lastOf is the last packet remembered; nil where there is none.
func (c *conn) lastOf() *record {
	if c.seen == 0 {
		return nil
	}
	return &c.ring[(c.seen-1)%ringSize]
}

// after reports whether a is after b in sequence space (RFC 9293, section 3.4); also for
// timestamps.
func after(a, b uint32) bool { return int32(a-b) > 0 }

// closedFor returns how the connection was closed, seen by the end that will get a SYN.
func (c *conn) closedFor(server uint8) Closed {
	switch {
	case c.side[0].fin && c.side[1].fin && c.finFirst == server+1:
		return ClosedByServer
	case c.side[0].fin && c.side[1].fin:
		return ClosedByClient
	case c.reset:
		return ClosedByReset
	case c.side[0].fin || c.side[1].fin:
		return HalfClosed
	}
	return NotClosed
}

// moves follows rejected SYNs that come again from another port: a NAT that forgot the attempt
// chooses a new port for the next transmission. The random sequence number identifies it.
type moves struct {
	of *simplelru.LRU[moveKey, *move]
}

type moveKey struct {
	client, server [16]byte
	port           uint16 // the server's
	isn            uint32
}

// move is the last port that a SYN came from.
type move struct {
	port      uint16
	frame     int64
	connected int64 // time of the SYN-ACK; 0 where there is none
}

func newMoves(memory int64) moves {
	const each = 256
	lru, _ := simplelru.NewLRU[moveKey, *move](int(max(1, memory/each)), nil)
	return moves{lru}
}

// at returns the move of the connection's SYN; nil where none was rejected.
func (m *moves) at(c *conn) *move {
	if m.of.Len() == 0 {
		return nil
	}
	known, _ := m.of.Get(c.moveKey())
	return known
}

func (c *conn) moveKey() moveKey {
	k := &c.key
	return moveKey{k.addr[c.client], k.addr[1-c.client], k.port[1-c.client], c.syn.seq}
}

// watch waits for the SYN of an attempt that was rejected.
func (m *moves) watch(c *conn) {
	if m.at(c) == nil {
		m.of.Add(c.moveKey(), &move{port: c.key.port[c.client], frame: c.syn.number})
	}
}

// begin notes an attempt that may be another's.
func (m *moves) begin(c *conn) {
	if known := m.at(c); known != nil {
		known.port, known.frame = c.key.port[c.client], c.syn.number
	}
}

// accept notes that a SYN was accepted.
func (m *moves) accept(c *conn, at int64) {
	if known := m.at(c); known != nil {
		known.connected = at
	}
}

// fill adds to incidents where their SYN moved, by whatever number of ports.
func (m *moves) fill(list []Incident) {
	for n := range list {
		i := &list[n]
		if len(i.SYNs) == 0 || i.Outcome == Connected {
			continue
		}
		known, _ := m.of.Get(moveKey{i.Client.Addr().As16(), i.Server.Addr().As16(), i.Server.Port(), i.SYNs[0].Seq})
		if known == nil || known.port == i.Client.Port() {
			continue
		}
		i.Outcome = Moved
		i.Continued = &Continued{Client: netip.AddrPortFrom(i.Client.Addr(), known.port), Frame: known.frame, Connected: known.connected != 0}
		if known.connected != 0 {
			i.ConnectSeconds = seconds(known.connected - i.Time.UnixNano())
		}
	}
}
