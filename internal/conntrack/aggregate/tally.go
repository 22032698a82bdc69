package aggregate

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"math/bits"
	"slices"
)

const (
	chunkShift   = 12
	chunkRecords = 1 << chunkShift
	countBytes   = 8
	// extraBytes is what a record needs besides itself once its table is full, or is
	// sorted: its error, its number in the heap, and its place there.
	extraBytes = 4 + 4 + 4
	firstSlots = 1 << 10
	slotBytes  = 8
	// sortedAtOnce keeps Top of a few keys from sorting for each that is added.
	sortedAtOnce = 64
	recordsMax   = 1<<32 - 2
)

// Budget is memory that several tables share, in bytes. A table of a few keys is always
// possible, also where they are more than the budget.
type Budget struct{ limit, used int64 }

// NewBudget returns a budget of the given size in bytes.
func NewBudget(bytes int64) *Budget { return &Budget{limit: bytes} }

// Used returns how many bytes the tables have taken.
func (b *Budget) Used() int64 { return b.used }

func (b *Budget) take(bytes int64) bool {
	if b.used+bytes > b.limit {
		return false
	}
	b.used += bytes
	return true
}

// tally counts how often each of many keys of one width comes, in bounded memory: exactly
// while all keys find room, and from then on by the space-saving algorithm (Metwally,
// Agrawal, El Abbadi: "Efficient Computation of Frequent and Top-k Elements in Data
// Streams", ICDT 2005): a key that is not there takes over the record with the smallest
// count, and its count with it, as its possible error. Counts are then never too low, and
// too high by at most what stands in errors, which is never more than the smallest count.
//
// A record is a key and its count. The index is a hash table with open addressing whose
// slots hold 32 bits of the key's hash and the number of its record: a probe that ends
// elsewhere rarely touches a record, and the index grows without looking at keys.
type tally struct {
	width, record int
	seed          uint64
	budget        *Budget

	index  []uint64
	chunks [][]byte
	n      uint64 // records
	total  uint64 // additions

	// errors are those of the records by number, nil while counts are exact; heap has the
	// numbers of all records, the one with the smallest count first, and place where each
	// stands in it.
	errors, heap, place []uint32
}

// newTally returns a table for keys of width bytes within a budget. The seed keys the hash
// and should be random; it changes no result.
func newTally(width int, seed uint64, budget *Budget) *tally {
	return &tally{width: width, record: width + countBytes, seed: seed, budget: budget}
}

// Add counts one more of key. It keeps nothing of it.
func (t *tally) Add(key []byte) {
	t.total++
	key = key[:t.width]
	if t.index == nil { // every table has its first records
		t.budget.used += firstSlots*slotBytes + t.chunkBytes()
		t.index, t.chunks = make([]uint64, firstSlots), [][]byte{make([]byte, chunkRecords*t.record)}
	}
	tag := hash(t.seed, key)
	slot, found := t.find(tag, key)
	switch {
	case found:
		t.set(uint32(t.index[slot]), t.count(uint32(t.index[slot]))+1)
	case t.errors != nil || !t.room():
		t.replace(tag, key)
	default:
		t.n++
		number := uint32(t.n)
		copy(t.at(number), key)
		t.put(tag, number)
		t.set(number, 1)
	}
}

func (t *tally) chunkBytes() int64 { return chunkRecords * int64(t.record+extraBytes) }

// home returns where the search for a tag begins. As it grows with the tag, the slots of a
// larger index are filled in the order of those of a smaller one.
func home(tag uint32, slots int) int { return int(uint64(tag) * uint64(slots) >> 32) }

// next is the slot behind another one.
func (t *tally) next(slot int) int {
	if slot++; slot == len(t.index) {
		return 0
	}
	return slot
}

// find returns the slot of a key, or the free one where the search ended. A slot's lower
// half is the record's number and one, so that 0 is a free slot.
func (t *tally) find(tag uint32, key []byte) (slot int, found bool) {
	for slot = home(tag, len(t.index)); ; slot = t.next(slot) {
		s := t.index[slot]
		if s == 0 {
			return slot, false
		}
		if uint32(s>>32) == tag && string(t.at(uint32(s))[:t.width]) == string(key) {
			return slot, true
		}
	}
}

// at is a record, by its number and one.
func (t *tally) at(number uint32) []byte {
	i := int(number - 1)
	from := (i & (chunkRecords - 1)) * t.record
	return t.chunks[i>>chunkShift][from : from+t.record]
}

func (t *tally) count(number uint32) uint64 {
	return binary.LittleEndian.Uint64(t.at(number)[t.width:])
}

func (t *tally) set(number uint32, count uint64) {
	binary.LittleEndian.PutUint64(t.at(number)[t.width:], count)
	if t.errors != nil {
		t.sink(int(t.place[number-1]))
	}
}

// put enters a record into the index.
func (t *tally) put(tag uint32, number uint32) {
	slot := home(tag, len(t.index))
	for t.index[slot] != 0 {
		slot = t.next(slot)
	}
	t.index[slot] = uint64(tag)<<32 | uint64(number)
}

// room reports whether one more record fits, and takes memory for it where it can.
func (t *tally) room() bool {
	slots := uint64(len(t.index))
	if t.n == recordsMax || t.n >= slots/5*4 && !t.growIndex() && t.n >= slots/8*7 {
		return false // searches would become long
	}
	if t.n == uint64(len(t.chunks))*chunkRecords {
		if !t.budget.take(t.chunkBytes()) {
			return false
		}
		t.chunks = append(t.chunks, make([]byte, chunkRecords*t.record))
	}
	return true
}

