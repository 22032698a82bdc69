package report

import (
	"fmt"

	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/units"
)

// charts is the data that the page's script draws.
type charts struct {
	Stages      []chartStage `json:"stages"`
	Percentiles []string     `json:"percentiles"`
}

// chartStage is one stage: its course, and its latencies in the order of
// charts.Percentiles, in milliseconds (none where nothing completed).
type chartStage struct {
	Name    string       `json:"name"`
	Seconds float64      `json:"seconds"`
	Course  []coursePart `json:"course"`
	Latency []float64    `json:"latency_ms"`
}

// coursePart is one interval of a stage: from and to in seconds since the
// stage's start, and requests per second.
type coursePart struct {
	From      float64 `json:"from"`
	To        float64 `json:"to"`
	Completed float64 `json:"completed_per_second"`
	Failed    float64 `json:"failed_per_second"`
}

func labCharts(r *lab.Report) charts {
	c := charts{Stages: []chartStage{}, Percentiles: []string{"min", "median", "p90", "p95", "p99", "p99.9", "max"}}
	for _, s := range r.Stages {
		stage := chartStage{Name: s.Name, Seconds: s.Result.Seconds, Course: course(s.Series), Latency: []float64{}}
		if n := len(stage.Course); n > 0 {
			stage.Seconds = max(stage.Seconds, stage.Course[n-1].To)
		}
		if t := s.Total; s.Completed > 0 && t.Max > 0 {
			stage.Latency = []float64{t.Min, t.Median, t.P90, t.P95, t.P99, t.P999, t.Max}
		}
		c.Stages = append(c.Stages, stage)
	}
	return c
}

// course turns counts in intervals into rates. The last interval ends with the
// run and is often a small rest; a rate over it would be noise, so it is joined
// to the one before.
func course(series []load.Second) []coursePart {
	parts := make([]coursePart, 0, len(series))
	from, longest := 0.0, 0.0
	var completed, failed int64
	for i, s := range series {
		length := s.At - from
		if length <= 0 {
			continue
		}
		if isRest := i == len(series)-1 && length < longest/2; isRest {
			last := &parts[len(parts)-1]
			from, parts = last.From, parts[:len(parts)-1]
			length = s.At - from
		} else {
			completed, failed = 0, 0
		}
		completed, failed = completed+s.Completed, failed+s.Failed
		parts = append(parts, coursePart{from, s.At, float64(completed) / length, float64(failed) / length})
		from, longest = s.At, max(longest, length)
	}
	return parts
}

// Alternative tells a chart's content in words, for those who cannot see it.
func (s chartStage) Alternative() string {
	if len(s.Course) == 0 {
		return s.Name + ": nothing was recorded."
	}
	low, high, failed := s.Course[0].Completed, s.Course[0].Completed, 0.0
	for _, c := range s.Course {
		low, high, failed = min(low, c.Completed), max(high, c.Completed), max(failed, c.Failed)
	}
	return fmt.Sprintf("%s: between %s and %s completed requests per second during %s, at most %s failed per second.",
		s.Name, units.Rate(low), units.Rate(high), units.Seconds(s.Seconds), units.Rate(failed))
}
