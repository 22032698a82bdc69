package pcap

import "time"

// judge gives the last SYN of an attempt, which was not accepted, its verdict.
func (t *tracker) judge(c *conn) {
	verdict, inferred := t.verdict(c)
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

// verdict follows tcp_timewait_state_process (net/ipv4/tcp_minisocks.c): a SYN is
// taken where its timestamp is not behind the last one of the former connection, and
// either is ahead of it or the sequence number is after the expected one.
func (t *tracker) verdict(c *conn) (v Verdict, inferred bool) {
	s, f := &c.syn, &c.former
	switch {
	case s.refused:
		return Refused, false
	case s.answer != 0 && f.valid && f.open():
		return Challenged, false
	case s.answer != 0:
		// The answer itself tells what the server compares with.
		return rejection(s, s.answerAck, s.answerEcr, s.answerHasTS, Challenged), false
	case !t.inTimeWait(c):
		return Unanswered, false
	}
	v = rejection(s, f.rcvNxt, f.tsval, f.hasTS, Unanswered)
	return v, v != Unanswered
}

// open reports whether the server must have the connection open still. Where it began before
// the capture, the other FIN may have come before, too.
func (f *former) open() bool {
	switch f.closed {
	case closedByServer, closedByClient:
		return false
	case halfClosed:
		return f.begun
	}
	return true
}

// inTimeWait reports whether the server must have the former connection in TIME_WAIT.
func (t *tracker) inTimeWait(c *conn) bool {
	f := &c.former
	return f.valid && f.hasAck && !f.killed && f.closed == closedByServer && c.syn.at-f.since < int64(t.o.TimeWait)
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
		syn.TSVal = pointer(s.tsval)
	}
	if v == Accepted || v == Unanswered {
		return syn
	}
	syn.Answer = s.answer
	if v == Refused {
		return syn
	}
	syn.RcvNxt = pointer(rcvNxt)
	if s.hasTS && (s.answerHasTS || s.answer == 0 && c.former.hasTS) {
		syn.TSRecent = pointer(tsRecent)
	}
	return syn
}

func pointer(v uint32) *uint32 { return &v }

func timeOf(at int64) time.Time { return time.Unix(0, at).UTC() }

func seconds(ns int64) float64 { return float64(max(0, ns)) / 1e9 }
