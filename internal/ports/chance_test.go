package ports

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/natkit/natkit/internal/snapshot"
)

// search is what the kernel does, step by step (nf_nat_l4proto_unique_tuple), with
// a connection that is past the sequence numbers of all evictable ones.
func search(used, evictable *Set, r Range, random *rand.Rand) bool {
	off := uint16(random.Uint32())
	attempts := min(r.Size(), 128)
	for {
		for i := range attempts {
			p := r.First + uint16(int(off)%r.Size())
			off++
			if !used.Has(p) || attempts-i <= 32 && evictable != nil && evictable.Has(p) {
				return true
			}
		}
		if attempts >= r.Size() || attempts < 16 {
			return false
		}
		attempts /= 2
		off = uint16(random.Uint32())
	}
}

// layouts of used ports: blocks, scattered ones, and both.
func layout(r Range, share float64, block int, random *rand.Rand) *Set {
	s := &Set{}
	for placed := 0; placed < int(share*float64(r.Size())); {
		at := random.IntN(r.Size())
		for i := range min(block, r.Size()) {
			if p := r.First + uint16((at+i)%r.Size()); !s.Has(p) {
				s.Add(p)
				placed++
			}
		}
	}
	return s
}

func TestFailChanceAgainstSearch(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, r := range []Range{{1024, 65535}, {0, 65535}, {1, 511}, {600, 1023}, {20000, 20999}, {5000, 5127}, {5000, 5128}, {7000, 7063}, {9, 9}} {
		for _, share := range []float64{0.5, 0.9, 0.97, 1} {
			for _, block := range []int{1, 40, 300, 1 << 15} {
				for _, ended := range []float64{0, 0.02, 0.5} {
					name := fmt.Sprintf("%v/%v/%d/%v", r, share, block, ended)
					used := layout(r, share, block, random)
					evictable := layout(r, ended, block/2+1, random)
					compareSearch(t, name, used, evictable, r, random)
				}
			}
		}
	}
}

func compareSearch(t *testing.T, name string, used, evictable *Set, r Range, random *rand.Rand) {
	t.Helper()
	const tries = 4000
	failed := 0
	for range tries {
		if !search(used, evictable, r, random) {
			failed++
		}
	}
	want := FailChance(used, evictable, r, snapshot.PortProbeRandom)
	got := float64(failed) / tries
	if want < 0 || want > 1 {
		t.Fatalf("%s: chance %v", name, want)
	}
	// Five standard deviations, in some 400 cases, and one try.
	if bound := 5*math.Sqrt(want*(1-want)/tries) + 1.0/tries; math.Abs(got-want) > bound {
		t.Errorf("%s: computed %.4f, the search fails in %.4f (± %.4f)", name, want, got, bound)
	}
}

// One block of used ports, as measured on a kernel: 70 % at 93 %, 3 % at half.
func TestFailChanceOfOneBlock(t *testing.T) {
	r := Range{1024, 65535}
	for _, tt := range []struct {
		ports      int
		low, high  float64
		fullyTaken bool
	}{{60000, 0.66, 0.72, false}, {32256, 0.028, 0.034, false}, {64512, 1, 1, true}, {0, 0, 0, false}} {
		used := &Set{}
		for i := range tt.ports {
			used.Add(uint16(1024 + i))
		}
		if got := FailChance(used, nil, r, snapshot.PortProbeRandom); got < tt.low || got > tt.high {
			t.Errorf("%d ports in one block: %.4f, want %v to %v", tt.ports, got, tt.low, tt.high)
		}
		whole := 0.0
		if tt.fullyTaken {
			whole = 1
		}
		if got := FailChance(used, nil, r, snapshot.PortProbeAll); got != whole {
			t.Errorf("%d ports, a kernel that looks at all: %v, want %v", tt.ports, got, whole)
		}
	}
}

// The mean over scattered layouts is the closed form.
func TestScatteredChance(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	r := Range{20000, 20999}
	for _, share := range []float64{0.95, 0.98, 0.99} {
		mean, many := 0.0, 300
		for range many {
			mean += FailChance(layout(r, share, 1, random), nil, r, snapshot.PortProbeRandom) / float64(many)
		}
		want := ScatteredChance(int(share*1000), 1000, snapshot.PortProbeRandom)
		if math.Abs(mean-want) > 0.02 {
			t.Errorf("%v in use: mean of layouts %.4f, closed form %.4f", share, mean, want)
		}
	}
	if got := ScatteredChance(60000, 64512, snapshot.PortProbeRandom); got > 1e-6 {
		t.Errorf("93 %% scattered: %v", got)
	}
	if got := ScatteredChance(10, 10, snapshot.PortProbeAll); got != 1 {
		t.Errorf("full: %v", got)
	}
}

func TestSetCount(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	s, o := layout(Range{0, 65535}, 0.3, 7, random), layout(Range{0, 65535}, 0.3, 7, random)
	for range 300 {
		a, b := uint16(random.Uint32()), uint16(random.Uint32())
		r := Range{min(a, b), max(a, b)}
		count, without := 0, 0
		for p := int(r.First); p <= int(r.Last); p++ {
			if s.Has(uint16(p)) {
				count++
				if !o.Has(uint16(p)) {
					without++
				}
			}
		}
		if got := s.Count(r); got != count {
			t.Fatalf("Count(%v) = %d, want %d", r, got, count)
		}
		if got := s.without(o, r); got != without {
			t.Fatalf("without(%v) = %d, want %d", r, got, without)
		}
	}
}

func BenchmarkFailChance(b *testing.B) {
	used := layout(Range{1024, 65535}, 0.9, 1000, rand.New(rand.NewPCG(7, 8)))
	for b.Loop() {
		FailChance(used, used, Range{1024, 65535}, snapshot.PortProbeRandom)
	}
}
