package bench

import (
	"math"
	"math/rand/v2"
	"testing"
)

// Values from the tables of any statistics book.
func TestStudentQuantile(t *testing.T) {
	for _, tt := range []struct {
		p       float64
		freedom int
		want    float64
	}{
		{0.975, 1, 12.706}, {0.975, 2, 4.303}, {0.975, 5, 2.571}, {0.975, 14, 2.145},
		{0.975, 29, 2.045}, {0.975, 120, 1.980}, {0.95, 10, 1.812}, {0.5, 7, 0},
	} {
		if got := studentQuantile(tt.p, tt.freedom); math.Abs(got-tt.want) > 0.0006 {
			t.Errorf("studentQuantile(%v, %d) = %.4f, want %v", tt.p, tt.freedom, got, tt.want)
		}
	}
}

func TestPairedRatio(t *testing.T) {
	// A drifting machine: both halve together, the ratio stays.
	a := []float64{200, 100, 400, 50}
	b := []float64{100, 50, 200, 25}
	got, err := pairedRatio(a, b)
	if err != nil {
		t.Fatal(err)
	}
	if want := (Ratio{Mean: 2, Low: 2, High: 2, Pairs: 4}); !near(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	// By hand: logs ±ln 2 and 0, mean 0, sd ln 2, t(2) = 4.3027, n = 3.
	got, err = pairedRatio([]float64{2, 1, 1}, []float64{1, 1, 2})
	if err != nil {
		t.Fatal(err)
	}
	half := 4.302653 * math.Ln2 / math.Sqrt(3)
	if want := (Ratio{Mean: 1, Low: math.Exp(-half), High: math.Exp(half), Pairs: 3}); !near(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func near(a, b Ratio) bool {
	const tolerance = 1e-5
	return math.Abs(a.Mean-b.Mean) < tolerance && math.Abs(a.Low/b.Low-1) < tolerance &&
		math.Abs(a.High/b.High-1) < tolerance && a.Pairs == b.Pairs
}

// TestPairedRatioCovers: the interval holds the true ratio about 95 times in 100.
func TestPairedRatioCovers(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	const truth, rounds, pairs = 1.05, 1500, 15
	held := 0
	for range rounds {
		var a, b []float64
		for range pairs {
			mood := math.Exp(random.NormFloat64())
			a = append(a, truth*mood*math.Exp(0.1*random.NormFloat64()))
			b = append(b, mood*math.Exp(0.1*random.NormFloat64()))
		}
		r, err := pairedRatio(a, b)
		if err != nil {
			t.Fatal(err)
		}
		if r.Low <= truth && truth <= r.High {
			held++
		}
	}
	if share := float64(held) / rounds; share < 0.93 || share > 0.97 {
		t.Errorf("the 95 %% interval held the true ratio in %.1f %% of %d rounds", 100*share, rounds)
	}
}

func TestPairedRatioRejects(t *testing.T) {
	for name, pair := range map[string][2][]float64{
		"one pair":   {{1}, {1}},
		"unequal":    {{1, 2}, {1, 2, 3}},
		"zero":       {{1, 0}, {1, 1}},
		"negative":   {{1, 1}, {1, -1}},
		"infinite":   {{1, math.Inf(1)}, {1, 1}},
		"not number": {{1, math.NaN()}, {1, 1}},
	} {
		if r, err := pairedRatio(pair[0], pair[1]); err == nil || r != (Ratio{}) {
			t.Errorf("%s: got %v, %v", name, r, err)
		}
	}
}

func TestMedian(t *testing.T) {
	for _, tt := range []struct {
		in   []float64
		want float64
	}{{[]float64{3}, 3}, {[]float64{9, 1, 5}, 5}, {[]float64{4, 1, 2, 3}, 2.5}} {
		if got := median(tt.in); got != tt.want {
			t.Errorf("median(%v) = %v, want %v", tt.in, got, tt.want)
		}
	}
}

func TestRatioString(t *testing.T) {
	for want, r := range map[string]Ratio{
		"1.050 (0.900 to 1.225)":                    {Mean: 1.05, Low: 0.9, High: 1.225},
		"too uncertain to compare (0.500 to 2.000)": {Mean: 1, Low: 0.5, High: 2},
	} {
		if got := r.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
