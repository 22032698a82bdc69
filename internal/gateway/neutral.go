package gateway

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/nat"
)

// Outward is the address that a packet from inside gets by a stateless pair.
func (e *Entry) Outward(a netip.Addr) netip.Addr {
	if s := e.Pairs(); s != nil {
		return s.Outward(a)
	}
	return e.translate(a, e.Inside(), e.Outside())
}

// Inward is the address inside that a packet from outside gets by a stateless pair.
func (e *Entry) Inward(a netip.Addr) netip.Addr {
	if s := e.Pairs(); s != nil {
		return s.Inward(a)
	}
	return e.translate(a, e.Outside(), e.Inside())
}

// Reflects reports whether hosts inside reach each other by addresses outside (RFC 6296,
// section 4.3) by what is done beside the pair's two directions: what comes in by none of
// Out, from the inside of such a pair to the outside of one, gets both translated. A pair
// for any interface does that on its own.
func (e *Entry) Reflects() bool { return e.Action.Neutral && len(e.Out) > 0 }

// Reflecting are the interfaces of all pairs that reflect: what comes in by one of them does not go back inside so.
func (p *Plan) Reflecting() (names []string) {
	for i := range p.Stateless {
		if e := &p.Stateless[i]; e.Reflects() {
			names = append(names, e.Out...)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (e *Entry) translate(a netip.Addr, from, to netip.Prefix) netip.Addr {
	if !e.Action.Neutral {
		return nat.Replace(a, to)
	}
	return neutral(a, from, to)
}

// neutral maps a from one prefix into another so that checksums over it stay right
// (RFC 6296, section 3.1): what the prefixes differ by is added to a word of 16 bits
// behind the prefix: the subnet's for /48 and shorter, otherwise the first word of the
// host's part that is not 0xffff (section 3.5). An address whose words all are is not
// valid then: it cannot be mapped.
func neutral(a netip.Addr, from, to netip.Prefix) netip.Addr {
	mapped := nat.Replace(a, to).As16()
	word := neutralWord(a, from.Bits())
	if word < 0 {
		return netip.Addr{}
	}
	at := mapped[2*word : 2*word+2]
	sum := addOnes(binary.BigEndian.Uint16(at), addOnes(fold(from), ^fold(to)))
	if sum == 0xffff {
		sum = 0
	}
	binary.BigEndian.PutUint16(at, sum)
	return netip.AddrFrom16(mapped)
}

// neutralWord is the number of the word that takes the difference, -1 where none can.
func neutralWord(a netip.Addr, bits int) int {
	if bits <= 48 {
		return 3
	}
	bytes := a.As16()
	for word := 4; word < 8; word++ {
		if binary.BigEndian.Uint16(bytes[2*word:]) != 0xffff {
			return word
		}
	}
	return -1
}

// fold is the one's complement sum of a prefix's words.
func fold(p netip.Prefix) (sum uint16) {
	bytes := p.Masked().Addr().As16()
	for i := 0; i < 16; i += 2 {
		sum = addOnes(sum, binary.BigEndian.Uint16(bytes[i:]))
	}
	return sum
}

// addOnes adds in one's complement.
func addOnes(a, b uint16) uint16 {
	sum := uint32(a) + uint32(b)
	return uint16(sum + sum>>16)
}
