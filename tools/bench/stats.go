package bench

import (
	"fmt"
	"math"
	"slices"
	"strconv"
)

// Ratio is how many times greater one thing is than another, with the interval
// that holds the true value in 95 of 100 such comparisons.
type Ratio struct {
	Mean  float64 `json:"ratio"`
	Low   float64 `json:"low_95"`
	High  float64 `json:"high_95"`
	Pairs int     `json:"pairs"`
}

// wide reports whether the interval is too wide for the ratio to be meaningful.
func (r Ratio) wide() bool { return r.High > 2*r.Low }

func (r Ratio) String() string {
	interval := fmt.Sprintf("(%.3f to %.3f)", r.Low, r.High)
	if r.wide() {
		return "too uncertain to compare " + interval
	}
	return fmt.Sprintf("%.3f %s", r.Mean, interval)
}

// pairedRatio compares a with b, run by run. Runs that follow each other share
// the machine's mood, so their ratio varies far less than either of them; its
// logarithm is what is averaged, so that twice and half weigh the same.
func pairedRatio(a, b []float64) (Ratio, error) {
	if len(a) != len(b) || len(a) < 2 {
		return Ratio{}, fmt.Errorf("compare %d runs with %d: needs at least two pairs", len(a), len(b))
	}
	logs := make([]float64, len(a))
	for i := range a {
		if !(a[i] > 0) || !(b[i] > 0) || math.IsInf(a[i], 0) || math.IsInf(b[i], 0) {
			return Ratio{}, fmt.Errorf("compare pair %d: %v and %v are not both positive", i+1, a[i], b[i])
		}
		logs[i] = math.Log(a[i] / b[i])
	}
	mean, sd := meanSD(logs)
	half := studentQuantile(0.975, len(logs)-1) * sd / math.Sqrt(float64(len(logs)))
	return Ratio{
		Mean: significant(math.Exp(mean)), Low: significant(math.Exp(mean - half)), High: significant(math.Exp(mean + half)),
		Pairs: len(logs),
	}, nil
}

// significant keeps six digits, more than any measurement has.
func significant(v float64) float64 {
	rounded, err := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 6, 64), 64)
	if err != nil {
		return v // infinite
	}
	return rounded
}

// meanSD is the mean and the sample standard deviation.
func meanSD(x []float64) (mean, sd float64) {
	for _, v := range x {
		mean += v
	}
	mean /= float64(len(x))
	for _, v := range x {
		sd += (v - mean) * (v - mean)
	}
	return mean, math.Sqrt(sd / float64(len(x)-1))
}

// median of at least one value.
func median(x []float64) float64 {
	s := slices.Sorted(slices.Values(x))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// studentQuantile is the value below which a fraction p (≥ 0.5) of Student's t
// distribution lies.
func studentQuantile(p float64, freedom int) float64 {
	low, high := 0.0, 1.0
	for studentCDF(high, freedom) < p {
		high *= 2
	}
	for range 60 {
		middle := (low + high) / 2
		if studentCDF(middle, freedom) < p {
			low = middle
		} else {
			high = middle
		}
	}
	return (low + high) / 2
}

// studentCDF integrates the density from 0 to t by Simpson's rule. With
// t = tan(u)·√ν the integrand becomes cos(u)^(ν-1), smooth on a finite range.
func studentCDF(t float64, freedom int) float64 {
	nu := float64(freedom)
	above, _ := math.Lgamma((nu + 1) / 2)
	below, _ := math.Lgamma(nu / 2)
	scale := math.Exp(above-below) / math.Sqrt(math.Pi)

	const steps = 400 // even
	end := math.Atan(t / math.Sqrt(nu))
	h := end / steps
	sum := 0.0
	for i := range steps + 1 {
		weight := 2.0
		switch {
		case i == 0 || i == steps:
			weight = 1
		case i%2 == 1:
			weight = 4
		}
		sum += weight * math.Pow(math.Cos(float64(i)*h), nu-1)
	}
	return 0.5 + scale*sum*h/3
}
