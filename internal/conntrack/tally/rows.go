package tally

import (
	"bytes"
	"cmp"
	"slices"
)

// Row is a key and how often it came: at most Count and at least Count-Excess times.
type Row struct {
	// Key points into the table: it holds until the next Add.
	Key           []byte
	Count, Excess uint64
}

// Total is the number of additions.
func (t *Table) Total() uint64 { return t.total }

// Len is the number of keys that are there.
func (t *Table) Len() int { return int(t.n) }

// Exact reports whether all keys found room: every count is exact, and Len is the number
// of different keys.
func (t *Table) Exact() bool { return t.sketch == nil }

// Bound is by how much a count can be too high, and how often a key can have come that
// is not there; 0 while counts are exact. It is never more than Total by Len.
func (t *Table) Bound() uint64 {
	if t.Exact() {
		return 0
	}
	return t.least()
}

// Top has the numbers of the n keys (0: all) that came most often, and at least so many
// times, the most frequent first and equals in the order of their keys.
func (t *Table) Top(n int, atLeast uint64) []uint32 {
	if n <= 0 {
		return t.sorted(atLeast)
	}
	var heap []uint32 // the first is the one to leave
	t.eachCount(func(number uint32, count uint64) {
		switch {
		case count < atLeast || len(heap) == n && count < t.count(heap[0]):
		case len(heap) < n:
			heap = append(heap, number)
			t.rise(heap, len(heap)-1)
		case t.Compare(number, heap[0]) < 0:
			heap[0] = number
			t.fall(heap)
		}
	})
	slices.SortFunc(heap, t.Compare)
	return heap
}

func (t *Table) sorted(atLeast uint64) []uint32 {
	all := make([]uint32, 0, t.n)
	t.eachCount(func(number uint32, count uint64) {
		if count >= atLeast {
			all = append(all, number)
		}
	})
	slices.SortFunc(all, t.Compare)
	return all
}

// Row is the row of a number that Top returned.
func (t *Table) Row(number uint32) Row {
	r := Row{Key: t.at(number)[:t.width:t.width], Count: t.count(number)}
	if t.sketch != nil {
		r.Excess = uint64(t.sketch.errors[number-1])
	}
	return r
}

// Compare orders numbers as Top does.
func (t *Table) Compare(a, b uint32) int {
	return cmp.Or(cmp.Compare(t.count(b), t.count(a)), bytes.Compare(t.at(a)[:t.width], t.at(b)[:t.width]))
}

func (t *Table) rise(heap []uint32, i int) {
	for i > 0 && t.Compare(heap[i], heap[(i-1)/2]) > 0 {
		heap[i], heap[(i-1)/2] = heap[(i-1)/2], heap[i]
		i = (i - 1) / 2
	}
}

func (t *Table) fall(heap []uint32) {
	for i := 0; ; {
		child := 2*i + 1
		if child >= len(heap) {
			return
		}
		if child+1 < len(heap) && t.Compare(heap[child+1], heap[child]) > 0 {
			child++
		}
		if t.Compare(heap[i], heap[child]) >= 0 {
			return
		}
		heap[i], heap[child] = heap[child], heap[i]
		i = child
	}
}

// Get is the row of a key, if it is there.
func (t *Table) Get(key []byte) (Row, bool) {
	if t.index == nil {
		return Row{}, false
	}
	slot, found := t.find(hash(t.seed, key[:t.width]), key[:t.width])
	if !found {
		return Row{}, false
	}
	return t.Row(uint32(t.index[slot])), true
}
