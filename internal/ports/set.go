package ports

import "math/bits"

// numbers is how many ports, or ICMP ids, there are.
const numbers = 1 << 16

// Set is a set of ports.
type Set [numbers / 64]uint64

// Add puts a port in.
func (s *Set) Add(p uint16) { s[p/64] |= 1 << (p % 64) }

// Has reports whether the port is in the set.
func (s *Set) Has(p uint16) bool { return s[p/64]&(1<<(p%64)) != 0 }

// Count is how many ports of a range are in the set.
func (s *Set) Count(r Range) int {
	n := 0
	for w := int(r.First) / 64; w <= int(r.Last)/64; w++ {
		n += bits.OnesCount64(s[w] & r.word(w))
	}
	return n
}

// without counts the ports of a range that are in s and not in o.
func (s *Set) without(o *Set, r Range) int {
	n := 0
	for w := int(r.First) / 64; w <= int(r.Last)/64; w++ {
		n += bits.OnesCount64(s[w] &^ o[w] & r.word(w))
	}
	return n
}

// Range is ports from First to Last, both included.
type Range struct{ First, Last uint16 }

// Size is how many ports the range has.
func (r Range) Size() int { return int(r.Last) - int(r.First) + 1 }

// Has reports whether the port lies in the range.
func (r Range) Has(p uint16) bool { return p >= r.First && p <= r.Last }

// word has a bit for each port of the range in word w of a Set.
func (r Range) word(w int) uint64 {
	mask := ^uint64(0)
	if low := int(r.First) - w*64; low > 0 {
		mask &= ^uint64(0) << low
	}
	if high := int(r.Last) - w*64; high < 63 {
		mask &= ^uint64(0) >> (63 - high)
	}
	return mask
}

func ones(word uint64) int { return bits.OnesCount64(word) }
