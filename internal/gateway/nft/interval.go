package nft

import (
	"cmp"
	"net/netip"
	"slices"
)

// intervals are the elements of an interval set: each interval's first address, and as
// its end the address after its last. Prefixes that overlap or touch become one
// interval, as the kernel refuses overlaps.
func intervals(prefixes []netip.Prefix) []element {
	sorted := slices.Clone(prefixes)
	slices.SortFunc(sorted, func(a, b netip.Prefix) int {
		return cmp.Or(a.Masked().Addr().Compare(b.Masked().Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	var all []element
	var next netip.Addr // after the interval that is open; invalid at the end of all addresses
	for i, p := range sorted {
		first := p.Masked().Addr()
		switch {
		case i == 0:
			if !first.IsUnspecified() { // nft(8) marks what lies before the first
				all = append(all, element{key: make([]byte, len(first.AsSlice())), end: true})
			}
		case !next.IsValid():
			return all
		case first.Compare(next) <= 0:
			if n := lastOf(p).Next(); !n.IsValid() || n.Compare(next) > 0 {
				next = n
			}
			continue
		default:
			all = append(all, element{key: next.AsSlice(), end: true})
		}
		all = append(all, element{key: first.AsSlice()})
		next = lastOf(p).Next()
	}
	if next.IsValid() {
		all = append(all, element{key: next.AsSlice(), end: true})
	}
	return all
}

// lastOf is the last address of a prefix.
func lastOf(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < 8*len(b); i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	last, _ := netip.AddrFromSlice(b)
	return last
}
