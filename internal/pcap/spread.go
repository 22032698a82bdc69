package pcap

import "github.com/HdrHistogram/hdrhistogram-go"

// spread is a distribution of times, within 0.1 %, in bounded memory.
type spread struct {
	histogram *hdrhistogram.Histogram // microseconds
	min, max  int64                   // nanoseconds
	buckets   [len(bucketLimits) + 1]int64
}

// bucketLimits, in seconds: around the lifetimes of TIME_WAIT (60 s, 112.5 s on old
// kernels) and of what balancers and NATs keep (120 s, 240 s).
var bucketLimits = [...]float64{0.001, 0.01, 0.1, 1, 5, 15, 30, 60, 112.5, 120, 240, 600}

// longest is what a histogram can hold.
const longest = int64(10 * 24 * 60 * 60 * 1e6) // 10 days in microseconds

// add takes nanoseconds; time that goes back counts as none.
func (s *spread) add(ns int64) {
	ns = max(0, ns)
	if s.histogram == nil {
		s.histogram, s.min = hdrhistogram.New(1, longest, 3), ns
	}
	s.min, s.max = min(s.min, ns), max(s.max, ns)
	_ = s.histogram.RecordValue(min(ns/1000, longest)) // it is in range
	i := 0
	for i < len(bucketLimits) && seconds(ns) >= bucketLimits[i] {
		i++
	}
	s.buckets[i]++
}

func (s *spread) count() int64 {
	if s.histogram == nil {
		return 0
	}
	return s.histogram.TotalCount()
}

// at gives a percentile in seconds, never outside of what there was.
func (s *spread) at(percentile float64) float64 {
	us := s.histogram.ValueAtPercentile(percentile)
	return seconds(max(s.min, min(s.max, us*1000)))
}

func (s *spread) distribution() *Distribution {
	if s.count() == 0 {
		return nil
	}
	d := &Distribution{Count: s.count(), Min: seconds(s.min), P1: s.at(1), Median: s.at(50), P90: s.at(90), P99: s.at(99), Max: seconds(s.max)}
	for i, n := range s.buckets {
		b := Bucket{Count: n}
		if i < len(bucketLimits) {
			b.Below = bucketLimits[i]
		}
		d.Buckets = append(d.Buckets, b)
	}
	return d
}
