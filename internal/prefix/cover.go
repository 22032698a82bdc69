package prefix

import "net/netip"

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
