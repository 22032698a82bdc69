package report

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/units"
)

// measures are a lab's figures as both the text and the page show them: groups
// of rows with one cell for each stage.
type measures struct {
	Title string
	Rows  []measure
	// Joined groups follow the one before without a gap.
	Joined bool
}

type measure struct {
	Label string
	Cells []Cell
}

// noValue stands in a stage that cannot have the figure.
var noValue = Cell{units.None, Dim}

// comparedWith is the stage that the rates are compared with.
const comparedWith = "nat"

// mostFailures bounds the rows of failure reasons; the rest is summed up.
const mostFailures = 8

func stageMeasures(r *lab.Report) []measures {
	if holds(r) {
		groups := heldMeasures(r)
		if rows := failureRows(r); len(rows) > 0 {
			groups = append(groups, measures{Title: "failures", Rows: rows})
		}
		return append(groups, kernelMeasures(r)...)
	}
	groups := []measures{{Title: "load", Rows: loadRows(r)}}
	if len(r.Stages) == 0 || slices.ContainsFunc(r.Stages, onlyHTTP) {
		groups = append(groups,
			measures{Title: "time per request", Rows: perRequestRows(r)},
			measures{Title: "connect, ms", Rows: timesRows(r, false, func(s *lab.StageReport) load.Times { return s.Connect })},
			measures{Title: "processing, ms", Joined: true, Rows: timesRows(r, false, func(s *lab.StageReport) load.Times { return s.Processing })},
			measures{Title: "waiting, ms", Joined: true, Rows: timesRows(r, false, func(s *lab.StageReport) load.Times { return s.Waiting })})
	}
	if timed := func(s lab.StageReport) bool { return onlyHTTP(s) || s.Total.Max > 0 }; len(r.Stages) == 0 || slices.ContainsFunc(r.Stages, timed) {
		groups = append(groups, measures{Title: "total, ms", Joined: len(groups) > 1, Rows: timesRows(r, true, func(s *lab.StageReport) load.Times { return s.Total })})
	}
	groups = append(groups, otherLoads(r)...)
	if rows := failureRows(r); len(rows) > 0 {
		groups = append(groups,
			measures{Title: "failures", Rows: rows},
			measures{Title: "once failing", Joined: true, Rows: failingRows(r)})
	}
	return append(groups, kernelMeasures(r)...)
}

// kernelMeasures are what the kernel has of any load.
func kernelMeasures(r *lab.Report) []measures {
	groups := []measures{
		{Title: "conntrack table", Rows: tableRows(r)},
		{Title: "its counters", Joined: true, Rows: counterRows(r)},
	}
	return append(groups, profileMeasures(r)...)
}

// row makes one measure by asking each stage.
func row(r *lab.Report, label string, cell func(*lab.StageReport) Cell) measure {
	m := measure{Label: label}
	for i := range r.Stages {
		m.Cells = append(m.Cells, cell(&r.Stages[i]))
	}
	return m
}

func loadRows(r *lab.Report) []measure {
	rate := "requests/s"
	if slices.ContainsFunc(r.Stages, func(s lab.StageReport) bool { return !onlyHTTP(s) }) {
		rate = "requests, …/s" // other loads have their own rows
	}
	rows := []measure{row(r, rate, func(s *lab.StageReport) Cell {
		return Cell{units.Rate(s.RequestsPerSecond), Bold}
	})}
	if reference := r.Stage(comparedWith); reference != nil && reference.RequestsPerSecond > 0 {
		rows = append(rows, row(r, "  against "+comparedWith, func(s *lab.StageReport) Cell {
			c := Cell{Text: units.Percent(s.RequestsPerSecond / reference.RequestsPerSecond)}
			if r.Cautious(s) {
				c.Tone = Warn
			}
			return c
		}))
	}
	rows = append(rows,
		row(r, "completed", func(s *lab.StageReport) Cell { return Cell{Text: units.Count(s.Completed)} }),
		row(r, "failed", func(s *lab.StageReport) Cell { return badUnlessZero(s.Failed) }))
	if slices.ContainsFunc(r.Stages, func(s lab.StageReport) bool { return s.Unfinished > 0 }) {
		rows = append(rows, row(r, "unfinished", func(s *lab.StageReport) Cell { return Cell{Text: units.Count(s.Unfinished)} }))
	}
	return append(rows, row(r, "duration", func(s *lab.StageReport) Cell { return Cell{Text: units.Seconds(s.Result.Seconds)} }))
}

// otherLoads are those of stages that have more, or others, than one of requests.
func otherLoads(r *lab.Report) []measures {
	var rows []measure
	for i := range r.Stages {
		if onlyHTTP(r.Stages[i]) {
			continue
		}
		for _, l := range r.Stages[i].Loads {
			if l.Kind == lab.LoadNone || l.Exchange != nil { // these have a table of their own
				continue
			}
			of := func(label string, n int64, cell func(int64) Cell) {
				m := measure{Label: loadName(l) + " " + label}
				for j := range r.Stages {
					m.Cells = append(m.Cells, noValue)
					if j == i {
						m.Cells[j] = cell(n)
					}
				}
				rows = append(rows, m)
			}
			count := func(n int64) Cell { return Cell{Text: units.Count(n)} }
			of("sent", l.Sent, count)
			if l.Kind != lab.LoadPackets {
				of("answered", l.Answered, count)
				of("failed", l.Failed, badUnlessZero)
			}
		}
	}
	if len(rows) == 0 {
		return nil
	}
	return []measures{{Title: "loads", Rows: rows}}
}

