package aggregate

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// small is a budget for a few thousand keys of 8 bytes: the first chunk, and the first
// index grown once or twice.
const small = chunkRecords*(8+countBytes+extraBytes) + 60_000

func key8(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

// streams are orders of keys that are hard in different ways.
var streams = map[string]func(r *rand.Rand, i int) uint64{
	"all different": func(_ *rand.Rand, i int) uint64 { return uint64(i) },
	"uniform":       func(r *rand.Rand, _ int) uint64 { return r.Uint64N(20_000) },
	"few keys":      func(r *rand.Rand, _ int) uint64 { return r.Uint64N(500) },
	"skewed": func(r *rand.Rand, _ int) uint64 {
		return uint64(1 / (r.Float64() + 1e-6))
	},
	// One key comes between enough others to have been replaced each time.
	"one among many": func(_ *rand.Rand, i int) uint64 {
		if i%50 == 0 {
			return 1 << 40
		}
		return uint64(i)
	},
	// Round and round: a key comes when it has just gone.
	"cycle": func(_ *rand.Rand, i int) uint64 { return uint64(i % 6_000) },
	// All heavy but what is always replaced: few candidates.
	"late newcomers": func(r *rand.Rand, i int) uint64 {
		if i < 150_000 {
			return uint64(i % 4_000)
		}
		return uint64(i)
	},
	// Every count is another one.
	"staircase": func(r *rand.Rand, i int) uint64 {
		if i < 180_000 {
			return uint64(max(r.IntN(600), r.IntN(600)))
		}
		return uint64(i)
	},
}

// TestBounds holds counts against exact ones: those of a full table are never too low,
// and never too high by more than they say.
func TestBounds(t *testing.T) {
	for name, next := range streams {
		t.Run(name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, 2))
			table, exact := newTally(8, 7, NewBudget(small)), map[uint64]uint64{}
			for i := range 200_000 {
				k := next(r, i)
				exact[k]++
				table.Add(key8(k))
			}
			checkBounds(t, table, exact)
		})
	}
}

func checkBounds(t *testing.T, table *tally, exact map[uint64]uint64) {
	t.Helper()
	rows := table.Top(0, 0)
	if len(rows) != table.Len() {
		t.Errorf("%d rows of %d keys", len(rows), table.Len())
	}
	if table.Exact() && len(rows) != len(exact) {
		t.Errorf("%d keys, want %d", len(rows), len(exact))
	}
	bound, sum := table.Bound(), uint64(0)
	if table.Len() > 0 && bound > table.Total()/uint64(table.Len()) {
		t.Errorf("bound %d with %d keys in %d additions", bound, table.Len(), table.Total())
	}
	if len(exact) > table.Len() == table.Exact() {
		t.Errorf("%d of %d keys are there, exact: %v", table.Len(), len(exact), table.Exact())
	}
	there := map[uint64]bool{}
	for _, number := range rows {
		row := table.Row(number)
		k := binary.BigEndian.Uint64(row.Key)
		there[k] = true
		sum += row.Count
		if n := exact[k]; row.Count < n || row.Count-row.Excess > n || row.Excess > bound {
			t.Fatalf("key %d: at most %d, at least %d, bound %d; came %d times", k, row.Count, row.Count-row.Excess, bound, n)
		}
	}
	if sum != table.Total() {
		t.Errorf("counts add up to %d, not to %d", sum, table.Total())
	}
	for k, n := range exact {
		if !there[k] && n > bound {
			t.Fatalf("key %d came %d times and is not there; bound %d", k, n, bound)
		}
	}
	checkIndex(t, table)
}

// checkIndex: every record is found by its key.
func checkIndex(t *testing.T, table *tally) {
	t.Helper()
	for number := uint32(1); uint64(number) <= table.n; number++ {
		key := table.at(number)[:table.width]
		slot, found := table.find(hash(table.seed, key), key)
		if !found || uint32(table.index[slot]) != number {
			t.Fatalf("record %d (%x) is not found", number, key)
		}
	}
}

// TestSmallest: the record that is replaced has the smallest count of all.
func TestSmallest(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	table := newTally(8, 7, NewBudget(0))
	for i := range 30_000 {
		table.Add(key8(uint64(r.IntN(1 + i))))
		if table.errors == nil || i%97 != 0 {
			continue
		}
		least := ^uint64(0)
		for number := range table.n {
			least = min(least, table.count(uint32(number)+1))
		}
		if got := table.count(table.heap[0]); got != least {
			t.Fatalf("after %d additions: %d, want %d", i, got, least)
		}
	}
	if table.Exact() {
		t.Error("the table never was full")
	}
}

