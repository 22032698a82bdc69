// Package prefix has the arithmetic of address prefixes that net/netip lacks.
package prefix

import "net/netip"

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