// growIndex makes the index half as large again. Both are there for a moment.
func (t *tally) growIndex() bool {
	old := t.index
	slots := len(old) + len(old)/2
	if !t.budget.take(int64(slots) * slotBytes) {
		return false
	}
	t.index = make([]uint64, slots)
	for _, s := range old {
		if s != 0 {
			t.put(uint32(s>>32), uint32(s))
		}
	}
	t.budget.used -= int64(len(old)) * slotBytes
	return true
}

// replace gives the record with the smallest count to a key that is not there.
func (t *tally) replace(tag uint32, key []byte) {
	if t.errors == nil {
		t.errors, t.heap, t.place = make([]uint32, t.n), make([]uint32, t.n), make([]uint32, t.n)
		for i := range t.heap {
			t.heap[i], t.place[i] = uint32(i)+1, uint32(i)
		}
		for i := len(t.heap)/2 - 1; i >= 0; i-- {
			t.sink(i)
		}
	}
	number := t.heap[0]
	r := t.at(number)
	slot, _ := t.find(hash(t.seed, r[:t.width]), r[:t.width])
	t.remove(slot)
	count := t.count(number)
	t.errors[number-1] = uint32(min(count, 1<<32-1))
	copy(r, key)
	t.put(tag, number)
	t.set(number, count+1)
}

// sink moves a member of the heap down to where it belongs: counts only grow.
func (t *tally) sink(i int) {
	number := t.heap[i]
	count := t.count(number)
	for {
		child := 2*i + 1
		if child >= len(t.heap) {
			break
		}
		least := t.count(t.heap[child])
		if child+1 < len(t.heap) {
			if other := t.count(t.heap[child+1]); other < least {
				child, least = child+1, other
			}
		}
		if count <= least {
			break
		}
		t.heap[i], t.place[t.heap[child]-1] = t.heap[child], uint32(i)
		i = child
	}
	t.heap[i], t.place[number-1] = number, uint32(i)
}

// remove takes a slot out of the index: those behind it that would rather be there
// move up, so that no search ends too early (Knuth, TAOCP 3, 6.4, algorithm R).
func (t *tally) remove(free int) {
	// distance is how many steps forward lead from one slot to another.
	distance := func(from, to int) int { return (to - from + len(t.index)) % len(t.index) }
	for next := t.next(free); t.index[next] != 0; next = t.next(next) {
		wants := home(uint32(t.index[next]>>32), len(t.index))
		// The way from its home to where it is must pass the free slot.
		if distance(wants, next) >= distance(free, next) {
			t.index[free] = t.index[next]
			free = next
		}
	}
	t.index[free] = 0
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
func (t *tally) Exact() bool { return t.errors == nil }

// Bound returns by how much a count can be too high, and how often a key can have come that
// is not there; 0 while counts are exact. It is never more than Total by Len.
func (t *tally) Bound() uint64 {
	if t.Exact() {
		return 0
	}
	return t.count(t.heap[0])
}

// Top returns the numbers of the n most frequent keys (0: all) that were counted at least
// atLeast times, the most frequent first and equals in the order of their keys.
func (t *tally) Top(n int, atLeast uint64) []uint32 {
	var list []uint32
	last := uint32(0) // the n-th so far, which few of a long table come before
	for number := uint32(1); uint64(number) <= t.n; number++ {
		if t.count(number) < atLeast || last != 0 && t.Compare(number, last) > 0 {
			continue
		}
		if list = append(list, number); n > 0 && len(list) >= 2*n+sortedAtOnce {
			slices.SortFunc(list, t.Compare)
			list = list[:n]
			last = list[n-1]
		}
	}
	slices.SortFunc(list, t.Compare)
	if n > 0 {
		list = list[:min(n, len(list))]
	}
	return list
}

// Row is the row of a number that Top returned.
func (t *tally) Row(number uint32) Row {
	r := Row{Key: t.at(number)[:t.width:t.width], Count: t.count(number)}
	if t.errors != nil {
		r.Excess = uint64(t.errors[number-1])
	}
	return r
}

// Compare orders numbers as Top does.
func (t *tally) Compare(a, b uint32) int {
	return cmp.Or(cmp.Compare(t.count(b), t.count(a)), bytes.Compare(t.at(a)[:t.width], t.at(b)[:t.width]))
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

// hash returns 32 bits of a keyed hash. Clients choose the keys by opening connections:
// without knowing the seed they cannot choose keys that collide.
func hash(seed uint64, key []byte) uint32 {
	h := seed ^ uint64(len(key))*0x9e3779b97f4a7c15
	for len(key) >= 8 {
		h = mix(h, binary.LittleEndian.Uint64(key))
		key = key[8:]
	}
	var last uint64 // of fewer than eight bytes
	switch n := len(key); {
	case n >= 4:
		last = uint64(binary.LittleEndian.Uint32(key))<<32 | uint64(binary.LittleEndian.Uint32(key[n-4:]))
	case n > 0:
		last = uint64(key[0])<<16 | uint64(key[n/2])<<8 | uint64(key[n-1])
	}
	h = mix(h, last)
	return uint32(h ^ h>>32)
}

// mix folds a 128-bit product, with constants that keep a zero operand from swallowing
// the other one.
func mix(h, v uint64) uint64 {
	hi, lo := bits.Mul64(h^0x9e3779b97f4a7c15, v^0xd6e8feb86659fd93)
	return hi ^ lo ^ h
}
