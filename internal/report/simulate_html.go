package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html/template"
	"io"

	"github.com/natkit/natkit/internal/simulate"
	"github.com/natkit/natkit/internal/units"
)

var simulatePage = template.Must(template.New("simulate.html.tmpl").Funcs(template.FuncMap{
	"css":   func(name string) template.CSS { return template.CSS(asset(name)) },
	"js":    func(name string) template.JS { return template.JS(asset(name)) },
	"text":  asset,
	"class": func(t Tone) string { return toneClasses[t] },
	"fixed": units.Fixed,
}).ParseFS(assets, "assets/simulate.html.tmpl"))

// simulateView is what the page's template reads.
type simulateView struct {
	Head, Only string
	Seed       uint64
	Verdict    []Cell
	Tables     []htmlTable
	Charts     simulateCharts
	Report     any
}

// htmlTable is a Table as a page shows it.
type htmlTable struct {
	Title string
	Heads []Column
	Rows  [][]Cell
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

// Alternative tells a chart's content in words, for those who cannot see it.
func (c simulationChart) Alternative() string {
	text := c.Title + "."
	for _, curve := range c.Curves {
		least, most := rangeOf(curve.Values)
		text += fmt.Sprintf(" %s: from %s to %s.", curve.Label, units.Fixed(least, 0), units.Fixed(most, 0))
	}
	return text
}

// SimulateHTML writes the result as one page that needs no network: style, script
// and data are in it.
func SimulateHTML(w io.Writer, r *simulate.Result) error {
	// The template would write a value that has no JSON form as null.
	if _, err := json.Marshal(r); err != nil {
		return fmt.Errorf("encode the simulation as JSON: %w", err)
	}
	view := simulateView{
		Head: simulationHead(r), Only: simulationOnly, Seed: r.Config.Seed,
		Verdict: simulationVerdict(r),
		Charts:  simulateCharts{r.Config.Start.Seconds(), hasTimeOfDay(r), r.IntervalSeconds, simulationCharts(r)},
		Report:  NamedSimulation(r),
	}
	for _, t := range []struct {
		title string
		table *Table
	}{{limitsTitle(r), simulationLimits(r)}, {"Servers", simulationServers(r)}, {"Batches", simulationBatches(r)}} {
		if len(t.table.rows) > 0 {
			view.Tables = append(view.Tables, htmlTable{t.title, t.table.Columns, t.table.rows})
		}
	}
	var page bytes.Buffer
	if err := simulatePage.Execute(&page, view); err != nil {
		return fmt.Errorf("write the simulation as HTML: %w", err)
	}
	_, err := page.WriteTo(w)
	return err
}

// NamedSimulation is the result as a document that names its form.
func NamedSimulation(r *simulate.Result) any {
	return struct {
		Schema string `json:"schema"`
		*simulate.Result
	}{simulate.Schema, r}
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
