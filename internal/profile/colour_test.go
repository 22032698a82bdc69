package profile

import (
	"math"
	"strconv"
	"testing"
)

// TestClassesLookDifferent: no two classes of a flame graph have colours that an eye
// takes for the same (CIE 1976 difference; 2.3 is the least that is noticed, and small
// areas apart from each other need more).
func TestClassesLookDifferent(t *testing.T) {
	seen := map[string]string{}
	for _, c := range (&Stacks{}).flameData().Classes {
		for other, colour := range seen {
			if d := difference(t, c.Colour, colour); d < 10 {
				t.Errorf("%s and %s look the same: %s, %s (%.1f)", c.Name, other, c.Colour, colour, d)
			}
		}
		seen[c.Name] = c.Colour
	}
}

func difference(t *testing.T, a, b string) (d float64) {
	x, y := lab(t, a), lab(t, b)
	for i := range x {
		d += (x[i] - y[i]) * (x[i] - y[i])
	}
	return math.Sqrt(d)
}

// lab is a colour of sRGB in CIE L*a*b*, under D65.
func lab(t *testing.T, colour string) [3]float64 {
	t.Helper()
	n, err := strconv.ParseUint(colour[1:], 16, 32)
	if err != nil {
		t.Fatal(err)
	}
	light := func(shift int) float64 {
		c := float64(n>>shift&255) / 255
		if c <= 0.04045 {
			return c / 12.92
		}
		return math.Pow((c+0.055)/1.055, 2.4)
	}
	r, g, b := light(16), light(8), light(0)
	root := func(v float64) float64 {
		if v > 0.008856 {
			return math.Cbrt(v)
		}
		return 7.787*v + 16.0/116
	}
	x, y, z := root((0.4124*r+0.3576*g+0.1805*b)/0.95047), root(0.2126*r+0.7152*g+0.0722*b), root((0.0193*r+0.1192*g+0.9505*b)/1.08883)
	return [3]float64{116*y - 16, 500 * (x - y), 200 * (y - z)}
}
