// Package prefix has the arithmetic and the texts of address prefixes that net/netip lacks.
package prefix

import (
	"net/netip"
	"strings"
)

// Last is a prefix's last address; with IPv4 the one for broadcasts.
func Last(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for bit := max(0, p.Bits()); bit < 8*len(b); bit++ {
		b[bit/8] |= 0x80 >> (bit % 8)
	}
	last, _ := netip.AddrFromSlice(b) // as long as an address
	return last
}

// Between is the prefix whose first and last address these are; not valid where there
// is none.
func Between(first, last netip.Addr) netip.Prefix {
	for bits := first.BitLen(); bits >= 0; bits-- {
		p := netip.PrefixFrom(first, bits)
		if p.IsValid() && p.Masked() == p && Last(p) == last {
			return p
		}
	}
	return netip.Prefix{}
}

// Replace puts an address into another prefix, the bits of the host kept; the result is
// not valid where they are of two families.
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

// Text is a prefix as people write it: of one address without its length.
func Text(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

// List is Text of each, with commas between.
func List(prefixes []netip.Prefix) string {
	texts := make([]string, len(prefixes))
	for i, p := range prefixes {
		texts[i] = Text(p)
	}
	return strings.Join(texts, ", ")
}

// Cover is the fewest prefixes that together are the addresses from first to last; none
// where last is before first or of the other family.
func Cover(first, last netip.Addr) (all []netip.Prefix) {
	for first.BitLen() == last.BitLen() && first.Compare(last) <= 0 {
		p := netip.PrefixFrom(first, first.BitLen())
		for p.Bits() > 0 {
			wider := netip.PrefixFrom(first, p.Bits()-1)
			if wider.Masked() != wider || last.Less(Last(wider)) {
				break
			}
			p = wider
		}
		all = append(all, p)
		if first = Last(p).Next(); !first.IsValid() {
			break
		}
	}
	return all
}
