package pcap

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"slices"
)

// Blocks (draft-ietf-opsawg-pcapng, section 4 and appendix).
const (
	blockInterface  = 1
	blockPacket     = 2 // obsolete
	blockSimple     = 3
	blockStatistics = 5
	blockEnhanced   = 6
	blockJournal    = 9 // of systemd

	byteOrderMagic = 0x1a2b3c4d
	// leastBlock is a block without a body, leastSection one of a section.
	leastBlock   = 12
	leastSection = 28
)

// blocksSysdig are the events of sysdig and Falco. Wireshark numbers them like packets, as it
// does the journal's (wiretap/pcapng.c, pcapng_sysdig.c).
var blocksSysdig = [...]uint32{0x204, 0x208, 0x216, 0x217, 0x221, 0x222}

// maxInterfaces bounds how many interfaces are remembered.
const maxInterfaces = 4096

// pcapng is a pcapng file.
type pcapng struct {
	order binary.ByteOrder
	// ifaces are the interfaces of this section.
	ifaces []ngInterface
}

// ngInterface is what packets need of an interface.
type ngInterface struct {
	index   int // in Stats.Interfaces; -1 where there are too many
	snapLen uint32
	clock   resolution
	dropped bool
	// headersAlone: see HeadersAlone.
	headersAlone bool
}

// block is one block; its body may be cut to bufferSize.
type block struct {
	order binary.ByteOrder
	kind  uint32
	total int64
	body  []byte
}

// next reads blocks up to the next packet.
func (n *pcapng) next(s *stream, p *Packet) (bool, error) {
	for {
		s.consume()
		b, ok := n.block(s)
		if !ok {
			return false, nil
		}
		s.pending = b.total
		if n.packet(s, &b, p) {
			return true, nil
		}
	}
}

// block peeks at the next block that is not broken.
func (n *pcapng) block(s *stream) (block, bool) {
	for {
		head := s.peek(leastBlock)
		if len(head) < leastBlock {
			s.endWithin("block", len(head), leastBlock)
			return block{}, false
		}
		b, ok := n.begin(head)
		problem := ""
		if !ok {
			problem = fmt.Sprintf("length %d of a block of type %#x", b.total, b.kind)
		} else if problem = b.read(s); problem == "" {
			n.order = b.order
			return b, true
		}
		if !s.search(4, problem, n.findIn) {
			return block{}, false
		}
	}
}

// leastLengths are how long blocks of the kinds that matter are at least.
var leastLengths = map[uint32]int64{
	blockSection: leastSection, blockInterface: leastBlock + 8, blockPacket: leastBlock + 20, blockEnhanced: leastBlock + 20,
	blockSimple: leastBlock + 4, blockStatistics: leastBlock + 12,
}

// begin reads a block's type and length, and reports whether they are possible. A section has the
// byte order.
func (n *pcapng) begin(b []byte) (block, bool) {
	blk := block{order: n.order}
	if binary.LittleEndian.Uint32(b) == blockSection && binary.BigEndian.Uint32(b[8:]) == byteOrderMagic {
		blk.order = binary.BigEndian
	} else if binary.LittleEndian.Uint32(b) == blockSection {
		blk.order = binary.LittleEndian
	}
	blk.kind, blk.total = blk.order.Uint32(b), int64(blk.order.Uint32(b[4:]))
	if blk.kind == blockSection && blk.order.Uint32(b[8:]) != byteOrderMagic {
		return blk, false
	}
	return blk, blk.total%4 == 0 && blk.total >= leastBlock && blk.total >= leastLengths[blk.kind]
}

// read peeks at a block's body, and compares the length after it; problem describes what is broken.
func (b *block) read(s *stream) (problem string) {
	want := min(b.total, bufferSize)
	whole := s.peek(int(want))
	if int64(len(whole)) < want {
		return fmt.Sprintf("the file ends within a block: it has %d of the %d bytes of type %#x", len(whole), b.total, b.kind)
	}
	b.body = whole[8:]
	if b.total > want {
		return ""
	}
	b.body = whole[8 : b.total-4]
	if again := b.order.Uint32(whole[b.total-4:]); int64(again) != b.total {
		return fmt.Sprintf("a block of type %#x has length %d before and %d behind it", b.kind, b.total, again)
	}
	return ""
}

