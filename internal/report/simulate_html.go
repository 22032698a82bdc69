package report

import (
	"encoding/csv"
	"fmt"
	"io"
	"strconv"

	"github.com/natkit/natkit/internal/simulate"
	"github.com/natkit/natkit/internal/units"
)

// simulateView is what the page's template reads.
type simulateView struct {
	Head, Only string
	Seed       uint64
	Verdict    []Cell
	Tables     []*Table
	Charts     simulateCharts
	Report     any
}

// simulateCharts is what the page's script draws.
type simulateCharts struct {
	// StartSeconds is the time of day of the beginning, where TimeOfDay says that there is
	// one; IntervalSeconds is the distance of the values.
	StartSeconds    float64           `json:"start_s"`
	TimeOfDay       bool              `json:"time_of_day"`
	IntervalSeconds float64           `json:"interval_s"`
	Charts          []simulationChart `json:"charts"`
}

// simulationChart is curves in one frame, and levels to compare them with.
type simulationChart struct {
	Title  string            `json:"title"`
	Curves []simulationCurve `json:"curves"`
	Levels []simulationLevel `json:"levels"`
}

type simulationLevel struct {
	Label string  `json:"label"`
	Value float64 `json:"value"`
}

// Alternative describes a chart for those who cannot see it.
func (c simulationChart) Alternative() string {
	text := c.Title + "."
	for _, curve := range c.Curves {
		least, most := rangeOf(curve.Values)
		text += fmt.Sprintf(" %s: from %s to %s.", curve.Label, units.Fixed(least, 0), units.Fixed(most, 0))
	}
	return text
}

// SimulateHTML writes the result as one page.
func SimulateHTML(w io.Writer, r *simulate.Result) error {
	view := simulateView{
		Head: simulationHead(r), Only: simulationOnly, Seed: r.Config.Seed,
		Verdict: simulationVerdict(r),
		Charts:  simulateCharts{r.Config.Start.Seconds(), hasTimeOfDay(r), r.IntervalSeconds, simulationCharts(r)},
		Report:  Simulation{simulate.Schema, r},
	}
	for _, t := range []*Table{simulationLimits(r), simulationServers(r), simulationBatches(r)} {
		if len(t.rows) > 0 {
			view.Tables = append(view.Tables, t)
		}
	}
	return writePage(w, "simulate", view, r)
}

// simulationCharts sorts the curves into frames: rates of connections with the limits,
// TIME_WAIT, what goes wrong, shares.
func simulationCharts(r *simulate.Result) []simulationChart {
	frames := []simulationChart{{Title: "Connections per second"}, {Title: "Sockets in TIME_WAIT"},
		{Title: "SYNs refused and connections failed, per second"}, {Title: "Share of the connections, %"}}
	for _, c := range simulationCurves(r) {
		frame := 2
		switch {
		case c.Percent:
			frame = 3
		case c.Key == "time_wait":
			frame = 1
		case c.Key == "connections_per_s" || c.Key == "sessions_per_s":
			frame = 0
		}
		frames[frame].Curves = append(frames[frame].Curves, c)
	}
	if r.Config.Arrivals != nil {
		for _, l := range limitsOf(r) {
			frames[0].Levels = append(frames[0].Levels, simulationLevel{l.What, l.Rate()})
		}
	}
	charts := frames[:0]
	for _, f := range frames {
		if len(f.Curves) > 0 {
			charts = append(charts, f)
		}
	}
	return charts
}

func rangeOf(values []float64) (least, most float64) {
	for i, v := range values {
		if i == 0 {
			least = v
		}
		least, most = min(least, v), max(most, v)
	}
	return least, most
}

// simulationColumns is the width of a sparkline.
const simulationColumns = 36

// simulationCurve is one quantity at each point of the course.
type simulationCurve struct {
	// Key is a word for scripts, Label for people.
	Key    string    `json:"key"`
	Label  string    `json:"label"`
	Values []float64 `json:"values"`
	// Percent: a share of all, from 0 to 100.
	Percent bool `json:"percent"`
}

// simulationCourse are the points until the last arrival: what comes later is the
// rest of an interval.
func simulationCourse(r *simulate.Result) []simulate.Point {
	course := r.Curve
	for r.Config.Arrivals != nil && len(course) > 1 && course[len(course)-1].StartSeconds >= r.Config.Duration.Seconds() {
		course = course[:len(course)-1]
	}
	return course
}

func ratesOf(r *simulate.Result, count func(*simulate.Counts) int64) []float64 {
	return along(r, func(p *simulate.Point) float64 {
		length := r.IntervalSeconds
		if rest := r.Seconds - p.StartSeconds; rest > 0 {
			length = min(length, rest)
		}
		if r.Config.Arrivals != nil && p.StartSeconds < r.Config.Duration.Seconds() {
			length = min(length, r.Config.Duration.Seconds()-p.StartSeconds)
		}
		return float64(count(&p.Counts)) / length
	})
}

