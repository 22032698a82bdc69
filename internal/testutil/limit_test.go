package testutil

import (
	"slices"
	"testing"
)

// failures counts what would fail.
type failures struct {
	testing.TB
	n int
}

func (f *failures) Errorf(string, ...any) { f.n++ }

// TestLinear: what looks at all that came before takes the square.
func TestLinear(t *testing.T) {
	for name, distinct := range map[string]int{"linear": 1, "square": 1 << 30} {
		f := &failures{TB: t}
		Linear(f, func(times int) {
			var seen []int
			for i := range times * 2000 {
				if !slices.Contains(seen, i%distinct) {
					seen = append(seen, i%distinct)
				}
			}
		})
		if (f.n > 0) != (name == "square") {
			t.Errorf("%s: %d failures", name, f.n)
		}
	}
	if f := (&failures{TB: t}); true {
		Linear(f, func(times int) {
			for began := CPUTime(t); CPUTime(t)-began < longEnough; { // so that the input need not grow
			}
			held = make([]byte, times*times<<20)
		})
		if f.n == 0 {
			t.Error("the square in memory is taken")
		}
	}
}

var held []byte
