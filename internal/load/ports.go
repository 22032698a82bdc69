package load

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
)

// PortRange is a range of ports, both ends included. The zero value stands for no
// range.
type PortRange struct {
	First uint16 `json:"first"`
	Last  uint16 `json:"last"`
}

// ParsePorts reads "PORT" or "FIRST-LAST".
func ParsePorts(text string) (PortRange, error) {
	first, last, isRange := strings.Cut(text, "-")
	if !isRange {
		last = first
	}
	a, errA := strconv.ParseUint(strings.TrimSpace(first), 10, 16)
	b, errB := strconv.ParseUint(strings.TrimSpace(last), 10, 16)
	if errA != nil || errB != nil || a == 0 || a > b {
		return PortRange{}, fmt.Errorf("read source ports %q: expected FIRST-LAST, from 1 to 65535", text)
	}
	return PortRange{uint16(a), uint16(b)}, nil
}

// Len is the number of ports.
func (r PortRange) Len() int {
	if r.First == 0 {
		return 0
	}
	return int(r.Last) - int(r.First) + 1
}

// Permutation is an order of the numbers from 0 to n-1 that looks random and needs
// no memory.
type Permutation struct{ n, step, start uint64 }

// NewPermutation makes the one of a seed. n is at most 2^32.
func NewPermutation(n, seed uint64) Permutation {
	if n < 2 {
		return Permutation{n: n}
	}
	random := rand.New(rand.NewPCG(seed, n))
	p := Permutation{n: n, start: random.Uint64N(n)}
	// Steps of a length that has no factor in common with n meet every number once.
	for p.step = 1 + random.Uint64N(n-1); gcd(p.step, n) != 1; {
		p.step = 1 + random.Uint64N(n-1)
	}
	return p
}

// At is the k-th number; after n numbers they come again.
func (p Permutation) At(k uint64) uint64 {
	if p.n == 0 {
		return 0
	}
	return (p.start + k%p.n*p.step) % p.n
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
