package pcap

import (
	"bufio"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/natkit/natkit/internal/frame"
)

// bufferSize has room for the longest frame with its headers, which is parsed in place.
const bufferSize = 2 * MaxFrame

// readAhead is larger: each peek at bufferSize bytes moves the rest to the buffer's beginning.
const readAhead = 4 * bufferSize

// stream is a capture that is read.
type stream struct {
	r      *bufio.Reader
	format format
	offset int64 // of r in the file, decompressed
	s      Stats
	number int64 // of the last frame, as Wireshark counts
	first  int64 // time of the earliest packet
	last   int64 // time of the latest packet
	seen   counts
	header header
	// pending bytes were given to the caller and are consumed with the next packet.
	pending int64
	// ended is set where nothing follows what is buffered.
	ended bool
	// broken is set where the reader itself failed.
	broken error
}

// format is one of the two.
type format interface {
	// next returns the next packet, without Frame; false at the end.
	next(*stream, *Packet) (bool, error)
}

// open finds out what r is.
func open(r io.Reader) (*stream, error) {
	first := bufio.NewReader(r)
	s := &stream{seen: counts{reasons: map[Reason]*ReasonCount{}, udpTunnels: map[string]int64{}}}
	s.s.Interfaces, s.s.Damage = []Interface{}, []Damage{}
	if magic, _ := first.Peek(2); len(magic) == 2 && magic[0] == 0x1f && magic[1] == 0x8b {
		z, err := gzip.NewReader(first)
		if err != nil {
			return nil, fmt.Errorf("read capture: gzip header: %w", err)
		}
		s.r, s.s.Compression = bufio.NewReaderSize(z, readAhead), "gzip"
	} else {
		s.r = bufio.NewReaderSize(first, readAhead)
	}
	magic, err := s.r.Peek(4)
	if len(magic) < 4 {
		return nil, shortFile(len(magic), err)
	}
	return s, s.choose(magic)
}

func shortFile(have int, err error) error {
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read capture: %w", err)
	}
	return fmt.Errorf("read capture: %d bytes are no capture: pcap and pcapng begin with at least 24", have)
}

// Magic numbers (draft-ietf-opsawg-pcap, section 4; draft-ietf-opsawg-pcapng, 4.1).
const (
	magicMicroseconds = 0xa1b2c3d4
	magicNanoseconds  = 0xa1b23c4d
	// magicModified is that of Kuznetsov's pcap, whose records have 8 bytes more.
	magicModified = 0xa1b2cd34
	blockSection  = 0x0a0d0d0a
)

func (s *stream) choose(magic []byte) (err error) {
	if binary.LittleEndian.Uint32(magic) == blockSection { // a palindrome
		s.s.Format, s.format = "pcapng", &pcapng{order: binary.LittleEndian}
		return nil
	}
	s.s.Format = "pcap"
	s.format, err = s.openClassic(magic)
	return err
}

// peek returns up to n bytes, at most bufferSize, without consuming them; fewer at the end.
func (s *stream) peek(n int) []byte {
	if s.ended {
		n = min(n, s.r.Buffered())
	}
	b, err := s.r.Peek(n)
	if err != nil {
		s.ended = true
		s.note(err)
	}
	return b
}

// skip consumes n bytes, and returns how many there were.
func (s *stream) skip(n int64) int64 {
	done, err := s.r.Discard(int(n))
	if err != nil {
		s.note(err)
	}
	s.offset += int64(done)
	return int64(done)
}

// consume skips the packet that was returned.
func (s *stream) consume() {
	want := s.pending
	s.pending = 0
	if have := s.skip(want); have < want {
		s.endWithin("packet", int(have), int(want))
	}
}

// endWithin notes a file that ends within something; before it is a regular end.
func (s *stream) endWithin(what string, have, need int) {
	if have == 0 || s.broken != nil {
		return
	}
	s.damage(Damage{Offset: s.offset, What: fmt.Sprintf("the file ends within a %s: %d of %d bytes", what, have, need), Skipped: int64(have), Ended: true})
	s.skip(int64(have))
}

// note keeps an error of the reader that is not its end.
func (s *stream) note(err error) {
	if !errors.Is(err, io.EOF) && s.broken == nil {
		s.broken = err
	}
}

