package ports

import "github.com/natkit/natkit/internal/snapshot"

// The kernel's search (nf_nat_l4proto_unique_tuple, net/netfilter/nf_nat_core.c):
// a first window of consecutive ports from a random start, then windows half as
// long from other ones, the last of 8; a range no longer than the first window is
// looked at once, whole.
const (
	firstWindow = 128
	lastWindow  = 8
	// evictTries at the end of every window may take the port of a TCP connection
	// that has ended (NF_NAT_HARDER_THRESH, Linux 6.6).
	evictTries = 32
)

// offsets is how many random starts there are: a 16-bit number, which also wraps
// as one, and is then taken modulo the size of the range. So the first ports of a
// range are a little likelier to be looked at than the last ones, and a window
// that wraps goes on at the beginning.
const offsets = 1 << 16

// windows are the lengths of what the kernel looks at one after the other.
func windows(size int) []int {
	if size <= firstWindow {
		return []int{size}
	}
	var lengths []int
	for n := firstWindow; n >= lastWindow; n /= 2 {
		lengths = append(lengths, n)
	}
	return lengths
}

// FailChance is the chance that the kernel finds no port for a connection whose
// preferred one is taken, or which is to have a random one: exactly, for these
// used ports. Of the used ports evictable ones are not in the way in the last
// tries of a window; nil is none. The time is proportional to the number of ports.
func FailChance(used, evictable *Set, r Range, probing string) float64 {
	if probing == snapshot.PortProbeAll {
		if used.Count(r) == r.Size() {
			return 1
		}
		return 0
	}
	if used.Count(r) < leastUsed(r.Size()) {
		return 0
	}
	runs := findRuns(used, evictable, r)
	chance := 1.0
	for _, n := range windows(r.Size()) {
		chance *= float64(runs.blocked(n)) / offsets
	}
	return chance
}

// leastUsed is the least number of used ports that can fill a first window. One
// that wraps with the 16-bit number looks at some ports twice, but at least at the
// longer of its two parts.
func leastUsed(size int) int { return (min(size, firstWindow) + 1) / 2 }

// runs are the lengths of the used ports' blocks from each offset on, up to 255.
// hard leaves out evictable ports.
type runs struct{ used, hard []uint8 }

func findRuns(used, evictable *Set, r Range) runs {
	const all = offsets + firstWindow
	found := runs{used: make([]uint8, all), hard: make([]uint8, all)}
	var inUsed, inHard uint8
	for i := all - 1; i >= 0; i-- {
		p := r.First + uint16(i%offsets%r.Size())
		switch {
		case !used.Has(p):
			inUsed, inHard = 0, 0
		case evictable != nil && evictable.Has(p):
			inUsed, inHard = longer(inUsed), 0
		default:
			inUsed, inHard = longer(inUsed), longer(inHard)
		}
		found.used[i], found.hard[i] = inUsed, inHard
	}
	return found
}

func longer(run uint8) uint8 {
	if run < 255 {
		run++
	}
	return run
}

// blocked counts the starts from which a window of n ports has no free one.
func (r *runs) blocked(n int) int {
	tail := min(n, evictTries)
	count := 0
	for i := range offsets {
		if int(r.used[i]) >= n && int(r.hard[i+n-tail]) >= tail {
			count++
		}
	}
	return count
}

// ScatteredChance is the chance of FailChance where so many used ports lie in the
// range by chance, as random ones do after some time.
func ScatteredChance(used, size int, probing string) float64 {
	if used >= size {
		return 1
	}
	if probing == snapshot.PortProbeAll {
		return 0
	}
	chance := 1.0
	for _, n := range windows(size) {
		for i := range n {
			chance *= max(0, float64(used-i)/float64(size-i))
		}
	}
	return chance
}
