package gateway

import (
	"net/netip"
	"slices"
	"sort"
)

// rangeIndex finds ranges that overlap another, among thousands.
type rangeIndex struct {
	all []indexed
	// reach is how far all ranges up to an index go.
	reach []netip.Addr
}

// indexed is a range and what it belongs to.
type indexed struct {
	addrs Range
	by    Ref
	// port restricts what is meant of the addresses.
	port Port
}

func newRangeIndex(all []indexed) *rangeIndex {
	slices.SortStableFunc(all, func(a, b indexed) int { return a.addrs.First.Compare(b.addrs.First) })
	x := &rangeIndex{all: all, reach: make([]netip.Addr, len(all))}
	for i, one := range all {
		x.reach[i] = one.addrs.Last
		if i > 0 && one.addrs.Last.Less(x.reach[i-1]) {
			x.reach[i] = x.reach[i-1]
		}
	}
	return x
}

// overlapping are those that have an address of r.
func (x *rangeIndex) overlapping(r Range) (found []indexed) {
	end := sort.Search(len(x.all), func(i int) bool { return r.Last.Less(x.all[i].addrs.First) })
	for i := end - 1; i >= 0 && !x.reach[i].Less(r.First); i-- {
		if x.all[i].addrs.overlaps(r) {
			found = append(found, x.all[i])
		}
	}
	slices.Reverse(found)
	return found
}

// subtract takes the addresses of r from ranges.
func subtract(ranges []Range, r Range) (left []Range) {
	for _, one := range ranges {
		if !one.overlaps(r) {
			left = append(left, one)
			continue
		}
		if one.First.Less(r.First) {
			left = append(left, Range{one.First, r.First.Prev()})
		}
		if r.Last.Less(one.Last) {
			left = append(left, Range{r.Last.Next(), one.Last})
		}
	}
	return left
}
