package pcap

import (
	"time"

	"github.com/natkit/natkit/internal/frame"
)

// syn takes a SYN: the first one of a connection, or one that is sent again.
func (t *tracker) syn(c *conn, r *record, scale uint8) {
	if c.begun && c.client == r.from() && c.syn.seq == r.seq {
		t.synAgain(c, r)
		return
	}
	if c.begun && c.client != r.from() && c.syn.open && c.syn.answer == 0 && r.at-c.syn.at < young {
		c.open(r, scale)
		return
	}
	t.begin(c, r, scale)
	t.point(c, r)
}

// open notes the SYN of one end: the client's, or the other's of a simultaneous open (RFC 9293,
// section 3.5).
func (c *conn) open(r *record, scale uint8) {
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
	*c = conn{key: c.key, is4: c.is4, seen: c.seen, ring: c.ring,
		client: r.from(), begun: true, former: was}
	c.syn = pending{open: true, count: 1, number: r.number, at: r.at, first: r.at, firstNumber: r.number,
		seq: r.seq, id: r.id, tsval: r.tsval, hasTS: r.hasTimestamps(), reused: was.valid}
	c.open(r, scale)
	t.moves.begin(c)
	if was.valid {
		t.countReuse(c)
	}
}

// leave returns the state left to the next connection, whose SYN the server will get.
func (c *conn) leave(server uint8) former {
	last := c.lastOf()
	if last == nil {
		return former{}
	}
	peer, client := &c.side[server], &c.side[1-server]
	f := former{valid: true, begun: c.begun, closed: c.closedFor(server), number: last.number, at: last.at, since: last.at,
		rcvNxt: peer.ack, hasAck: peer.hasAck, sndNxt: peer.next, tsval: client.tsval, hasTS: client.hasTS && peer.hasTS}
	f.killed = c.reset && f.closed == ClosedByServer
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
		firstNumber: c.syn.firstNumber, seq: r.seq, id: r.id, tsval: r.tsval, hasTS: r.hasTimestamps(), reused: c.syn.reused, timestampBehind: c.syn.timestampBehind}
}

// answer checks whether a packet answers the pending SYN.
func (t *tracker) answer(c *conn, r *record) {
	s := &c.syn
	const about = frame.SYN | frame.RST | frame.ACK
	fromServer := r.from() != c.client
	switch flags := r.flags & about; {
	case !fromServer && flags&frame.RST != 0:
		t.clientReset(c, r)
	case !fromServer: // data of the former connection, or an ACK whose SYN-ACK was not captured
		if flags == frame.ACK && r.seq == s.seq+1 && s.answer == 0 {
			t.accept(c, r)
		}
	case flags == frame.SYN|frame.ACK && c.acknowledgesSYN(r):
		t.accept(c, r)
	case flags&frame.RST != 0:
		if c.acknowledgesSYN(r) {
			s.refused, s.answer = true, r.number
		}
	case flags == frame.ACK && !c.acknowledgesSYN(r):
		s.answer, s.answerAck, s.answerID = r.number, r.ack, r.id
		s.answerEcr, s.answerHasTS = r.tsecr, r.hasTimestamps()
		t.trouble(c) // while the packets before it are remembered
		t.moves.watch(c)
	}
}

// acknowledgesSYN reports whether a packet acknowledges the SYN or its data (RFC 7413).
func (c *conn) acknowledgesSYN(r *record) bool {
	return after(r.ack, c.syn.seq) && !after(r.ack, c.side[c.client].next)
}

// clientReset handles the client's answer to an unexpected ACK: with the expected sequence
// number, taken from that ACK, it ends the server's TIME_WAIT (RFC 1337).
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
	if r.flags&frame.SYN != 0 {
		c.acceptedAt = r.at
	}
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

// close ends an attempt that was abandoned, for another on the same tuple or at the end.
func (t *tracker) close(c *conn) {
	if !c.syn.open {
		return
	}
	unsettled := (t.ended || t.forgetting) && t.now-c.syn.at < young
	if v, _ := t.verdict(c); v == t.noAnswer() && c.trouble == nil && unsettled {
		t.report.Connections.Pending++
		c.syn.open, c.ended = false, string(OutcomeOpen)
		return
	}
	t.judge(c)
	outcome := Failed
	if unsettled {
		if outcome = OutcomeOpen; c.ended == string(t.noAnswer()) {
			c.ended = string(OutcomeOpen)
		}
	}
	t.emit(c, outcome, 0)
	c.syn.open = false
}

// young is the minimum age of an unanswered SYN: the first timeout (RFC 6298, section 2).
const young = 1_000_000_000 // ns

