package pcap

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Lengths of the headers of pcap (draft-ietf-opsawg-pcap).
const (
	classicHeader = 24
	recordHeader  = 16
	// modifiedRecord has an interface's index, protocol and packet type behind it.
	modifiedRecord = 24
)

// classic is a pcap file.
type classic struct {
	order  binary.ByteOrder
	perSec uint32 // 1e6 or 1e9: units of the second half of a time
	record int    // length of a record's header
	// longest is the longest record that is believed.
	longest uint32
	last    uint32 // seconds of the record before; 0 before the first
}

func (s *stream) openClassic(magic []byte) (format, error) {
	c, ok := classicOf(magic)
	if !ok {
		return nil, fmt.Errorf("read capture: it begins with %#x: neither pcap nor pcapng (nor gzip)", magic)
	}
	header := s.peek(classicHeader)
	if len(header) < classicHeader {
		return nil, shortFile(len(header), s.broken)
	}
	if major := c.order.Uint16(header[4:]); major != 2 {
		return nil, fmt.Errorf("read capture: pcap version %d: only 2 is known", major)
	}
	c.longest = min(max(c.order.Uint32(header[16:]), MaxFrame), maxRecord)
	// The upper bits tell of an FCS (draft-ietf-opsawg-pcap, section 4).
	link := int(c.order.Uint32(header[20:]) & 0xffff)
	s.addInterface(Interface{LinkType: link})
	s.skip(classicHeader)
	return c, nil
}

// maxRecord is the longest record that a header may announce.
const maxRecord = 64 << 20

func classicOf(magic []byte) (*classic, bool) {
	for _, order := range []binary.ByteOrder{binary.LittleEndian, binary.BigEndian} {
		switch order.Uint32(magic) {
		case magicMicroseconds:
			return &classic{order: order, perSec: 1e6, record: recordHeader}, true
		case magicNanoseconds:
			return &classic{order: order, perSec: 1e9, record: recordHeader}, true
		case magicModified:
			return &classic{order: order, perSec: 1e6, record: modifiedRecord}, true
		}
	}
	return nil, false
}

// entry is a record's header.
type entry struct {
	seconds, fraction uint32
	captured, length  uint32
}

func (c *classic) entry(b []byte) entry {
	return entry{c.order.Uint32(b), c.order.Uint32(b[4:]), c.order.Uint32(b[8:]), c.order.Uint32(b[12:])}
}

func (c *classic) next(s *stream, p *Packet) (bool, error) {
	header := s.peek(c.record)
	if len(header) < c.record {
		s.endWithin("record header", len(header), c.record)
		return false, nil
	}
	e := c.entry(header)
	if !c.believable(e) {
		what := fmt.Sprintf("record of %d captured bytes of %d, at second %d", e.captured, e.length, e.seconds)
		if !c.resume(s, what) {
			return false, nil
		}
		e = c.entry(s.peek(c.record))
	}
	return c.take(s, e, p), nil
}

// take gives the packet of a record; none where the file ends within it and nothing
// of it is there.
func (c *classic) take(s *stream, e entry, p *Packet) bool {
	want := c.record + int(min(e.captured, MaxFrame))
	b := s.peek(want)
	if len(b) < want {
		s.endWithin("record", len(b), c.record+int(e.captured))
		return false
	}
	p.Data = b[c.record:]
	p.At = nanoseconds(e.seconds, e.fraction, c.perSec)
	p.Length = int(max(e.length, e.captured))
	c.last = e.seconds
	s.pending = int64(c.record) + int64(e.captured)
	return true
}

func nanoseconds(seconds, fraction, perSec uint32) int64 {
	return int64(seconds)*1e9 + int64(fraction)*int64(1e9/perSec)
}

// believable reports whether a header can be one: programs write neither more than the
// snapshot length (but for those that do not keep to it), nor fractions above a second.
func (c *classic) believable(e entry) bool {
	return e.captured <= c.longest && e.length <= math.MaxInt32 && e.fraction < c.perSec
}