// next returns the next packet with its number.
func (s *stream) next(p *Packet) (bool, error) {
	*p = Packet{}
	s.consume()
	more, err := s.format.next(s, p)
	if err != nil || !more {
		return false, s.finish(err)
	}
	s.s.Packets++
	s.number++
	p.Number = s.number
	s.count(p)
	return true, nil
}

// finish makes an error of decompression a damage, and keeps all others.
func (s *stream) finish(err error) error {
	if err != nil || s.broken == nil {
		return err
	}
	if s.s.Compression != "" && isDamage(s.broken) {
		s.damage(Damage{Offset: s.offset, What: "gzip: " + s.broken.Error(), Ended: true})
		return nil
	}
	return fmt.Errorf("read capture after frame %d: %w", s.number, s.broken)
}

// damage notes a broken place.
func (s *stream) damage(d Damage) {
	d.After = s.number
	if len(s.s.Damage) == maxDamage {
		s.s.DamageMore++
		return
	}
	s.s.Damage = append(s.s.Damage, d)
}

func (s *stream) count(p *Packet) {
	s.s.Bytes += int64(p.Length)
	s.s.CapturedBytes += int64(len(p.Data))
	if len(p.Data) < p.Length {
		s.s.Cut++
	}
	if p.Interface >= 0 {
		s.s.Interfaces[p.Interface].Packets++
	}
	if s.s.Packets == 1 {
		s.first, s.last = p.At, p.At
	}
	s.first = min(s.first, p.At)
	if p.At < s.last {
		s.s.OutOfOrder++
	}
	s.last = max(s.last, p.At)
}

// stats are the statistics up to here.
func (s *stream) stats() Stats {
	stats := s.s
	stats.FileBytes = s.offset
	if stats.Packets > 0 {
		stats.First, stats.Last = time.Unix(0, s.first).UTC(), time.Unix(0, s.last).UTC()
	}
	s.seen.fill(&stats)
	return stats
}

// reorderedWithin of a later segment an earlier one is reordered, not retransmitted; as in
// Wireshark.
const reorderedWithin = 3_000_000 // ns

// sequence follows the segments that occupy sequence numbers.
func (t *tracker) sequence(c *conn, r *record) {
	if r.flags&frame.FIN != 0 && c.finFirst == 0 {
		c.finFirst = r.from() + 1
	}
	s := &c.side[r.from()]
	if r.length == 0 && r.flags&(frame.SYN|frame.FIN) == 0 {
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
	case r.length == 1 && end == s.next && r.flags&frame.FIN == 0 && r.seq != s.lastSeq: // keep-alive (RFC 9293, 3.8.4)
	case r.length == 1 && c.side[1-r.from()].closedAt(r.seq): // probe of a window (3.8.6.1)
	case r.flags&frame.SYN != 0: // counted by synAgain
	case r.seq != s.lastSeq && r.at-s.lastAt < reorderedWithin:
		t.report.Retransmissions.OutOfOrder++
	default:
		t.report.Retransmissions.Data++
		c.resent++
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
		*a = again{seq: r.seq, at: c.sentAt(r), first: r.number, firstAt: r.at}
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
	for o := range c.recent {
		if o.from() == r.from() && o.seq == r.seq && o.length > 0 {
			at = o.at
		}
	}
	return at
}

// leastBackoff is the least retransmission timeout of Linux (TCP_RTO_MIN), in seconds.
const leastBackoff = 0.15

// backedOff reports whether a segment was sent three times or more at growing intervals. The
// first two may be equal: a tail loss probe precedes the timeout (RFC 8985, section 7).
func (a *again) backedOff() bool {
	for n := 1; n < min(int(a.count), maxIntervals); n++ {
		if a.intervals[n] >= leastBackoff && a.intervals[n] >= 1.5*a.intervals[n-1] {
			return true
		}
	}
	return false
}

// endAgain reports a segment that backed off.
func (t *tracker) endAgain(c *conn, dir uint8) {
	a := c.side[dir].again
	c.side[dir].again = again{}
	if !a.backedOff() {
		return
	}
	if !t.kept.wants(RetransmissionBackoff) {
		return
	}
	i := c.incident(RetransmissionBackoff, c.opener(dir), a.first, a.firstAt, c.remembered(), func(r *record) Role {
		if r.from() == dir && r.seq == a.seq && r.number >= a.first {
			return RoleRetransmit
		}
		return ""
	})
	for n := range min(int(a.count), maxIntervals) {
		i.Intervals = append(i.Intervals, float64(a.intervals[n]))
	}
	t.kept.add(i)
}
