package text

import (
	"bytes"

	"github.com/natkit/natkit/internal/conntrack"
	"golang.org/x/sys/unix"
)

// words reads a line of conntrack -L or /proc/net/nf_conntrack:
//
//	[ipv4 2] tcp 6 [431999] [ESTABLISHED] src=… dst=… sport=… dport=… [UNREPLIED]
//	src=… dst=… sport=… dport=… [ASSURED] mark=0 use=1
func (p *parser) words(s *scanner, e *conntrack.Entry) string {
	if why := p.head(s, e); why != "" {
		return why
	}
	w := wordParser{parser: p, scanner: s, e: e, seenReply: conntrack.SeenReply}
	for !s.end() {
		if why := w.word(); why != "" {
			return why
		}
	}
	if w.ports < 4 && e.Reply.Dst.IsValid() && alwaysHasPorts(e.Orig.Proto) {
		return noPorts
	}
	e.Status |= conntrack.Confirmed | w.seenReply
	if e.IsSNAT() {
		e.Status |= conntrack.SrcNAT
	}
	if e.IsDNAT() {
		e.Status |= conntrack.DstNAT
	}
	return ""
}

// alwaysHasPorts names the protocols whose ports every kernel tells; the others
// it may be built without.
func alwaysHasPorts(proto uint8) bool {
	return proto == unix.IPPROTO_TCP || proto == unix.IPPROTO_UDP
}

// head reads up to the first address: protocols, timeout and state.
func (p *parser) head(s *scanner, e *conntrack.Entry) string {
	if s.b[s.i] == '[' {
		return whyEvent
	}
	if c := s.b[s.i] | 0x20; c-'a' > 'z'-'a' {
		s.word()
		return notHead(s)
	}
	name := s.word()
	if (string(name) == "ipv4" || string(name) == "ipv6") && !s.end() {
		s.word() // its number
		s.end()
		s.word() // the transport's name; its number tells more
	}
	if s.end() {
		return whyOther
	}
	n, ok := s.decimal(255)
	if !ok {
		return notHead(s)
	}
	e.Orig.Proto = uint8(n)
	if s.end() {
		return noTuple
	}
	if c := s.b[s.i]; c-'0' <= 9 {
		n, ok := s.decimal(1<<32 - 1)
		if !ok {
			return "its timeout is no number of seconds"
		}
		e.Timeout = uint32(n)
		e.Fields &^= conntrack.NoTimeout
		if s.end() {
			return noTuple
		}
	}
	if c := s.b[s.i]; c-'A' <= 'Z'-'A' {
		p.state = s.word()
	}
	return ""
}

// notHead says what a line is that does not begin like an entry.
func notHead(s *scanner) string {
	if bytes.Contains(s.b, []byte("mask-src=")) || bytes.Contains(s.b, []byte(" proto=")) {
		return whyExpect
	}
	return whyOther
}