func badUnlessZero(n int64) Cell {
	if n == 0 {
		return Cell{"0", Dim}
	}
	return Cell{units.Count(n), Bad}
}

// perRequestRows are ab's two "Time per request": what one of the concurrent
// users waits on average, and the time by the number of completed requests.
func perRequestRows(r *lab.Report) []measure {
	across := func(s *lab.StageReport) float64 { return 1000 * s.Result.Seconds / float64(s.Completed) }
	return []measure{
		row(r, "mean, ms", func(s *lab.StageReport) Cell {
			if s.Completed == 0 || !onlyHTTP(*s) {
				return noValue
			}
			return Cell{Text: units.Millis(across(s) * float64(max(s.Config.Concurrency, 1)))}
		}),
		row(r, "across all, ms", func(s *lab.StageReport) Cell {
			if s.Completed == 0 || !onlyHTTP(*s) {
				return noValue
			}
			return Cell{Text: units.Millis(across(s))}
		}),
	}
}

// timesRows are ab's figures of a time, for all also the 99th percentile.
func timesRows(r *lab.Report, all bool, times func(*lab.StageReport) load.Times) (rows []measure) {
	for _, f := range []struct {
		label string
		value func(load.Times) float64
	}{
		{"min", func(t load.Times) float64 { return t.Min }}, {"mean", func(t load.Times) float64 { return t.Mean }},
		{"sd", func(t load.Times) float64 { return t.SD }}, {"median", func(t load.Times) float64 { return t.Median }},
		{"p99", func(t load.Times) float64 { return t.P99 }}, {"max", func(t load.Times) float64 { return t.Max }},
	} {
		if f.label == "p99" && !all {
			continue
		}
		rows = append(rows, row(r, f.label, func(s *lab.StageReport) Cell {
			if s.Completed == 0 || times(s).Max == 0 {
				return noValue
			}
			return Cell{Text: units.Millis(f.value(times(s)))}
		}))
	}
	return rows
}

// failureRows counts failures by phase and reason, the most frequent first.
func failureRows(r *lab.Report) []measure {
	sums := map[string]int64{}
	for _, s := range r.Stages {
		for _, f := range s.Failures {
			sums[failureName(f)] += f.Count
		}
	}
	names := make([]string, 0, len(sums))
	for name := range sums {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(sums[b], sums[a]), cmp.Compare(a, b))
	})
	var others []string
	if len(names) > mostFailures {
		names, others = names[:mostFailures-1], names[mostFailures-1:]
	}
	var rows []measure
	for _, name := range names {
		rows = append(rows, row(r, name, func(s *lab.StageReport) Cell { return badUnlessZero(failuresNamed(s, name)) }))
	}
	if len(others) > 0 {
		rows = append(rows, row(r, fmt.Sprintf("%d other reasons", len(others)), func(s *lab.StageReport) Cell {
			return badUnlessZero(failuresNamed(s, others...))
		}))
	}
	return rows
}

func failureName(f load.Failure) string { return string(f.Phase) + ": " + f.Reason }

func failuresNamed(s *lab.StageReport, names ...string) int64 {
	var sum int64
	for _, f := range s.Failures {
		if slices.Contains(names, failureName(f)) {
			sum += f.Count
		}
	}
	return sum
}

// failingRows are when failing began and what still got through.
func failingRows(r *lab.Report) []measure {
	return []measure{
		row(r, "first failure after", func(s *lab.StageReport) Cell {
			if s.Failed == 0 || s.FirstFailureSeconds < 0 {
				return noValue
			}
			return Cell{Text: units.Seconds(s.FirstFailureSeconds)}
		}),
		row(r, "admitted afterwards", func(s *lab.StageReport) Cell {
			if s.Failed == 0 {
				return noValue
			}
			return Cell{Text: units.Rate(s.AfterFirstFailurePerSecond) + "/s"}
		}),
	}
}

func tableRows(r *lab.Report) []measure {
	return []measure{
		row(r, "entries at the end", func(s *lab.StageReport) Cell { return Cell{Text: units.Count(s.TableEntries)} }),
		row(r, "nf_conntrack_max", func(s *lab.StageReport) Cell { return Cell{Text: units.Count(s.TableMax)} }),
	}
}

// counterRows shows the counters of lost connections, and others of
// that sort only where they moved.
func counterRows(r *lab.Report) []measure {
	names := []string{"drop", "early_drop", "insert_failed"}
	for _, rare := range []string{"chaintoolong", "clash_resolve", "error"} {
		if slices.ContainsFunc(r.Stages, func(s lab.StageReport) bool { return s.Counters[rare] > 0 }) {
			names = append(names, rare)
		}
	}
	var rows []measure
	for _, name := range names {
		rows = append(rows, row(r, name, func(s *lab.StageReport) Cell {
			n, ok := s.Counters[name]
			if !ok {
				return noValue
			}
			return badUnlessZero(int64(n))
		}))
	}
	return rows
}
