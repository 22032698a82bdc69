package web

import (
	"math"
	"slices"
	"time"

	"github.com/natkit/natkit/internal/state"
	"github.com/natkit/natkit/internal/units"
)

// history is the course of a namespace, as the page's script draws it.
type history struct {
	Charts map[string]chart `json:"charts"`
}

// chart is curves over one axis of times, in seconds since 1970.
type chart struct {
	Unit   string    `json:"unit"`
	Times  []float64 `json:"times"`
	Curves []curve   `json:"curves"`
}

// curve is null where it is not known. A limit is drawn as one.
type curve struct {
	Label  string        `json:"label"`
	Limit  bool          `json:"limit,omitempty"`
	Values []state.Value `json:"values"`
}

// The units of charts; the page's script has the same ones.
var chartUnits = map[string]func(float64) string{
	"count": func(v float64) string { return units.Fixed(v, 0) },
	"rate":  func(v float64) string { return units.Rate(v) + "/s" },
	"share": units.Percent,
}

// charts are in the order in which they are shown.
var charts = []struct {
	name, title, unit string
	curves            []curveOf
}{
	{"answered", "Answered share of translated connections", "share", []curveOf{{state.SeriesAnswered, "answered"}}},
	{"entries", "Entries of the connection table", "count", []curveOf{{state.SeriesEntries, "entries"}, {state.SeriesLimit, "limit"}}},
	{"new", "New connections", "rate", []curveOf{{state.SeriesNew, "new"}}},
	{"lost", "Lost by conntrack", "rate", []curveOf{{state.SeriesDrop, "drop"}, {state.SeriesInsertFailed, "insert_failed"}, {state.SeriesEarlyDrop, "early_drop"}}},
	{"drops", "Packets dropped by the kernel", "rate", []curveOf{{state.SeriesDrops, "dropped"}}},
	{"ports", "Ports in use of the most pressed address", "share", []curveOf{{state.SeriesPorts, "in use"}}},
}

// curveOf is a series and how it is called.
type curveOf struct{ series, label string }

// farAway is how many times the greatest value a limit may be to be in the same chart.
const farAway = 4

func historyOf(h *state.History) history {
	v := history{Charts: map[string]chart{}}
	for _, c := range charts {
		drawn := chart{Unit: c.unit, Times: h.Times, Curves: []curve{}}
		top := 0.0
		for _, s := range c.curves {
			values := h.Series[s.series]
			least, most, ok := rangeOf(values)
			limit := s.series == state.SeriesLimit
			if !ok || len(values) != len(h.Times) || limit && least > farAway*top {
				continue
			}
			top = max(top, most)
			drawn.Curves = append(drawn.Curves, curve{s.label, limit, values})
		}
		if len(drawn.Curves) > 0 && len(h.Times) > 1 {
			v.Charts[c.name] = drawn
		}
	}
	return v
}

// rangeOf is the least and the greatest value that is known; false where none is.
func rangeOf(values []state.Value) (least, most float64, ok bool) {
	least, most = math.Inf(1), math.Inf(-1)
	for _, v := range values {
		if f := float64(v); !math.IsNaN(f) {
			least, most, ok = min(least, f), max(most, f), true
		}
	}
	return least, most, ok
}

// chartPlace is where a chart is drawn: in words as well, and with some of its values.
type chartPlace struct {
	Name, Title, Words string
	Table              grid
}

// places are those of the charts that there are.
func (h history) places(zone *time.Location) (all []chartPlace) {
	for _, c := range charts {
		if drawn, ok := h.Charts[c.name]; ok {
			all = append(all, chartPlace{c.name, c.title, drawn.words(c.title), drawn.table(c.title, zone)})
		}
	}
	return all
}

// words describe a chart to those who cannot see it.
func (c chart) words(title string) string {
	text := title + " in " + units.Roughly(c.Times[len(c.Times)-1]-c.Times[0]) + "."
	write := chartUnits[c.Unit]
	for _, curve := range c.Curves {
		least, most, _ := rangeOf(curve.Values)
		text += " " + curve.Label + ": from " + write(least) + " to " + write(most) + "."
	}
	return text
}

// tablePoints is how many points of a chart its table has.
const tablePoints = 12

// table has points at equal distances, the newest first.
func (c chart) table(title string, zone *time.Location) grid {
	g := grid{Caption: title, Heads: []string{"at"}}
	for _, curve := range c.Curves {
		g.Heads = append(g.Heads, curve.Label)
	}
	write, n := chartUnits[c.Unit], len(c.Times)
	for _, i := range slices.Backward(spread(n, tablePoints)) {
		r := row{Name: time.UnixMilli(int64(c.Times[i] * 1000)).In(zone).Format("15:04:05 MST")}
		for _, curve := range c.Curves {
			r.Values = append(r.Values, orNone(float64(curve.Values[i]), write))
		}
		g.Rows = append(g.Rows, r)
	}
	return g
}

// spread returns at most that many of n indices, the last one included.
func spread(n, most int) (all []int) {
	step := (n + most - 1) / most
	for i := (n - 1) % step; i < n; i += step {
		all = append(all, i)
	}
	return all
}

func orNone(v float64, write func(float64) string) string {
	if math.IsNaN(v) {
		return units.None
	}
	return write(v)
}
