package nat

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"testing"
)

// farm is a choice among backends of given weights.
func farm(balance Balance, weights ...uint32) *Action {
	a := &Action{Kind: DNAT, Balance: balance}
	for i, w := range weights {
		a.Backends = append(a.Backends, Backend{Address: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), Port: 80, Weight: w})
	}
	return a
}

func ones(n int) []uint32 { return slices.Repeat([]uint32{1}, n) }

func shares(seats []int, n int) []int {
	counts := make([]int, n)
	for _, i := range seats {
		counts[i]++
	}
	return counts
}

func TestSeatsOfABackendThatGoes(t *testing.T) {
	for _, a := range []*Action{farm(BalanceHash, ones(2)...), farm(BalanceHash, 1, 2, 3, 4, 5), farm(BalanceHash, ones(40)...),
		farm(BalanceRoundRobin, ones(3)...), farm(BalanceRoundRobin, 7, 1, 300), farm(BalanceRoundRobin, ones(256)...)} {
		n := len(a.Backends)
		all := a.Seats(nil)
		if len(all) != a.Places() || slices.Contains(all, Nobody) {
			t.Fatalf("%d seats of %d places", len(all), a.Places())
		}
		for gone := range min(n, 6) {
			out := make([]bool, n)
			out[gone] = true
			without := a.Seats(out)
			for at, was := range all {
				if now := without[at]; was != gone && now != was || now == gone {
					t.Fatalf("%s of %d, %d goes: place %d was %d's and is %d's", a.Balance, n, gone, at, was, now)
				}
			}
		}
	}
}

// By hash a client has the same backend wherever that stands in the list, and whichever others the file names.
func TestSeatsOfABackendThatIsTakenOutOfTheFile(t *testing.T) {
	a := farm(BalanceHash, 1, 2, 1, 3, 1, 1, 1)
	b := &Action{Balance: BalanceHash, Backends: slices.Delete(slices.Clone(a.Backends), 2, 3)}
	slices.Reverse(b.Backends)
	before, after := a.Seats(nil), b.Seats(nil)
	moved := 0
	for at := range before {
		was, is := a.Backends[before[at]], b.Backends[after[at]]
		if was != is {
			moved++
			if was != a.Backends[2] {
				t.Fatalf("place %d moved from %v to %v, and %v went", at, was, is, a.Backends[2])
			}
		}
	}
	if due := a.Places() / 10; moved < due/2 || moved > 2*due { // its weight is 1 of 10
		t.Errorf("%d places moved, about %d are due", moved, due)
	}
}

func TestWeightsOfHash(t *testing.T) {
	for _, a := range []*Action{farm(BalanceHash, ones(2)...), farm(BalanceHash, ones(8)...), farm(BalanceHash, ones(256)...), farm(BalanceHash, 1, 3), farm(BalanceHash, 1, 10, 100)} {
		sum := 0.0
		for _, b := range a.Backends {
			sum += float64(b.Share())
		}
		far, places := 0, float64(a.Places())
		for i, n := range shares(a.Seats(nil), len(a.Backends)) {
			part := float64(a.Backends[i].Share()) / sum
			if math.Abs(float64(n)-part*places) > 2*math.Sqrt(places*part*(1-part)) {
				far++
			}
		}
		if far > max(1, len(a.Backends)/10) {
			t.Errorf("%d of %d backends are further from their part than documented: %v", far, len(a.Backends), shares(a.Seats(nil), len(a.Backends)))
		}
	}
}

func TestWeightsInTurns(t *testing.T) {
	for _, a := range []*Action{farm(BalanceRoundRobin, ones(2)...), farm(BalanceRoundRobin, 1, 3), farm(BalanceRoundRobin, 4, 6), farm(BalanceRoundRobin, ones(256)...), farm(BalanceRoundRobin, 7, 11, 13)} {
		sum := 0
		for _, b := range a.Backends {
			sum += int(b.Share())
		}
		for i, n := range shares(a.Seats(nil), len(a.Backends)) {
			if n*sum != a.Places()*int(a.Backends[i].Share()) {
				t.Errorf("%d of %d places for a weight of %d of %d", n, a.Places(), a.Backends[i].Share(), sum)
			}
		}
		// Of those that are left each has its part but for one place.
		out := make([]bool, len(a.Backends))
		out[0] = true
		left := sum - int(a.Backends[0].Share())
		for i, n := range shares(a.Seats(out), len(a.Backends)) {
			want := float64(a.Places()) * float64(a.Backends[i].Share()) / float64(left)
			if !out[i] && math.Abs(float64(n)-want) > 1 {
				t.Errorf("%d is left with %d places, want %.1f", i, n, want)
			}
		}
	}
}

func TestTurnsAreFarApart(t *testing.T) {
	seats := farm(BalanceRoundRobin, 1, 3).Seats(nil)
	if got := fmt.Sprint(seats[:8]); got != "[1 0 1 1 1 0 1 1]" {
		t.Error(got)
	}
}

// Weights that are far apart are rounded, so that the places are bounded, and each backend has one.
func TestPlacesAreBounded(t *testing.T) {
	for _, balance := range []Balance{BalanceHash, BalanceRoundRobin} {
		weights := slices.Repeat([]uint32{997}, 255)
		a := farm(balance, append(weights, 1)...)
		if n := a.Places(); n > manyPlaces {
			t.Errorf("%s: %d places", balance, n)
		}
		if n := shares(a.Seats(nil), 256)[255]; balance == BalanceRoundRobin && n == 0 {
			t.Errorf("%s: a weight of 1 has no place", balance)
		}
	}
}

func TestSeatsOfNobody(t *testing.T) {
	for _, balance := range []Balance{BalanceHash, BalanceRoundRobin} {
		a := farm(balance, 1, 2)
		if seats := a.Seats([]bool{true, true}); len(seats) != a.Places() || slices.ContainsFunc(seats, func(i int) bool { return i != Nobody }) {
			t.Errorf("%s: %v", balance, seats)
		}
	}
}
