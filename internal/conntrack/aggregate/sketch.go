package aggregate

import (
	"encoding/binary"
	"math/bits"
	"slices"
)

// sketch is what a full table needs besides its records: a key that is not there takes
// over the record with the smallest count, and its count with it, as its possible error.
// Counts are then never too low, and too high by at most what stands in errors, which is
// never more than the smallest count.
//
// The candidates are the records with the smallest counts, in a heap; every other record
// has at least the count top. As counts only grow, the heap's first one is the smallest of
// all as long as it is not above top; then candidates are chosen anew. A candidate that has
// grown meanwhile is found out when it comes first.
type sketch struct {
	errors []uint32
	heap   []uint64 // count above base, and number of the record
	base   uint64
	top    uint64
}

const (
	// levels is how many different counts from the smallest on are looked at for
	// candidates: where a choice finds a single one, it is good for as many additions.
	levels = 1 << 10
	// candidateShare of all records is enough to choose at a time.
	candidateShare = 16
	candidatesMin  = 64
)

// replace gives the record with the smallest count to a key that is not there.
func (t *tally) replace(tag uint32, key []byte) {
	if t.sketch == nil {
		t.sketch = &sketch{errors: make([]uint32, t.n)}
	}
	number := t.smallest()
	r := t.at(number)
	slot, _ := t.find(hash(t.seed, r[:t.width]), r[:t.width])
	t.remove(slot)
	count := binary.LittleEndian.Uint64(r[t.width:])
	t.sketch.errors[number-1] = uint32(min(count, 1<<32-1))
	copy(r, key)
	binary.LittleEndian.PutUint64(r[t.width:], count+1)
	t.put(tag, number)
}

// smallest is the record with the smallest count, the first one of several.
func (t *tally) smallest() uint32 {
	s := t.sketch
	for {
		if len(s.heap) == 0 {
			t.choose()
		}
		number := uint32(s.heap[0])
		count := t.count(number)
		switch {
		case count == s.base+s.heap[0]>>32:
			return number
		case count > s.top:
			last := len(s.heap) - 1
			s.heap[0] = s.heap[last]
			s.heap = s.heap[:last]
		default:
			s.heap[0] = (count-s.base)<<32 | uint64(number)
		}
		s.sink(0)
	}
}

// choose fills the heap with the records of the smallest counts.
func (t *tally) choose() {
	s := t.sketch
	var there [levels]int
	s.base = t.least()
	t.eachCount(func(_ uint32, count uint64) {
		if above := count - s.base; above < levels {
			there[above]++
		}
	})
	want := max(candidatesMin, int(t.n/candidateShare))
	sum, level := 0, 0
	for ; level < levels-1 && sum+there[level] < want; level++ {
		sum += there[level]
	}
	s.top = s.base + uint64(level)
	// Of the last level there may be more than are wanted.
	most := min(want, sum+there[level])
	ofTop := most - sum
	s.heap = slices.Grow(s.heap[:0], most)
	t.eachCount(func(number uint32, count uint64) {
		switch {
		case count > s.top:
			return
		case count == s.top && ofTop == 0:
			return
		case count == s.top:
			ofTop--
		}
		s.heap = append(s.heap, (count-s.base)<<32|uint64(number))
	})
	for i := len(s.heap)/2 - 1; i >= 0; i-- {
		s.sink(i)
	}
}

// sink moves a member of the heap down to where it belongs.
func (s *sketch) sink(i int) {
	for {
		child := 2*i + 1
		if child >= len(s.heap) {
			return
		}
		if child+1 < len(s.heap) && s.heap[child+1] < s.heap[child] {
			child++
		}
		if s.heap[i] <= s.heap[child] {
			return
		}
		s.heap[i], s.heap[child] = s.heap[child], s.heap[i]
		i = child
	}
}

// least is the smallest count.
func (t *tally) least() uint64 {
	least := ^uint64(0)
	t.eachCount(func(_ uint32, count uint64) { least = min(least, count) })
	return least
}

func (t *tally) eachCount(fn func(number uint32, count uint64)) {
	number := uint32(0)
	for _, chunk := range t.chunks {
		for at := t.width; at < len(chunk) && uint64(number) < t.n; at += t.record {
			number++
			fn(number, binary.LittleEndian.Uint64(chunk[at:]))
		}
	}
}

// hash is 32 bits of a keyed hash. Whoever opens connections chooses the keys: without
// the seed nobody can choose those that collide.
func hash(seed uint64, key []byte) uint32 {
	h := seed ^ uint64(len(key))*0x9e3779b97f4a7c15
	for len(key) >= 8 {
		h = mix(h, binary.LittleEndian.Uint64(key))
		key = key[8:]
	}
	h = mix(h, tail(key))
	return uint32(h ^ h>>32)
}

// tail is the last bytes, fewer than eight, as a number.
func tail(key []byte) uint64 {
	switch n := len(key); {
	case n >= 4:
		return uint64(binary.LittleEndian.Uint32(key))<<32 | uint64(binary.LittleEndian.Uint32(key[n-4:]))
	case n > 0:
		return uint64(key[0])<<16 | uint64(key[n/2])<<8 | uint64(key[n-1])
	}
	return 0
}

// mix folds a 128-bit product, with constants that keep a zero operand from swallowing
// the other one.
func mix(h, v uint64) uint64 {
	hi, lo := bits.Mul64(h^0x9e3779b97f4a7c15, v^0xd6e8feb86659fd93)
	return hi ^ lo ^ h
}

// Budget is memory that several tables share.
type Budget struct {
	limit, used int64
	// owed is what tables have not taken yet of what is kept for each.
	owed int64
}

// NewBudget is so many bytes. A table of a few keys is always possible, also where
// they are more than the budget.
func NewBudget(bytes int64) *Budget { return &Budget{limit: bytes} }

// Used is how many bytes the tables have taken.
func (b *Budget) Used() int64 { return b.used }

// promise keeps some of the budget for one table.
func (b *Budget) promise(bytes int64) { b.owed += bytes }

// take gives t more memory, unless that is kept for another table.
func (b *Budget) take(t *tally, bytes int64) bool {
	own := min(bytes, t.owed())
	if b.used+bytes+b.owed-own > b.limit {
		return false
	}
	b.force(t, bytes)
	return true
}

// force gives t what it cannot do without; less than nothing is given back.
func (b *Budget) force(t *tally, bytes int64) {
	b.owed -= t.owed()
	b.used += bytes
	t.bytes += bytes
	b.owed += t.owed()
}

// owed is what is kept for a table and not taken yet.
func (t *tally) owed() int64 { return max(0, t.reserve-t.bytes) }
