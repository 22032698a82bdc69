package report

import "strings"

// levels are the bars of a sparkline, the lowest first.
var levels = []rune("▁▂▃▄▅▆▇█")

// Spark draws one bar for each value, from 0 to top, or to the greatest one where
// that is more.
func Spark(values []float64, top float64) string {
	for _, v := range values {
		top = max(top, v)
	}
	var b strings.Builder
	for _, v := range values {
		level := 0
		if top > 0 && v > 0 {
			level = min(int(v/top*float64(len(levels))), len(levels)-1)
		}
		b.WriteRune(levels[level])
	}
	return b.String()
}

// Squeeze makes a curve of so many points at most: each is the mean of those that it
// stands for.
func Squeeze(values []float64, points int) []float64 {
	if len(values) <= points {
		return values
	}
	squeezed := make([]float64, points)
	for i := range squeezed {
		from, to := i*len(values)/points, (i+1)*len(values)/points
		sum := 0.0
		for _, v := range values[from:to] {
			sum += v
		}
		squeezed[i] = sum / float64(to-from)
	}
	return squeezed
}
