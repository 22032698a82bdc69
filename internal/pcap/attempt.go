package pcap

import "github.com/natkit/natkit/internal/packet"

// syn takes a SYN: the first one of a connection, or one that is sent again.
func (t *tracker) syn(c *conn, r *record, scale uint8) {
	if c.begun && c.client == r.from() && c.syn.seq == r.seq {
		t.synAgain(c, r)
		return
	}
	if c.begun && c.client != r.from() && c.syn.open && c.syn.answer == 0 && r.at-c.syn.at < young {
		c.crossed(r, scale)
		return
	}
	t.begin(c, r, scale)
	t.point(c, r)
}

// crossed takes the SYN of the other end, which meets the first one: both open the same
// connection (RFC 9293, section 3.5).
func (c *conn) crossed(r *record, scale uint8) {
	s := &c.side[r.from()]
	s.next, s.hasNext, s.hasSYN, s.lastAt, s.lastSeq = r.end(), true, true, r.at, r.seq
	s.tsval, s.hasTS, s.scale = r.tsval, r.hasTimestamps(), scale
}

// begin starts a connection on a tuple that may have had one.
func (t *tracker) begin(c *conn, r *record, scale uint8) {
	reused := c.packets > 0
	t.finish(c)
	was := c.former
	if c.accepted || !c.begun && reused {
		was = c.leave(1 - r.from())
	}
	t.report.Connections.Total++
	t.report.Connections.Begun++
	*c = conn{key: c.key, prev: c.prev, next: c.next, is4: c.is4, seen: c.seen, ring: c.ring,
		client: r.from(), begun: true, former: was}
	c.syn = pending{open: true, count: 1, number: r.number, at: r.at, first: r.at, firstNumber: r.number,
		seq: r.seq, id: r.id, tsval: r.tsval, hasTS: r.hasTimestamps(), reused: was.valid}
	s := &c.side[r.from()]
	s.next, s.hasNext, s.hasSYN, s.lastAt, s.lastSeq = r.end(), true, true, r.at, r.seq
	s.tsval, s.hasTS, s.scale = r.tsval, r.hasTimestamps(), scale
	t.moves.begin(c)
	if was.valid {
		t.countReuse(c)
	}
}

// leave is what the connection leaves to the next one, whose SYN the server will get.
func (c *conn) leave(server uint8) former {
	last := c.lastOf()
	if last == nil {
		return former{}
	}
	peer, client := &c.side[server], &c.side[1-server]
	f := former{valid: true, begun: c.begun, closed: c.closedFor(server), number: last.number, at: last.at, since: last.at,
		rcvNxt: peer.ack, hasAck: peer.hasAck, sndNxt: peer.next, tsval: client.tsval, hasTS: client.hasTS && peer.hasTS}
	f.killed = c.reset && f.closed == closedByServer
	return f
}

func (t *tracker) countReuse(c *conn) {
	reuse := &t.report.Reuse
	reuse.Tuples++
	t.reuse.add(c.syn.at - c.former.at)
	if c.former.hasTS && c.syn.hasTS && after(c.former.tsval, c.syn.tsval) {
		reuse.TimestampsBack++
		c.syn.timestampBehind = true
	}
	if c.former.hasAck && !after(c.syn.seq, c.former.rcvNxt) {
		reuse.SequenceBack++
	}
}

// synAgain takes a SYN that was sent before.
func (t *tracker) synAgain(c *conn, r *record) {
	if c.accepted && r.hasTimestamps() && r.tsval == c.syn.tsval && r.id == c.syn.id && r.at-c.syn.at < delayedWithin {
		t.report.Connections.Duplicates++
		return
	}
	t.report.Retransmissions.SYN++
	if n := int(c.syn.count) - 1; n < maxIntervals {
		t.backoff[n].add(r.at - c.syn.at)
	}
	if c.accepted { // the SYN-ACK was lost, or crossed it
		c.syn.at = r.at
		c.syn.count = min(c.syn.count+1, 1<<15)
		return
	}
	t.judge(c)
	c.syn = pending{open: true, count: min(c.syn.count+1, 1<<15), number: r.number, at: r.at, first: c.syn.first,
		firstNumber: c.syn.firstNumber, seq: r.seq, id: r.id, tsval: r.tsval, hasTS: r.hasTimestamps(), reused: c.syn.reused, watched: c.syn.watched,
		timestampBehind: c.syn.timestampBehind}
}

// answer looks whether a packet is about the SYN on which there is no verdict.
func (t *tracker) answer(c *conn, r *record) {
	s := &c.syn
	const about = packet.SYN | packet.RST | packet.ACK
	fromServer := r.from() != c.client
	switch flags := r.flags & about; {
	case !fromServer && flags&packet.RST != 0:
		t.clientReset(c, r)
	case !fromServer: // data of the former connection, or an ACK whose SYN-ACK was not captured
		if flags == packet.ACK && r.seq == s.seq+1 && s.answer == 0 {
			t.accept(c, r)
		}
	case flags == packet.SYN|packet.ACK && c.acknowledgesSYN(r):
		t.accept(c, r)
	case flags&packet.RST != 0:
		if c.acknowledgesSYN(r) {
			s.refused, s.answer = true, r.number
		}
	case flags == packet.ACK && !c.acknowledgesSYN(r):
		s.answer, s.answerAck = r.number, r.ack
		s.answerEcr, s.answerHasTS = r.tsecr, r.hasTimestamps()
		t.trouble(c) // while the packets before it are remembered
		t.moves.watch(c)
	}
}

// acknowledgesSYN reports whether a packet of the server is about the SYN, or about the
// data that it brought, too (RFC 7413).
func (c *conn) acknowledgesSYN(r *record) bool {
	return after(r.ack, c.syn.seq) && !after(r.ack, c.side[c.client].next)
}

// clientReset is what a client answers to an ACK that it did not expect: it ends the
// server's TIME_WAIT (RFC 1337) where its sequence number is the expected one, which it
// takes from that ACK.
func (t *tracker) clientReset(c *conn, r *record) {
	if c.syn.answer != 0 && c.syn.reset == 0 {
		c.syn.reset = r.number
	}
	if r.seq == c.former.rcvNxt || c.syn.answer != 0 && r.seq == c.syn.answerAck {
		c.former.killed = true
	}
}

// accept ends an attempt that succeeded.
func (t *tracker) accept(c *conn, r *record) {
	c.syn.answer, c.syn.reset = 0, 0 // an ACK of the former connection that was late
	c.accepted = true
	t.report.Connections.Established++
	t.moves.accept(c, r.at)
	if c.trouble != nil || c.syn.timestampBehind {
		t.note(c, c.verdictOf(Accepted, 0, 0))
		t.trouble(c).add(r)
		t.emit(c, Connected, r.at)
	}
	c.syn.open = false
	c.former = former{}
}

// close ends an attempt that is given up, by another on the same tuple or by the end.
func (t *tracker) close(c *conn) {
	if !c.syn.open {
		return
	}
	unsettled := (t.ended || t.forgetting) && t.now-c.syn.at < young
	if v, _ := t.verdict(c); v == Unanswered && c.trouble == nil && unsettled {
		t.report.Connections.Pending++
		c.syn.open = false
		return
	}
	t.judge(c)
	outcome := Failed
	if unsettled {
		outcome = OutcomeOpen
	}
	t.emit(c, outcome, 0)
	c.syn.open = false
}

// young is how old a SYN must be to be called unanswered: the time before the first
// retransmission (RFC 6298, section 2).
const young = 1_000_000_000 // ns