// TestSeedChangesNothing: the result does not depend on the order in the index.
func TestSeedChangesNothing(t *testing.T) {
	var first []string
	for _, seed := range []uint64{1, 2, 1 << 63} {
		r := rand.New(rand.NewPCG(5, 6))
		table := newTally(8, seed, NewBudget(small))
		for range 100_000 {
			table.Add(key8(uint64(1 / (r.Float64() + 1e-5))))
		}
		var rows []string
		for _, number := range table.Top(1000, 0) {
			rows = append(rows, fmt.Sprint(table.Row(number)))
		}
		if first == nil {
			first = rows
		}
		if !slices.Equal(rows, first) {
			t.Errorf("seed %d gives other rows", seed)
		}
	}
}

func TestTopIsTheBeginningOfAll(t *testing.T) {
	table := newTally(8, 7, NewBudget(1<<20))
	r := rand.New(rand.NewPCG(7, 8))
	for range 20_000 {
		table.Add(key8(r.Uint64N(1 + r.Uint64N(2_000))))
	}
	all := table.Top(0, 0)
	if !slices.IsSortedFunc(all, table.Compare) {
		t.Error("not sorted")
	}
	for _, n := range []int{1, 2, 10, 500, len(all), len(all) + 1} {
		if got, want := table.Top(n, 0), all[:min(n, len(all))]; !slices.Equal(got, want) {
			t.Errorf("Top(%d) = %v, want %v", n, got, want)
		}
	}
	for _, number := range table.Top(0, 20) {
		if table.Row(number).Count < 20 {
			t.Errorf("row %+v is below 20", table.Row(number))
		}
	}
	if n := len(table.Top(5, 1<<40)); n != 0 {
		t.Errorf("%d rows of more than all", n)
	}
}

// TestWidths counts keys of all lengths that differ in any byte.
func TestWidths(t *testing.T) {
	for width := range 41 {
		table := newTally(width, 9, NewBudget(1<<20))
		for i := range max(width, 1) {
			key := make([]byte, width)
			if width > 0 {
				key[i] = 1
			}
			table.Add(key)
			table.Add(key)
		}
		if n := table.Len(); n != max(width, 1) || table.Total() != 2*uint64(max(width, 1)) {
			t.Errorf("width %d: %d keys in %d additions", width, n, table.Total())
		}
		checkIndex(t, table)
	}
}

// TestBudgetHolds: what is allocated is what was taken, and a table that comes late has its
// first records.
func TestBudgetHolds(t *testing.T) {
	const limit = 8 << 20
	budget := NewBudget(limit)
	first, late := newTally(8, 1, budget), newTally(32, 1, budget)
	for i := range 1_000_000 {
		first.Add(key8(uint64(i)))
	}
	if budget.Used() > limit || first.Exact() || first.Len() < 100_000 {
		t.Errorf("%d of %d bytes are used for %d keys", budget.Used(), limit, first.Len())
	}
	for i := range 100_000 {
		late.Add(append(key8(uint64(i)), make([]byte, 24)...))
	}
	if n := late.Len(); n < chunkRecords/2 {
		t.Errorf("the late table has %d keys", n)
	}
	took := int64(0)
	for _, table := range []*tally{first, late} {
		took += int64(cap(table.index))*slotBytes + int64(len(table.chunks))*table.chunkBytes()
		if b := table.Bound(); b == 0 || b > table.Total()/uint64(table.Len()) {
			t.Errorf("bound %d", b)
		}
	}
	if took != budget.Used() {
		t.Errorf("took %d bytes, counted %d", took, budget.Used())
	}
}

func TestTallyAllocatesNothing(t *testing.T) {
	full, exact := newTally(8, 1, NewBudget(0)), newTally(8, 1, NewBudget(64<<20))
	for i := range 20_000 {
		full.Add(key8(uint64(i)))
		exact.Add(key8(uint64(i)))
	}
	full.Top(1, 0)
	key, i := make([]byte, 8), uint64(0)
	for name, table := range map[string]*tally{"exact": exact, "full": full} {
		if n := testing.AllocsPerRun(5000, func() {
			i++
			binary.BigEndian.PutUint64(key, i%10_000)
			table.Add(key)
		}); n != 0 {
			t.Errorf("%s: %v allocations in an addition", name, n)
		}
	}
}

func BenchmarkTally(b *testing.B) {
	for _, keys := range []int{1000, 100_000, 1_000_000, 4_000_000} {
		for _, budget := range []int64{1 << 30, 4 << 20} {
			b.Run(fmt.Sprintf("keys=%d/MiB=%d", keys, budget>>20), func(b *testing.B) {
				r := rand.New(rand.NewPCG(1, 2))
				key := make([]byte, 5)
				for range b.N {
					table := newTally(5, 7, NewBudget(budget))
					for range 4_000_000 {
						binary.BigEndian.PutUint32(key, uint32(r.IntN(keys)))
						table.Add(key)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/4e6, "ns/add")
			})
		}
	}
}
