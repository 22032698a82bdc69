package load

import "testing"

// Every number comes once before any comes again, whatever the seed.
func TestPermutation(t *testing.T) {
	for _, n := range []uint64{0, 1, 2, 3, 10, 28232, 64512} {
		for seed := range uint64(20) {
			p := NewPermutation(n, seed)
			seen := make([]bool, n)
			for k := range n {
				if v := p.At(k); v >= n || seen[v] {
					t.Fatalf("n %d, seed %d: %d comes at place %d, again or out of range", n, seed, v, k)
				} else {
					seen[v] = true
				}
			}
			if n > 0 && p.At(n) != p.At(0) {
				t.Fatalf("n %d, seed %d: the order does not begin again", n, seed)
			}
		}
	}
	if a, b := NewPermutation(64512, 1), NewPermutation(64512, 2); a == b {
		t.Error("two seeds give the same order")
	}
	const big = 1 << 32
	if v := NewPermutation(big, 7).At(big - 1); v >= big {
		t.Errorf("the last of 2^32 numbers is %d", v)
	}
}
