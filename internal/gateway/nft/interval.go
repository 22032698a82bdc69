package nft

import (
	"net/netip"

	"github.com/natkit/natkit/internal/gateway"
)

// intervals are the elements of an interval set: each interval's first address, and as
// its end the address after its last. Prefixes that overlap or touch become one
// interval, as the kernel refuses overlaps.
func intervals(prefixes []netip.Prefix) (all []element) {
	var ranges []gateway.Range
	for _, p := range prefixes {
		ranges = append(ranges, gateway.RangeOf(p))
	}
	for i, r := range gateway.JoinRanges(ranges) {
		if i == 0 && !r.First.IsUnspecified() { // nft(8) marks what lies before the first
			all = append(all, element{key: make([]byte, r.First.BitLen()/8), end: true})
		}
		all = append(all, element{key: r.First.AsSlice()})
		if next := r.Last.Next(); next.IsValid() {
			all = append(all, element{key: next.AsSlice(), end: true})
		}
	}
	return all
}