// findIn returns where in b a whole block of a kind that matters begins, or -1. Blocks of a broken
// file may be misaligned.
func (n *pcapng) findIn(b []byte, _ bool) int {
	for i := 0; i < min(len(b), window) && i+leastBlock <= len(b); i++ {
		if kind := n.order.Uint32(b[i:]); kind != blockSection && kind-1 >= blockEnhanced {
			continue // most often
		}
		blk, ok := n.begin(b[i:])
		end := int64(i) + blk.total
		if ok && end <= int64(len(b)) && leastLengths[blk.kind] > 0 && int64(blk.order.Uint32(b[end-4:])) == blk.total {
			return i
		}
	}
	return -1
}

// packet processes a block, and reports whether it is a packet.
func (n *pcapng) packet(s *stream, b *block, p *Packet) bool {
	switch b.kind {
	case blockSection:
		n.ifaces = n.ifaces[:0]
	case blockInterface:
		n.addInterface(s, b.body)
	case blockStatistics:
		n.statistics(s, b.body)
	case blockEnhanced, blockPacket:
		id := n.order.Uint32(b.body)
		if b.kind == blockPacket {
			id = uint32(n.order.Uint16(b.body))
		}
		n.fill(s, p, id, n.timestamp(b.body[4:]))
		n.data(p, b.body[20:], n.order.Uint32(b.body[12:]), n.order.Uint32(b.body[16:]))
		return true
	case blockSimple:
		n.simple(s, b.body, p)
		return true
	default:
		if b.kind == blockJournal || slices.Contains(blocksSysdig[:], b.kind) {
			s.number++
		}
	}
	return false
}

// timestamp reads the upper and the lower word of a time.
func (n *pcapng) timestamp(b []byte) uint64 {
	return uint64(n.order.Uint32(b))<<32 | uint64(n.order.Uint32(b[4:]))
}

// simple packets belong to the first interface, and get the time of the latest packet before.
func (n *pcapng) simple(s *stream, b []byte, p *Packet) {
	length := n.order.Uint32(b)
	captured := min(length, uint32(len(b)-4))
	n.fill(s, p, 0, 0)
	p.At = s.last
	if len(n.ifaces) > 0 && n.ifaces[0].snapLen > 0 {
		captured = min(captured, n.ifaces[0].snapLen)
	}
	n.data(p, b[4:], captured, length)
}

// fill notes interface and time.
func (n *pcapng) fill(s *stream, p *Packet, id uint32, at uint64) {
	if int64(id) >= int64(len(n.ifaces)) {
		p.Interface, p.Reason, p.At = -1, UnknownInterface, s.last
		return
	}
	iface := &n.ifaces[id]
	p.Interface, p.At, p.Dropped, p.HeadersAlone = iface.index, iface.clock.nanoseconds(at), iface.dropped, iface.headersAlone
	if iface.index < 0 {
		p.Reason = UnknownInterface
	}
}

// data sets the frame, cut to what the block has.
func (n *pcapng) data(p *Packet, b []byte, captured, length uint32) {
	p.Data = b[:min(int64(captured), int64(len(b)), MaxFrame)]
	p.Length = int(max(length, uint32(len(p.Data))))
}

// Options of interfaces (draft-ietf-opsawg-pcapng, 4.2) and of their statistics (4.6).
const (
	optionEnd        = 0
	optionComment    = 1
	optionName       = 2
	optionResolution = 9
	optionOffset     = 14

	optionBegan              = 2
	optionEnded              = 3
	optionDroppedByInterface = 5
	optionDroppedByOS        = 7
)

// options calls fn for each option up to the end or to one that is not all there.
func (n *pcapng) options(b []byte, fn func(code uint16, value []byte)) {
	for len(b) >= 4 {
		code, length := n.order.Uint16(b), int(n.order.Uint16(b[2:]))
		if code == optionEnd || 4+length > len(b) {
			return
		}
		fn(code, b[4:4+length])
		b = b[min(len(b), 4+(length+3)&^3):]
	}
}

