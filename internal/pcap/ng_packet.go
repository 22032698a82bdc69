package pcap

import (
	"math"
	"math/bits"
	"slices"
	"time"
)

// packet takes what a block tells; true where it is a packet.
func (n *pcapng) packet(s *stream, b *block, p *Packet) bool {
	switch b.kind {
	case blockSection:
		n.ifaces = n.ifaces[:0]
	case blockInterface:
		n.addInterface(s, b.body)
	case blockStatistics:
		n.statistics(s, b.body)
	case blockEnhanced:
		n.enhanced(s, b.body, p)
		return true
	case blockPacket:
		n.obsolete(s, b.body, p)
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

func (n *pcapng) enhanced(s *stream, b []byte, p *Packet) {
	at := uint64(n.order.Uint32(b[4:]))<<32 | uint64(n.order.Uint32(b[8:]))
	n.fill(s, p, n.order.Uint32(b), at)
	n.data(p, b[20:], n.order.Uint32(b[12:]), n.order.Uint32(b[16:]))
}

func (n *pcapng) obsolete(s *stream, b []byte, p *Packet) {
	at := uint64(n.order.Uint32(b[4:]))<<32 | uint64(n.order.Uint32(b[8:]))
	n.fill(s, p, uint32(n.order.Uint16(b)), at)
	n.data(p, b[20:], n.order.Uint32(b[12:]), n.order.Uint32(b[16:]))
}

// simple packets have no time and belong to the first interface; they get the time
// of the latest packet before them.
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
	p.Interface, p.At = iface.index, iface.clock.nanoseconds(at)
	if iface.index < 0 {
		p.Reason = UnknownInterface
	}
}

// data notes the frame; a block that announces more than it has gives what it has.
func (n *pcapng) data(p *Packet, b []byte, captured, length uint32) {
	p.Data = b[:min(int64(captured), int64(len(b)), MaxFrame)]
	p.Length = int(max(length, uint32(len(p.Data))))
}

// Options of interfaces (draft-ietf-opsawg-pcapng, section 4.2) and of their
// statistics (4.6).
const (
	optionEnd        = 0
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

// addInterface gives an interface's index; -1 where there are too many.
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
			about.Began = n.time(&n.ifaces[id], value)
		case optionEnded:
			about.Ended = n.time(&n.ifaces[id], value)
		}
	})
	// The statistics are those since the capture's start: the last ones hold.
	about.Dropped = int64(min(dropped, math.MaxInt64))
}

// time reads two words as packets have them, the upper one first.
func (n *pcapng) time(i *ngInterface, b []byte) time.Time {
	at := uint64(n.order.Uint32(b))<<32 | uint64(n.order.Uint32(b[4:]))
	return time.Unix(0, i.clock.nanoseconds(at)).UTC()
}

// resolution is how an interface's times are to be read.
type resolution struct {
	// perSecond units; 0 where they are too small to be read.
	perSecond uint64
	offset    int64 // in seconds, to be added
}

// unitsPerSecond reads if_tsresol: a power of ten, or of two where the upper bit is
// set.
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

// nanoseconds since 1970; times outside of what 64 bits can hold are those at its
// ends.
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
