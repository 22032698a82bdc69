// Package tally counts how often each of many keys comes, in bounded memory: exactly
// while all keys find room, and from then on by the space-saving algorithm (Metwally,
// Agrawal, El Abbadi: "Efficient Computation of Frequent and Top-k Elements in Data
// Streams", ICDT 2005).
package aggregate

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"slices"
)

const (
	chunkShift   = 12
	chunkRecords = 1 << chunkShift
	countBytes   = 8
	// extraBytes is what a record needs besides itself once its table is full, or is
	// sorted: its error, its number, and a share in the candidates.
	extraBytes = 4 + 4 + 1
	firstSlots = 1 << 10
	slotBytes  = 8
	recordsMax = 1<<32 - 2
)

// tally counts keys of one width.
//
// A record is a key and its count. The index is a hash table with open addressing whose
// slots hold 32 bits of the key's hash and the number of its record: a probe that ends
// elsewhere rarely touches a record, and the index grows without looking at keys.
type tally struct {
	width, record int
	seed          uint64
	budget        *Budget
	bytes         int64 // taken from the budget
	reserve       int64 // kept for this table

	index  []uint64
	chunks [][]byte
	n      uint64 // records
	total  uint64 // additions

	sketch *sketch // nil while counts are exact
}

// newTally returns a table for keys of so many bytes within a budget, of which reserve bytes
// are kept for it. The seed keys the hash and should be random; it changes no result.
func newTally(width int, seed uint64, budget *Budget, reserve int64) *tally {
	t := &tally{width: width, record: width + countBytes, seed: seed, budget: budget, reserve: reserve}
	budget.promise(reserve)
	return t
}

// Add counts one more of key. It keeps nothing of it.
func (t *tally) Add(key []byte) {
	t.total++
	key = key[:t.width]
	if t.index == nil {
		t.begin()
	}
	tag := hash(t.seed, key)
	slot, found := t.find(tag, key)
	switch {
	case found:
		t.increment(uint32(t.index[slot]))
	case t.sketch != nil || !t.room():
		t.replace(tag, key)
	default:
		t.insert(tag, key)
	}
}

// begin makes room for the first keys, which every table has.
func (t *tally) begin() {
	t.budget.force(t, firstSlots*slotBytes+t.chunkBytes())
	t.index = make([]uint64, firstSlots)
	t.chunks = append(t.chunks, make([]byte, chunkRecords*t.record))
}

func (t *tally) chunkBytes() int64 { return chunkRecords * int64(t.record+extraBytes) }

// home is where the search for a tag begins. As it grows with the tag, the slots of a
// larger index are filled in the order of those of a smaller one.
func home(tag uint32, slots int) int { return int(uint64(tag) * uint64(slots) >> 32) }

// find returns the slot of a key, or the free one where the search ended. A slot's lower
// half is the record's number and one, so that 0 is a free slot.
func (t *tally) find(tag uint32, key []byte) (slot int, found bool) {
	slot = home(tag, len(t.index))
	for {
		s := t.index[slot]
		if s == 0 {
			return slot, false
		}
		if uint32(s>>32) == tag && string(t.at(uint32(s))[:t.width]) == string(key) {
			return slot, true
		}
		if slot++; slot == len(t.index) {
			slot = 0
		}
	}
}

// at is a record, by its number and one.
func (t *tally) at(number uint32) []byte {
	i := int(number - 1)
	from := (i & (chunkRecords - 1)) * t.record
	return t.chunks[i>>chunkShift][from : from+t.record]
}

func (t *tally) increment(number uint32) {
	count := t.at(number)[t.width:]
	binary.LittleEndian.PutUint64(count, binary.LittleEndian.Uint64(count)+1)
}

func (t *tally) count(number uint32) uint64 {
	return binary.LittleEndian.Uint64(t.at(number)[t.width:])
}

// insert adds a key that is not there; there is room.
func (t *tally) insert(tag uint32, key []byte) {
	t.n++
	number := uint32(t.n)
	r := t.at(number)
	copy(r, key)
	binary.LittleEndian.PutUint64(r[t.width:], 1)
	t.put(tag, number)
}

// put enters a record into the index.
func (t *tally) put(tag uint32, number uint32) {
	slot := home(tag, len(t.index))
	for t.index[slot] != 0 {
		if slot++; slot == len(t.index) {
			slot = 0
		}
	}
	t.index[slot] = uint64(tag)<<32 | uint64(number)
}