func along(r *simulate.Result, value func(*simulate.Point) float64) []float64 {
	course := simulationCourse(r)
	values := make([]float64, len(course))
	for i := range course {
		values[i] = value(&course[i])
	}
	return values
}

// simulationCurves are those worth looking at.
func simulationCurves(r *simulate.Result) []simulationCurve {
	rate := func(key, label string, count func(*simulate.Counts) int64) simulationCurve {
		return simulationCurve{Key: key, Label: label, Values: ratesOf(r, count)}
	}
	curves := []simulationCurve{rate("connections_per_s", "new connections/s", func(c *simulate.Counts) int64 { return c.Connections })}
	if r.Config.Balancer != nil {
		curves = append(curves, rate("sessions_per_s", "new sessions/s", func(c *simulate.Counts) int64 { return c.Sessions }))
	}
	curves = append(curves,
		simulationCurve{Key: "time_wait", Label: "TIME_WAIT", Values: along(r, func(p *simulate.Point) float64 { return float64(p.TimeWait) })},
		rate("rejects_per_s", "SYNs refused/s", (*simulate.Counts).Rejects))
	if r.Totals.NoPort > 0 {
		curves = append(curves, rate("no_port_per_s", "SYNs without port/s", func(c *simulate.Counts) int64 { return c.NoPort }))
	}
	if r.Totals.Failed > 0 {
		curves = append(curves, rate("failed_per_s", "failed/s", func(c *simulate.Counts) int64 { return c.Failed }))
	}
	return append(curves, groupShares(r)...)
}

// groupShares are the groups' parts of the connections, where there are several.
func groupShares(r *simulate.Result) []simulationCurve {
	if len(r.Servers) < 2 {
		return nil
	}
	var curves []simulationCurve
	for i, s := range r.Servers {
		curves = append(curves, simulationCurve{Key: "share_percent:" + s.Name, Label: "share of " + s.Name, Percent: true,
			Values: along(r, func(p *simulate.Point) float64 {
				all := int64(0)
				for _, g := range p.Servers {
					all += g.Connections
				}
				return 100 * float64(p.Servers[i].Connections) / float64(max(all, 1))
			})})
	}
	return curves
}

func simulationCurveTable(r *simulate.Result) *Table {
	t := &Table{Title: "Curves, " + simulationSpan(r), Indent: 2, Columns: []Column{{}, {}, {Head: "least", Right: true}, {Head: "most", Right: true}}}
	for _, c := range simulationCurves(r) {
		if len(c.Values) == 0 {
			continue
		}
		least, most := rangeOf(c.Values)
		top := 0.0
		write := func(v float64) string { return units.Fixed(v, 0) }
		if c.Percent {
			top, write = 100, func(v float64) string { return units.Percent(v / 100) }
		}
		t.Row(Truncate(clean(c.Label), 20), Spark(Squeeze(c.Values, simulationColumns), top), write(least), write(most))
	}
	return t
}

// SimulateCSV writes the curves: a line for each point, the heads first; those of the
// groups of servers come last.
func SimulateCSV(w io.Writer, r *simulate.Result) error {
	rows := csv.NewWriter(w)
	heads := []string{"start_s", "connections", "accepted", "delayed", "failed", "no_port", "syns", "paws_rejects", "sequence_rejects",
		"time_wait_reused", "balancer_sessions_new", "balancer_sessions_reused", "time_wait", "ports_taken", "balancer_sessions"}
	for _, s := range r.Servers {
		heads = append(heads, "connections of "+clean(s.Name), "rejects of "+clean(s.Name), "time_wait of "+clean(s.Name))
	}
	rows.Write(heads) // an error stays, and Error returns it
	for i := range r.Curve {
		rows.Write(csvRow(&r.Curve[i]))
	}
	rows.Flush()
	return rows.Error()
}

func csvRow(p *simulate.Point) []string {
	c := &p.Counts
	row := []string{strconv.FormatFloat(p.StartSeconds, 'f', -1, 64)}
	numbers := []int64{c.Connections, c.Accepted, c.Delayed, c.Failed, c.NoPort, c.SYNs, c.PAWSRejects, c.SequenceRejects,
		c.Reused, c.Sessions, c.SessionsReused, p.TimeWait, p.PortsTaken, p.SessionsOpen}
	for _, g := range p.Servers {
		numbers = append(numbers, g.Connections, g.Rejects, g.TimeWait)
	}
	for _, n := range numbers {
		row = append(row, strconv.FormatInt(n, 10))
	}
	return row
}