func (n *pcapng) addInterface(s *stream, b []byte) {
	described := Interface{LinkType: int(n.order.Uint16(b))}
	iface := ngInterface{snapLen: n.order.Uint32(b[4:]), clock: resolution{perSecond: 1e6}}
	n.options(b[8:], func(code uint16, value []byte) {
		switch {
		case code == optionName:
			described.Name = string(value[:min(len(value), maxName)])
			iface.dropped = bytes.HasSuffix(value, []byte(DroppedOn))
		case code == optionComment && bytes.HasPrefix(value, []byte(HeadersAlone)):
			described.HeadersAlone, iface.headersAlone = true, true
		case code == optionResolution && len(value) > 0:
			iface.clock.perSecond = unitsPerSecond(value[0])
		case code == optionOffset && len(value) >= 8:
			iface.clock.offset = int64(n.order.Uint64(value))
		}
	})
	iface.index = s.addInterface(described)
	if len(n.ifaces) < maxInterfaces {
		n.ifaces = append(n.ifaces, iface)
	}
}

// maxName bounds the name of an interface that is kept.
const maxName = 64

// addInterface returns an interface's index; -1 if there are too many.
func (s *stream) addInterface(i Interface) int {
	if len(s.s.Interfaces) >= maxInterfaces {
		return -1
	}
	i.LinkName = linkName(i.LinkType)
	s.s.Interfaces = append(s.s.Interfaces, i)
	return len(s.s.Interfaces) - 1
}

func (n *pcapng) statistics(s *stream, b []byte) {
	id := n.order.Uint32(b)
	if int64(id) >= int64(len(n.ifaces)) || n.ifaces[id].index < 0 {
		return
	}
	about := &s.s.Interfaces[n.ifaces[id].index]
	var dropped uint64
	n.options(b[12:], func(code uint16, value []byte) {
		if len(value) < 8 {
			return
		}
		switch code {
		case optionDroppedByInterface, optionDroppedByOS:
			dropped += n.order.Uint64(value)
		case optionBegan:
			about.Began = timeOf(n.ifaces[id].clock.nanoseconds(n.timestamp(value)))
		case optionEnded:
			about.Ended = timeOf(n.ifaces[id].clock.nanoseconds(n.timestamp(value)))
		}
	})
	// The statistics are those since the capture's start: the last ones hold.
	about.Dropped = int64(min(dropped, math.MaxInt64))
}

// resolution is how an interface's times are to be read.
type resolution struct {
	// perSecond units; 0 where they are too small to be read.
	perSecond uint64
	offset    int64 // in seconds, to be added
}

// unitsPerSecond reads if_tsresol: a power of ten, or of two if the upper bit is set.
func unitsPerSecond(b byte) uint64 {
	exponent := uint(b & 0x7f)
	if b&0x80 != 0 {
		return 1 << exponent // 0 above 63
	}
	if exponent > 19 {
		return 0
	}
	units := uint64(1)
	for range exponent {
		units *= 10
	}
	return units
}

// nanoseconds since 1970, limited to what 64 bits can hold.
func (r resolution) nanoseconds(at uint64) int64 {
	if r.perSecond == 0 {
		return 0
	}
	const last = math.MaxInt64 / 1_000_000_000
	seconds, rest := at/r.perSecond, at%r.perSecond
	hi, lo := bits.Mul64(rest, 1e9)
	nanoseconds, _ := bits.Div64(hi, lo, r.perSecond)
	if seconds > last {
		seconds = last
	}
	offset := max(-last, min(last, r.offset))
	whole := max(-last+1, min(last-1, int64(seconds)+offset))
	return whole*1e9 + int64(nanoseconds)
}

// Lengths of the headers of pcap (draft-ietf-opsawg-pcap).
const (
	classicHeader = 24
	recordHeader  = 16
	// modifiedRecord adds interface index, protocol and packet type.
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
	// The upper bits describe an FCS (draft-ietf-opsawg-pcap, section 4).
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

// take sets the packet of a record; false if the file ends within it.
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

// believable reports whether a record header is possible.
func (c *classic) believable(e entry) bool {
	return e.captured <= c.longest && e.length <= math.MaxInt32 && e.fraction < c.perSec
}
