package natrules

import (
	"bytes"
	"maps"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/prefix"
)

// mostPicked is how many steps the elements of its sets make of one rule.
const mostPicked = 16 << 10

// readSteps tells what a rule means, with a step for each element of the sets and maps
// that it looks into: as if it compared with that one, and had its value.
func (m *machine) readSteps(r *kernelRule) []step {
	ways := []map[int]element{nil}
	for i := range r.exprs {
		elements := m.elements(r.exprs[i:])
		if len(elements) == 0 || len(elements)*len(ways) > mostPicked || !m.ways.takes(len(elements)*len(ways)) {
			continue
		}
		var next []map[int]element
		for _, way := range ways {
			for _, x := range elements {
				picked := maps.Clone(way)
				if picked == nil {
					picked = map[int]element{}
				}
				picked[i] = x
				if r.exprs[i].name == "cmp" {
					picked[i+1] = element{} // the range's other end, which says nothing more
				}
				next = append(next, picked)
			}
		}
		ways = next
	}
	steps := make([]step, len(ways))
	for i, way := range ways {
		m.picked = way
		steps[i] = m.readStep(r)
	}
	m.picked = nil
	return steps
}

// elements are those of the set that the first of these expressions looks into; of a
// range, which is two comparisons, the prefixes that it consists of.
func (m *machine) elements(rest []kernelExpr) []element {
	a := rest[0].data
	if rest[0].name == "lookup" && a.u32(nftLookupFlags) == 0 {
		return m.sets[a.text(nftLookupSet)]
	}
	if len(rest) < 2 || rest[0].name != "cmp" || rest[1].name != "cmp" {
		return nil
	}
	b := rest[1].data
	if a.u32(nftCmpOp) != unix.NFT_CMP_GTE || b.u32(nftCmpOp) != unix.NFT_CMP_LTE || a.u32(nftCmpSreg) != b.u32(nftCmpSreg) {
		return nil
	}
	return addresses(a.nested(nftCmpData).get(nftDataValue), b.nested(nftCmpData).get(nftDataValue), nil)
}

// pick is a lookup that finds this element.
func (m *machine) pick(a attrs, e element) {
	m.isBetween(slot(a.u32(nftLookupSreg)), e)
	switch register := a.u32(nftLookupDreg); {
	case !a.has(nftLookupDreg):
	case register == 0:
		m.decide(e.value)
	default:
		m.fill(register, e.value.get(nftDataValue))
	}
}

// fill loads a map's value, of which a rule takes parts out of the registers.
func (m *machine) fill(register uint32, value []byte) {
	start := slot(register)
	m.load(register, content{}, len(value))
	for i := 0; i < len(value); i += 4 {
		m.regs[start+uint32(i/4)] = content{from: constant, data: value[i:]}
	}
}

// isBetween compares registers with a key, field by field.
func (m *machine) isBetween(start uint32, e element) {
	for at := 0; at < len(e.first); {
		c := m.regs[start+uint32(at/4)]
		size := c.size()
		if size == 0 || at+size > len(e.first) {
			m.step.rule.Partial = true
			return
		}
		m.within(c, e.first[at:at+size], e.last[at:at+size])
		at += (size + 3) &^ 3
	}
}

// within is the condition that a content is one of first to last.
func (m *machine) within(c content, first, last []byte) {
	switch {
	case bytes.Equal(first, last):
		m.equal(c, first)
	case c.isDestinationPort():
		bound(&m.step.further.Ports, beUint16(first), false)
		bound(&m.step.further.Ports, beUint16(last), true)
	case c.isSourcePort():
		bound(&m.step.further.SourcePorts, beUint16(first), false)
		bound(&m.step.further.SourcePorts, beUint16(last), true)
	default:
		a, ok := netip.AddrFromSlice(first)
		z, ok2 := netip.AddrFromSlice(last)
		p := prefix.Between(a, z)
		if !ok || !ok2 || !p.IsValid() || c.mask != nil {
			m.step.rule.Partial, m.step.cause = true, "a range"
			return
		}
		c.mask = netmask(p)
		m.equal(c, first)
	}
}

func netmask(p netip.Prefix) []byte {
	all, _ := netip.AddrFromSlice(bytes.Repeat([]byte{0xff}, p.Addr().BitLen()/8)) // as long as an address
	return netip.PrefixFrom(all, p.Bits()).Masked().Addr().AsSlice()
}

// size is how many bytes a content has, 0 where nobody knows what it is.
func (c content) size() int {
	switch c.from {
	case payload:
		return int(c.length)
	case destinationType:
		return 4
	case metaData:
		switch c.key {
		case metaL4proto, metaNfproto:
			return 1
		case metaIifname, metaOifname:
			return nameBytes
		}
		return 4
	}
	return 0
}
