package nat

import (
	"encoding/binary"
	"math"
	"net/netip"
	"slices"
	"strings"
)

// LastAddr is a prefix's last address; with IPv4 the broadcast address.
func LastAddr(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for bit := max(0, p.Bits()); bit < 8*len(b); bit++ {
		b[bit/8] |= 0x80 >> (bit % 8)
	}
	last, _ := netip.AddrFromSlice(b) // as long as an address
	return last
}

// Host is the prefix of one address.
func Host(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// Anywhere is the prefix of all addresses of 32 or 128 bits.
func Anywhere(bits int) netip.Prefix {
	if bits == 32 {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}

// Replace puts an address into another prefix and keeps the bits of the host; the result
// is not valid where they are of two families.
func Replace(a netip.Addr, into netip.Prefix) netip.Addr {
	from, to := a.AsSlice(), into.Masked().Addr().AsSlice()
	if len(from) != len(to) {
		return netip.Addr{}
	}
	for i := range to {
		keep := byte(0xff) >> min(8, max(0, into.Bits()-8*i))
		to[i] |= from[i] & keep
	}
	replaced, _ := netip.AddrFromSlice(to) // as long as an address
	return replaced
}

// PrefixString is a prefix as people write it: of one address without its length.
func PrefixString(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

// PrefixesString is PrefixString of each, with commas between.
func PrefixesString(prefixes []netip.Prefix) string {
	texts := make([]string, len(prefixes))
	for i, p := range prefixes {
		texts[i] = PrefixString(p)
	}
	return strings.Join(texts, ", ")
}

// InAny reports whether one of the prefixes contains an address.
func InAny(list []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
}

// AddrRange is the addresses from First to Last, both included.
type AddrRange struct {
	First netip.Addr `json:"first"`
	Last  netip.Addr `json:"last"`
}

// RangeOf is all addresses of a prefix.
func RangeOf(p netip.Prefix) AddrRange { return AddrRange{p.Masked().Addr(), LastAddr(p)} }

// OneAddr is the range of one address.
func OneAddr(a netip.Addr) AddrRange { return AddrRange{a, a} }

// Hosts are the addresses of a prefix that hosts can have: without IPv4's first and last one
// and IPv6's first, which routers answer to (RFC 4291, 2.6.1).
func Hosts(p netip.Prefix) AddrRange {
	r := RangeOf(p)
	if p.Addr().BitLen()-p.Bits() < 2 {
		return r
	}
	if r.First = r.First.Next(); r.First.Is4() {
		r.Last = r.Last.Prev()
	}
	return r
}

// At returns the i-th address, the first one for 0. Of IPv6 the first 64 bits do not change.
func (r AddrRange) At(i uint64) netip.Addr {
	if r.First.Is4() {
		a := r.First.As4()
		binary.BigEndian.PutUint32(a[:], binary.BigEndian.Uint32(a[:])+uint32(i))
		return netip.AddrFrom4(a)
	}
	a := r.First.As16()
	binary.BigEndian.PutUint64(a[8:], binary.BigEndian.Uint64(a[8:])+i)
	return netip.AddrFrom16(a)
}

// IsSingle reports whether it is one address.
func (r AddrRange) IsSingle() bool { return r.First == r.Last }

// String is "203.0.113.7" or "203.0.113.7-203.0.113.9".
func (r AddrRange) String() string {
	if r.IsSingle() {
		return r.First.String()
	}
	return r.First.String() + "-" + r.Last.String()
}

// Contains reports whether an address is in r.
func (r AddrRange) Contains(a netip.Addr) bool {
	return a.BitLen() == r.First.BitLen() && r.First.Compare(a) <= 0 && a.Compare(r.Last) <= 0
}

// Overlaps reports whether two ranges have an address in common.
func (r AddrRange) Overlaps(s AddrRange) bool {
	return r.First.BitLen() == s.First.BitLen() && r.First.Compare(s.Last) <= 0 && s.First.Compare(r.Last) <= 0
}

// Covers reports whether all addresses of s are in r.
func (r AddrRange) Covers(s AddrRange) bool {
	return r.First.BitLen() == s.First.BitLen() && r.First.Compare(s.First) <= 0 && s.Last.Compare(r.Last) <= 0
}

// Common is the addresses that two ranges that overlap have in common.
func (r AddrRange) Common(s AddrRange) AddrRange {
	if s.First.Less(r.First) {
		s.First = r.First
	}
	if r.Last.Less(s.Last) {
		s.Last = r.Last
	}
	return s
}

// Prefix is the one that has the same addresses; not valid where there is none.
func (r AddrRange) Prefix() netip.Prefix {
	for bits := r.First.BitLen(); bits >= 0; bits-- {
		p := netip.PrefixFrom(r.First, bits)
		if p.IsValid() && p.Masked() == p && LastAddr(p) == r.Last {
			return p
		}
	}
	return netip.Prefix{}
}

// Prefixes is the fewest prefixes that together have the same addresses; none where Last
// is before First or of the other family.
func (r AddrRange) Prefixes() (all []netip.Prefix) {
	for first := r.First; first.BitLen() == r.Last.BitLen() && first.Compare(r.Last) <= 0; {
		p := Host(first)
		for p.Bits() > 0 {
			wider := netip.PrefixFrom(first, p.Bits()-1)
			if wider.Masked() != wider || r.Last.Less(LastAddr(wider)) {
				break
			}
			p = wider
		}
		all = append(all, p)
		if first = LastAddr(p).Next(); !first.IsValid() {
			break
		}
	}
	return all
}

// Size is the number of addresses, at most the greatest int64.
func (r AddrRange) Size() int64 {
	first, last := r.First.As16(), r.Last.As16()
	var n uint64
	for i := range first {
		if n > math.MaxInt64>>8 {
			return math.MaxInt64
		}
		n = n<<8 + uint64(last[i]) - uint64(first[i])
	}
	return addBounded(int64(n), 1)
}

func addBounded(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// AddrRanges are several, such as those of a pool.
type AddrRanges []AddrRange

// String has commas between the ranges.
func (r AddrRanges) String() string {
	texts := make([]string, len(r))
	for i, one := range r {
		texts[i] = one.String()
	}
	return strings.Join(texts, ", ")
}

// Contains reports whether an address is in one of the ranges.
func (r AddrRanges) Contains(a netip.Addr) bool {
	return slices.ContainsFunc(r, func(one AddrRange) bool { return one.Contains(a) })
}

// Join sorts ranges and joins those that meet: the same set of addresses has one form.
func (r AddrRanges) Join() (out AddrRanges) {
	r = slices.Clone(r)
	slices.SortFunc(r, func(a, b AddrRange) int { return a.First.Compare(b.First) })
	for _, one := range r {
		last := len(out) - 1
		if last < 0 || one.First.Compare(out[last].Last) > 0 && out[last].Last.Next() != one.First {
			out = append(out, one)
		} else if out[last].Last.Less(one.Last) {
			out[last].Last = one.Last
		}
	}
	return out
}

// Covers reports whether the ranges together have all addresses of s.
func (r AddrRanges) Covers(s AddrRange) bool {
	return slices.ContainsFunc(r.Join(), func(joined AddrRange) bool { return joined.Covers(s) })
}

// Without are the ranges without the addresses of s.
func (r AddrRanges) Without(s AddrRange) (left AddrRanges) {
	for _, one := range r {
		if !one.Overlaps(s) {
			left = append(left, one)
			continue
		}
		if one.First.Less(s.First) {
			left = append(left, AddrRange{one.First, s.First.Prev()})
		}
		if s.Last.Less(one.Last) {
			left = append(left, AddrRange{s.Last.Next(), one.Last})
		}
	}
	return left
}

// Size is the number of different addresses, at most the greatest int64.
func (r AddrRanges) Size() (addresses int64) {
	for _, one := range r.Join() {
		addresses = addBounded(addresses, one.Size())
	}
	return addresses
}
