package tune

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// MadeOf is true where got is what the kernel may have made of writing asked to
// a sysctl that was before: the same value; a vector of which only the first
// numbers were given, or taken (do_proc_dointvec leaves the others as they are);
// or a set of numbers put in order and joined (proc_do_large_bitmap, as of
// ip_local_reserved_ports).
func MadeOf(before, asked, got string) bool {
	if SameValue(asked, got) {
		return true
	}
	b, a, g := strings.Fields(before), strings.Fields(asked), strings.Fields(got)
	if len(g) > 1 {
		taken := 0
		for taken < min(len(a), len(g)) && SameValue(a[taken], g[taken]) {
			taken++
		}
		return taken > 0 && len(b) == len(g) && slices.EqualFunc(b[taken:], g[taken:], SameValue)
	}
	want, okWant := ranges(asked)
	have, okHave := ranges(got)
	return okWant && okHave && slices.Equal(want, have)
}

// ranges reads "8080,9000-9002,9001" into disjoint ranges in order.
func ranges(text string) ([][2]uint64, bool) {
	var all [][2]uint64
	for _, part := range strings.Split(text, ",") {
		low, high, isRange := strings.Cut(part, "-")
		if !isRange {
			high = low
		}
		from, errFrom := strconv.ParseUint(low, 10, 32)
		to, errTo := strconv.ParseUint(high, 10, 32)
		if errFrom != nil || errTo != nil || from > to {
			return nil, false
		}
		all = append(all, [2]uint64{from, to})
	}
	slices.SortFunc(all, func(a, b [2]uint64) int { return cmp.Compare(a[0], b[0]) })
	joined := all[:1]
	for _, r := range all[1:] {
		if last := &joined[len(joined)-1]; r[0] <= last[1]+1 {
			last[1] = max(last[1], r[1])
		} else {
			joined = append(joined, r)
		}
	}
	return joined, true
}