// judge sets the verdict of an attempt's last SYN, which was not accepted.
func (t *tracker) judge(c *conn) {
	verdict, inferred := t.verdict(c)
	c.ended = string(verdict)
	first := c.syn.count == 1
	switch verdict {
	case RejectedPAWS:
		t.report.RejectedByPAWS++
		// The kernel starts the time anew (tcp_timewait_state_process).
		c.former.since = c.syn.at
	case RejectedSequence:
		t.report.RejectedBySequence++
	}
	if first && c.syn.reused && (verdict == RejectedPAWS || verdict == RejectedSequence) {
		t.report.Reuse.Rejected++
	}
	rcvNxt, tsRecent := c.syn.answerAck, c.syn.answerEcr
	if c.syn.answer == 0 {
		rcvNxt, tsRecent = c.former.rcvNxt, c.former.tsval
	}
	s := c.verdictOf(verdict, rcvNxt, tsRecent)
	s.Inferred = inferred
	t.note(c, s)
}

// verdict follows tcp_timewait_state_process (net/ipv4/tcp_minisocks.c): a SYN is accepted if its
// timestamp is not before the former connection's last one, and either is after it or the
// sequence number is after the expected one.
func (t *tracker) verdict(c *conn) (v Verdict, inferred bool) {
	s, f := &c.syn, &c.former
	switch {
	case s.refused:
		return Refused, false
	case s.answer != 0 && f.open():
		return Challenged, false
	case s.answer != 0:
		return c.answered(), false
	case !t.inTimeWait(c):
		return t.noAnswer(), false
	}
	v = rejection(s, f.rcvNxt, f.tsval, f.hasTS, t.noAnswer())
	return v, v != t.noAnswer()
}

// noAnswer is the verdict on a SYN to which the capture has no answer.
func (t *tracker) noAnswer() Verdict {
	if t.headersAlone {
		return NotAccepted
	}
	return Unanswered
}

// answered is why the former connection's ACK answers the SYN. The ACK carries what the server
// compares with. TIME_WAIT and an open connection answer alike; where the capture does not have the
// former connection's end, the IPv4 identification shows which it was: Linux sends 0 from TIME_WAIT
// (ip_send_unicast_reply, 4.19 and later).
func (c *conn) answered() Verdict {
	s := &c.syn
	v := rejection(s, s.answerAck, s.answerEcr, s.answerHasTS, Challenged)
	switch {
	case v == Challenged, c.former.known():
		return v
	case !c.is4:
		return Undecided
	case s.answerID != 0:
		return Challenged
	}
	return v
}

// known reports whether the capture shows how far the connection was closed. If it began before the
// capture and one FIN is there, the other one may have come before, too.
func (f *former) known() bool { return f.valid && (f.closed != HalfClosed || f.begun) }

// open reports whether the server still has the connection open.
func (f *former) open() bool {
	return f.known() && f.closed != ClosedByServer && f.closed != ClosedByClient
}

// inTimeWait reports whether the server must have the former connection in TIME_WAIT.
func (t *tracker) inTimeWait(c *conn) bool {
	f := &c.former
	return f.valid && f.hasAck && !f.killed && f.closed == ClosedByServer && c.syn.at-f.since < int64(t.o.TimeWait)
}

// rejection is why TIME_WAIT rejects a SYN; otherwise where it would take it.
func rejection(s *pending, rcvNxt, tsRecent uint32, hasTS bool, otherwise Verdict) Verdict {
	both := hasTS && s.hasTS
	switch {
	case both && tsRecent != 0 && after(tsRecent, s.tsval): // 0 is none (tcp_paws_check)
		return RejectedPAWS
	case after(s.seq, rcvNxt), both && after(s.tsval, tsRecent):
		return otherwise
	}
	return RejectedSequence
}

// verdictOf is the SYN with a verdict.
func (c *conn) verdictOf(v Verdict, rcvNxt, tsRecent uint32) SYN {
	s := &c.syn
	syn := SYN{Frame: s.number, Time: timeOf(s.at), Verdict: v, Seq: s.seq, Reset: s.reset}
	if s.hasTS {
		syn.TSVal = new(s.tsval)
	}
	if v == Accepted || v == Unanswered || v == NotAccepted {
		return syn
	}
	syn.Answer = s.answer
	if v == Refused {
		return syn
	}
	if s.answer != 0 && c.is4 && !c.former.known() {
		syn.AnswerID = new(s.answerID)
	}
	syn.RcvNxt = new(rcvNxt)
	if s.hasTS && (s.answerHasTS || s.answer == 0 && c.former.hasTS) {
		syn.TSRecent = new(tsRecent)
	}
	return syn
}

func timeOf(at int64) time.Time { return time.Unix(0, at).UTC() }

func seconds(ns int64) float64 { return float64(max(0, ns)) / 1e9 }

