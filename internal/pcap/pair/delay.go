package pair

import (
	hdrhistogram "github.com/HdrHistogram/hdrhistogram-go"

	"github.com/natkit/natkit/internal/load"
)

// longestDelay is the most that a delay can be; see maxWindow.
const longestDelay = int64(maxWindow) + slack

// delays are the times from one capture to the other, in one direction. They begin with
// nanoseconds: a router takes some thousand of them.
type delays struct {
	histogram *hdrhistogram.Histogram
	// usual follows the delays of late.
	usual int64
}

func newDelays() delays { return delays{histogram: hdrhistogram.New(1, longestDelay, 3)} }

// record adds one, in nanoseconds; what came out before it went in took no time.
func (d *delays) record(ns int64) {
	ns = min(max(ns, 0), longestDelay)
	_ = d.histogram.RecordValue(ns) // it is within the bounds
	d.usual += (ns - d.usual) / 8
}

func (d *delays) times() load.Times {
	h := d.histogram
	if h.TotalCount() == 0 {
		return load.Times{}
	}
	at := func(quantile float64) float64 { return float64(h.ValueAtPercentile(quantile)) / 1e6 }
	return load.Times{
		Min: float64(h.Min()) / 1e6, Mean: h.Mean() / 1e6, SD: h.StdDev() / 1e6, Median: at(50),
		P90: at(90), P95: at(95), P99: at(99), P999: at(99.9), Max: float64(h.Max()) / 1e6,
	}
}
