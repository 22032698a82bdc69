package pcap

import "github.com/natkit/natkit/internal/packet"

// reorderedWithin is how shortly after a later segment an earlier one is taken for
// delayed by the network rather than sent again; Wireshark has the same.
const reorderedWithin = 3_000_000 // ns

// sequence follows the segments that occupy sequence numbers.
func (t *tracker) sequence(c *conn, r *record) {
	c.noteFIN(r)
	s := &c.side[r.from()]
	if r.length == 0 && r.flags&(packet.SYN|packet.FIN) == 0 {
		if !s.hasNext {
			s.next, s.hasNext = r.seq, true
		}
		return
	}
	end := r.end()
	if !s.hasNext || after(end, s.next) {
		t.endAgain(c, r.from())
		s.next, s.hasNext = end, true
		s.lastSeq, s.lastAt = r.seq, r.at
		return
	}
	switch {
	case r.length == 1 && end == s.next && r.flags&packet.FIN == 0 && r.seq != s.lastSeq: // keep-alive (RFC 9293, 3.8.4)
	case r.length == 1 && c.side[1-r.from()].closedAt(r.seq): // probe of a window (3.8.6.1)
	case r.flags&packet.SYN != 0: // counted where it was told from a first one
	case r.seq != s.lastSeq && r.at-s.lastAt < reorderedWithin:
		t.report.Retransmissions.OutOfOrder++
	default:
		t.report.Retransmissions.Data++
		t.sentAgain(c, r)
	}
}

// closedAt reports whether the end's window ends there: it has no room for more.
func (s *side) closedAt(seq uint32) bool { return s.hasAck && s.right == seq }

// sentAgain notes a retransmission.
func (t *tracker) sentAgain(c *conn, r *record) {
	a := &c.side[r.from()].again
	if a.count == 0 || a.seq != r.seq {
		t.endAgain(c, r.from())
		*a = again{seq: r.seq, at: c.sentAt(r), first: r.number}
	}
	if int(a.count) < maxIntervals {
		a.intervals[a.count] = float32(seconds(r.at - a.at))
	}
	a.count = min(a.count+1, 200)
	a.at = r.at
}

// sentAt is when a segment was sent before.
func (c *conn) sentAt(r *record) int64 {
	at := c.side[r.from()].lastAt
	c.recent(func(o *record) {
		if o.from() == r.from() && o.seq == r.seq && o.length > 0 {
			at = o.at
		}
	})
	return at
}

// leastBackoff is the shortest time that a retransmission timer of Linux has
// (TCP_RTO_MIN); what is faster is another mechanism.
const leastBackoff = 0.15

// backedOff reports whether a segment was sent three times or more, with times between that
// grow. The first two may be alike: Linux sends a tail loss probe before its
// retransmission timer expires (RFC 8985, section 7).
func (a *again) backedOff() bool {
	for n := 1; n < min(int(a.count), maxIntervals); n++ {
		if a.intervals[n] >= leastBackoff && a.intervals[n] >= 1.5*a.intervals[n-1] {
			return true
		}
	}
	return false
}

// endAgain reports a segment that was sent three times or more, with growing times
// between.
func (t *tracker) endAgain(c *conn, dir uint8) {
	a := c.side[dir].again
	c.side[dir].again = again{}
	if !a.backedOff() {
		return
	}
	if !t.kept.wants(RetransmissionBackoff) {
		return
	}
	client := dir
	if c.begun {
		client = c.client
	}
	i := Incident{Kind: RetransmissionBackoff, Client: c.addr(client), Server: c.addr(1 - client), Frame: a.first, Time: timeOf(c.timeOfFrame(a.first, a.at))}
	for n := range min(int(a.count), maxIntervals) {
		i.Intervals = append(i.Intervals, float64(a.intervals[n]))
	}
	i.Ladder = t.remembered(c, client, func(r *record) Role {
		if r.from() == dir && r.seq == a.seq && r.number >= a.first {
			return RoleRetransmit
		}
		return ""
	})
	t.kept.add(i)
}

// timeOfFrame is when a packet came that the connection remembers, or else otherwise.
func (c *conn) timeOfFrame(number, otherwise int64) int64 {
	at := otherwise
	c.recent(func(r *record) {
		if r.number == number {
			at = r.at
		}
	})
	return at
}

// remembered is a ladder of the packets that the connection remembers.
func (t *tracker) remembered(c *conn, client uint8, role func(*record) Role) []Step {
	var records []record
	c.recent(func(r *record) { records = append(records, *r) })
	return ladder(records, client, role)
}