// Kind is the kind of an incident. Its text is stable.
type Kind string

// The kinds, the most serious first.
const (
	// SYNRejectedPAWS is a SYN on a tuple in TIME_WAIT at the server, with a timestamp before the
	// former connection's (RFC 7323, section 5).
	SYNRejectedPAWS Kind = "syn-rejected-paws"
	// SYNRejectedSeq is the same without timestamps or with equal ones: the initial sequence
	// number is not after the former one's end.
	SYNRejectedSeq Kind = "syn-rejected-seq"
	// SYNOnOpen is a SYN on a connection open at the server, answered by a challenge ACK (RFC
	// 5961, section 4).
	SYNOnOpen Kind = "syn-on-open-connection"
	// SYNOnFormer is a SYN on a tuple that is either in TIME_WAIT or open at the server: the
	// capture does not show which.
	SYNOnFormer Kind = "syn-on-former-connection"
	// SYNUnanswered is a SYN without any answer.
	SYNUnanswered Kind = "syn-unanswered"
	// SYNNotAccepted is a SYN without SYN-ACK or RST, in a file that would not have an answer by ACK alone.
	SYNNotAccepted Kind = "syn-not-accepted"
	// RSTOutOfWindow is an RST that its receiver ignores.
	RSTOutOfWindow Kind = "rst-out-of-window"
	// RetransmissionBackoff is a segment that was sent three times or more.
	RetransmissionBackoff Kind = "retransmission-backoff"
	// ICMPErrorKind is an ICMP error message about a connection of the capture.
	ICMPErrorKind Kind = "icmp-error"
	// SYNRefused is a SYN answered by RST.
	SYNRefused Kind = "syn-refused"
	// TimestampBack is an accepted reuse with a timestamp before the former one's.
	TimestampBack Kind = "timestamp-back-accepted"
)

// Kinds are all of them, the most serious first.
var Kinds = []Kind{SYNRejectedPAWS, SYNRejectedSeq, SYNOnOpen, SYNOnFormer, SYNUnanswered, SYNNotAccepted, RSTOutOfWindow, RetransmissionBackoff, ICMPErrorKind, SYNRefused, TimestampBack}

// Verdict is what became of a SYN. Its text is stable.
type Verdict string

// The verdicts.
const (
	RejectedPAWS     Verdict = "rejected-paws"
	RejectedSequence Verdict = "rejected-seq"
	Challenged       Verdict = "challenged"
	Undecided        Verdict = "rejected-or-challenged"
	Unanswered       Verdict = "unanswered"
	NotAccepted      Verdict = "not-accepted"
	Accepted         Verdict = "accepted"
	Refused          Verdict = "refused"
)

// Outcome is how an attempt to connect ended. Its text is stable.
type Outcome string

// The outcomes.
const (
	Connected Outcome = "connected"
	Failed    Outcome = "failed"
	// Moved is an attempt whose SYN came again from another port; see Continued.
	Moved       Outcome = "moved"
	OutcomeOpen Outcome = "open-at-end" // the capture or the memory of it ended before
)

// Closed is how far a connection was closed. Its text is stable.
type Closed string

const (
	NotClosed      Closed = "open"
	HalfClosed     Closed = "half-closed"  // one FIN is in the capture
	ClosedByServer Closed = "server-first" // TIME_WAIT is the server's
	ClosedByClient Closed = "client-first"
	ClosedByReset  Closed = "reset"
)

// Role is what a packet of a ladder is to its incident. Its text is stable.
type Role string

// The roles.
const (
	RoleFormer     Role = "former"     // belongs to the connection before
	RoleSYN        Role = "syn"        // the new SYN
	RoleOldACK     Role = "old-ack"    // the former connection's ACK
	RoleReset      Role = "reset"      // the RST that follows, or is the incident
	RoleSYNACK     Role = "syn-ack"    // the new connection is accepted
	RoleRetransmit Role = "retransmit" // sent before
)

// Options of Read. The zero value means the usual ones.
type Options struct {
	// Memory bounds what is kept of connections and clocks, in bytes; 256 MiB.
	Memory int64
	// Incidents bounds how many are kept of each kind; all are counted; 10,000.
	Incidents int
	// TimeWait of the server, for SYNs without answer; 60 s (TCP_TIMEWAIT_LEN of Linux).
	TimeWait time.Duration
	// Each, where set, receives every TCP connection once it is over, or forgotten.
	Each func(*Connection)
	// Only selects packets whose connections are followed; nil is all. Stats has all packets.
	Only func(*Packet) bool
}

// Bounds of Options.Memory.
const (
	MinMemory     = 4 << 20
	DefaultMemory = 256 << 20
)
