package load

import (
	"math"

	hdr "github.com/HdrHistogram/hdrhistogram-go"
)

// Range and precision of the histograms, in nanoseconds: half a microsecond
// apart at the low end, three digits above.
const (
	lowestNs  = 1_000
	highestNs = 600_000_000_000
)

// Histogram collects durations. Minimum, maximum, mean and standard deviation
// are exact, quantiles are good to the histogram's digits. A duration above ten
// minutes is counted in the highest bucket.
type Histogram struct {
	h        *hdr.Histogram
	n        int64
	min, max int64
	sum      float64
	sumSq    float64 // of microseconds, to keep digits
	beyond   int64
}

// NewHistogram has three significant digits; Record does not allocate.
func NewHistogram() *Histogram { return newHistogram(3) }

func newHistogram(digits int) *Histogram {
	return &Histogram{h: hdr.New(lowestNs, highestNs, digits), min: math.MaxInt64}
}

// Record adds one duration in nanoseconds; a negative one counts as 0.
func (h *Histogram) Record(ns int64) {
	ns = max(ns, 0)
	h.n++
	h.min = min(h.min, ns)
	h.max = max(h.max, ns)
	us := float64(ns) / 1e3
	h.sum += us
	h.sumSq += us * us
	if ns > highestNs {
		h.beyond++
		ns = highestNs
	}
	// The value was brought into the range, so this cannot fail.
	_ = h.h.RecordValue(ns)
}

// Merge adds what o holds.
func (h *Histogram) Merge(o *Histogram) {
	if o.n == 0 {
		return
	}
	h.h.Merge(o.h)
	h.n += o.n
	h.min = min(h.min, o.min)
	h.max = max(h.max, o.max)
	h.sum += o.sum
	h.sumSq += o.sumSq
	h.beyond += o.beyond
}

// Reset empties the histogram and keeps its memory.
func (h *Histogram) Reset() {
	h.h.Reset()
	*h = Histogram{h: h.h, min: math.MaxInt64}
}

// Count is the number of recorded durations.
func (h *Histogram) Count() int64 { return h.n }

// Beyond counts durations above the histogram's range.
func (h *Histogram) Beyond() int64 { return h.beyond }

// Quantile, of 0 to 1, in milliseconds; never outside what was recorded. 0
// where nothing was.
func (h *Histogram) Quantile(q float64) float64 {
	if h.n == 0 {
		return 0
	}
	v := h.h.ValueAtQuantile(q * 100)
	return float64(min(max(v, h.min), h.max)) / 1e6
}

// Times summarises; all 0 where nothing was recorded.
func (h *Histogram) Times() Times {
	if h.n == 0 {
		return Times{}
	}
	mean := h.sum / float64(h.n)
	variance := max(h.sumSq/float64(h.n)-mean*mean, 0)
	return Times{
		Min:    float64(h.min) / 1e6,
		Mean:   mean / 1e3,
		SD:     math.Sqrt(variance) / 1e3,
		Median: h.Quantile(0.5),
		P90:    h.Quantile(0.9),
		P95:    h.Quantile(0.95),
		P99:    h.Quantile(0.99),
		P999:   h.Quantile(0.999),
		Max:    float64(h.max) / 1e6,
	}
}