// room reports whether one more record fits, and takes memory for it where it can.
func (t *tally) room() bool {
	if t.n == recordsMax {
		return false
	}
	slots := uint64(len(t.index))
	if t.n >= slots/5*4 && !t.growIndex() && t.n >= slots/8*7 {
		return false // searches would become long
	}
	if t.n == uint64(len(t.chunks))*chunkRecords {
		if !t.budget.take(t, t.chunkBytes()) {
			return false
		}
		t.chunks = append(t.chunks, make([]byte, chunkRecords*t.record))
	}
	return true
}

// growIndex makes the index half as large again, or by as much as there is.
func (t *tally) growIndex() bool {
	old := t.index
	for _, more := range []int{len(old) / 2, len(old) / 4, len(old) / 8} {
		slots := len(old) + more
		// Both are there for a moment.
		if !t.budget.take(t, int64(slots)*slotBytes) {
			continue
		}
		t.index = make([]uint64, slots)
		for _, s := range old {
			if s != 0 {
				t.put(uint32(s>>32), uint32(s))
			}
		}
		t.budget.force(t, -int64(len(old))*slotBytes)
		return true
	}
	return false
}

// remove takes a slot out of the index: those behind it that would rather be there
// move up, so that no search ends too early (Knuth, TAOCP 3, 6.4, algorithm R).
func (t *tally) remove(slot int) {
	slots := len(t.index)
	free := slot
	for next := slot; ; {
		if next++; next == slots {
			next = 0
		}
		s := t.index[next]
		if s == 0 {
			break
		}
		wants := home(uint32(s>>32), slots)
		// The way from its home to where it is must pass the free slot.
		if distance(wants, next, slots) >= distance(free, next, slots) {
			t.index[free] = s
			free = next
		}
	}
	t.index[free] = 0
}

// distance is how many steps forward lead from one slot to another.
func distance(from, to, slots int) int {
	if to >= from {
		return to - from
	}
	return to - from + slots
}

// Row is a key and how often it came: at most Count and at least Count-Excess times.
type Row struct {
	// Key points into the table: it holds until the next Add.
	Key           []byte
	Count, Excess uint64
}

// Total is the number of additions.
func (t *tally) Total() uint64 { return t.total }

// Len is the number of keys that are there.
func (t *tally) Len() int { return int(t.n) }

// Exact reports whether all keys found room: every count is exact, and Len is the number
// of different keys.
func (t *tally) Exact() bool { return t.sketch == nil }

// Bound is by how much a count can be too high, and how often a key can have come that
// is not there; 0 while counts are exact. It is never more than Total by Len.
func (t *tally) Bound() uint64 {
	if t.Exact() {
		return 0
	}
	return t.least()
}

// Top has the numbers of the n keys (0: all) that came most often, and at least so many
// times, the most frequent first and equals in the order of their keys.
func (t *tally) Top(n int, atLeast uint64) []uint32 {
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

func (t *tally) sorted(atLeast uint64) []uint32 {
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
func (t *tally) Row(number uint32) Row {
	r := Row{Key: t.at(number)[:t.width:t.width], Count: t.count(number)}
	if t.sketch != nil {
		r.Excess = uint64(t.sketch.errors[number-1])
	}
	return r
}

// Compare orders numbers as Top does.
func (t *tally) Compare(a, b uint32) int {
	return cmp.Or(cmp.Compare(t.count(b), t.count(a)), bytes.Compare(t.at(a)[:t.width], t.at(b)[:t.width]))
}

func (t *tally) rise(heap []uint32, i int) {
	for i > 0 && t.Compare(heap[i], heap[(i-1)/2]) > 0 {
		heap[i], heap[(i-1)/2] = heap[(i-1)/2], heap[i]
		i = (i - 1) / 2
	}
}

func (t *tally) fall(heap []uint32) {
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
func (t *tally) Get(key []byte) (Row, bool) {
	if t.index == nil {
		return Row{}, false
	}
	slot, found := t.find(hash(t.seed, key[:t.width]), key[:t.width])
	if !found {
		return Row{}, false
	}
	return t.Row(uint32(t.index[slot])), true
}
