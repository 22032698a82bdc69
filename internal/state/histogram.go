package state

import "slices"

// Histogram counts values by the least of its bounds that is not below them: Counts[i] are those up to Bounds[i] and
// above the bound before, the last of them those above all bounds.
type Histogram struct {
	Bounds []float64 `json:"bounds"`
	Counts []uint64  `json:"counts"`
	Sum    float64   `json:"sum"`
}

// readingBounds are for CPU times of readings, in seconds.
var readingBounds = []float64{0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1}

// Add adds a CPU time of a reading.
func (h *Histogram) Add(seconds float64) {
	if h.Counts == nil {
		h.Bounds, h.Counts = readingBounds, make([]uint64, len(readingBounds)+1)
	}
	i, _ := slices.BinarySearch(h.Bounds, seconds)
	h.Counts[i]++
	h.Sum += seconds
}

// Clone returns a copy that later values do not change.
func (h *Histogram) Clone() Histogram {
	return Histogram{Bounds: h.Bounds, Counts: slices.Clone(h.Counts), Sum: h.Sum}
}
