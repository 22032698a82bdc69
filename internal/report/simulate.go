package report

import (
	"fmt"
	"io"
	"time"

	"github.com/natkit/natkit/internal/simulate"
	"github.com/natkit/natkit/internal/units"
)

// simulationOnly is said on every form of the result.
const simulationOnly = "This is a simulation: nothing was measured."

// Simulate writes what a simulation came to: what happens, what limits, the curves.
func Simulate(w io.Writer, style Style, r *simulate.Result) error {
	p := &printer{w: w, style: style}
	p.line(style.Paint(Bold, simulationHead(r)))
	p.line(style.Paint(Dim, fmt.Sprintf("%s Seed %d.", simulationOnly, r.Config.Seed)))
	p.blank()
	for _, s := range simulationVerdict(r) {
		for i, part := range wrap(clean(s.Text), style.columns()-2) {
			margin := "  "
			if i == 0 {
				margin = "* "
			}
			p.line(margin + style.Paint(s.Tone, part))
		}
	}
	p.section(limitsTitle(r), simulationLimits(r))
	p.section("Servers", simulationServers(r))
	p.section("Batches", simulationBatches(r))
	p.section("Curves, "+simulationSpan(r), simulationCurveTable(r))
	return p.err
}

func limitsTitle(r *simulate.Result) string {
	if s := r.Config.NAT.Strategy; s == simulate.StrategyRoundRobin || s == "" {
		return "What limits"
	}
	return "What limits (ports not chosen in turn come again earlier)"
}

func (p *printer) section(title string, t *Table) {
	if len(t.rows) > 0 {
		p.heading(title)
		p.table(t)
	}
}

func simulationHead(r *simulate.Result) string {
	name := r.Config.Name
	if r.Config.Title != "" {
		name += ": " + r.Config.Title
	}
	if name == "" {
		name = "simulation"
	}
	return clean(name)
}

// simulationSpan tells what the curves' columns are.
func simulationSpan(r *simulate.Result) string {
	points := len(simulationCourse(r))
	if points == 0 {
		return "none"
	}
	seconds := r.IntervalSeconds * float64(points)
	column := seconds / float64(min(points, simulationColumns))
	from := "over " + units.Roughly(seconds)
	if hasTimeOfDay(r) {
		from = "from " + simulationTime(r, 0) + " on " + from
	}
	return from + ", a column each " + units.Roughly(column)
}

// hasTimeOfDay reports whether the configuration says at which time of day it begins.
func hasTimeOfDay(r *simulate.Result) bool {
	a := r.Config.Arrivals
	return r.Config.Start.Duration > 0 || a != nil && (len(a.Hours) > 0 || a.Daily != nil)
}

// simulationTime is a time of day where there is one, else the time since the
// beginning.
func simulationTime(r *simulate.Result, seconds float64) string {
	since := time.Duration(seconds * float64(time.Second))
	if hasTimeOfDay(r) {
		return time.Time{}.Add(r.Config.Start.Duration + since).Format("15:04")
	}
	return units.Roughly(seconds)
}

func simulationServers(r *simulate.Result) *Table {
	t := &Table{Indent: 2, Columns: []Column{{Head: "group"}, {Head: "TIME_WAIT by"}, {Head: "servers", Right: true}, {Head: "connections", Right: true},
		{Head: "refused SYNs", Right: true}, {Head: "TIME_WAIT ran out after, s", Right: true}}}
	for i, s := range r.Servers {
		life := units.None
		if s.Life.Count > 0 {
			life = fmt.Sprintf("%s to %s", units.Fixed(s.Life.MinSeconds, 1), units.Fixed(s.Life.MaxSeconds, 1))
		}
		t.Cells(Cell{Text: s.Name}, Cell{Text: s.Kernel}, Cell{Text: units.Count(r.Config.Servers[i].Count)},
			Cell{Text: units.Count(accepted(&s.Totals))}, countCell(s.Totals.Rejects()), Cell{Text: life})
	}
	return t
}

// accepted are the connections that there were.
func accepted(c *simulate.Counts) int64 { return c.Accepted + c.Delayed }

func countCell(bad int64) Cell {
	c := Cell{Text: units.Count(bad)}
	if bad > 0 {
		c.Tone = Bad
	}
	return c
}

func simulationBatches(r *simulate.Result) *Table {
	t := &Table{Indent: 2, Columns: []Column{{Head: "batch"}, {Head: "connections", Right: true}, {Head: "refused SYNs", Right: true},
		{Head: "for 100", Right: true}, {Head: "delayed", Right: true}, {Head: "failed", Right: true}, {Head: "longest wait", Right: true}}}
	for i, b := range r.Batches {
		name := b.Name
		if name == "" {
			name = fmt.Sprint(i + 1)
		}
		t.Cells(Cell{Text: name}, Cell{Text: units.Count(b.Counts.Connections)}, countCell(b.Counts.Rejects()),
			Cell{Text: per100(&b.Counts)}, Cell{Text: units.Count(b.Counts.Delayed)},
			countCell(b.Counts.Failed), Cell{Text: units.Roughly(b.ConnectDelay.MaxSeconds)})
	}
	return t
}

// per100 are the refused SYNs for 100 connections.
func per100(c *simulate.Counts) string {
	if c.Connections == 0 {
		return units.None
	}
	return units.Fixed(100*float64(c.Rejects())/float64(c.Connections), 1)
}

// SimulateProgress is the line shown while a simulation runs.
func SimulateProgress(p simulate.Progress) string {
	text := "simulated " + units.Roughly(p.Seconds)
	if p.Total > 0 {
		text += " of " + units.Roughly(p.Total)
	}
	return fmt.Sprintf("%s: %s connections, %s SYNs refused", text, units.Count(p.Connections), units.Count(p.Rejects))
}
