package web

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/natkit/natkit/internal/report"
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

// spans are the lengths of history that a recording is asked for; 0 is what is in memory.
var spans = []time.Duration{0, 6 * time.Hour, 24 * time.Hour}

// spanLink is a choice of the page.
type spanLink struct {
	Label  string
	Netns  uint64
	Span   time.Duration
	Chosen bool
}

func spanLinks(netns uint64, chosen time.Duration) (all []spanLink) {
	for _, span := range spans {
		label := "newest"
		if span > 0 {
			label = units.Roughly(span.Seconds())
		}
		all = append(all, spanLink{label, netns, span, span == chosen})
	}
	return all
}

// newestSpan is the length of the history that is in memory, once the exporter runs for so long.
const newestSpan = time.Hour

// recorded is the history of a time: what was recorded, and then what is in memory, which is all there is where nothing was
// recorded. why says why nothing or not all of it is there.
func (m *maker) recorded(o Options, span time.Duration) (all state.History, why string) {
	newest, from := m.History, m.now.Add(-cmp.Or(span, newestSpan))
	until := m.now
	if len(newest.Times) > 0 {
		until = time.UnixMilli(int64(newest.Times[0] * 1000))
	}
	if until.Sub(from) < shortest {
		return newest, ""
	}
	past, err := o.Past(m.Namespace, from, until)
	if err != nil {
		why = report.Clean(err.Error())
		if len(past.Times) == 0 {
			return newest, "No recorded history: " + why
		}
		why = "Not all of the recorded history: " + why
	}
	return thinned(gapped(joined(past, newest))), why
}

// shortest is the time before what is in memory that is worth asking a recording for.
const shortest = 2 * time.Minute

// longestStep is the time between two points, in seconds, beyond which nothing is known in between; at least as long as what
// one point stands for.
const longestStep = 120

// width is the time that one point stands for, in seconds: gaps may double their number.
func width(h state.History) float64 {
	if len(h.Times) == 0 {
		return 0
	}
	return (h.Times[len(h.Times)-1] - h.Times[0]) / (state.HistoryPoints / 2)
}

// gapped has a time at which nothing is known in every gap, so that no line is drawn across it.
func gapped(h state.History) state.History {
	out := state.History{Series: map[string][]state.Value{}}
	step := max(longestStep, width(h))
	for i, at := range h.Times {
		gap := i > 0 && at-h.Times[i-1] > step
		if gap {
			out.Times = append(out.Times, (at+h.Times[i-1])/2)
		}
		out.Times = append(out.Times, at)
		for name, values := range h.Series {
			if gap {
				out.Series[name] = append(out.Series[name], state.Value(math.NaN()))
			}
			out.Series[name] = append(out.Series[name], values[i])
		}
	}
	return out
}

// joined is one history after another. A series that one of them lacks is not known there.
func joined(a, b state.History) state.History {
	all := state.History{Times: slices.Concat(a.Times, b.Times), Series: map[string][]state.Value{}}
	for _, part := range []state.History{a, b} {
		for name := range part.Series {
			all.Series[name] = slices.Concat(valuesOf(a, name), valuesOf(b, name))
		}
	}
	return all
}

// valuesOf are those of a series, at all times of the history.
func valuesOf(h state.History, name string) []state.Value {
	if values := h.Series[name]; len(values) == len(h.Times) {
		return values
	}
	return slices.Repeat([]state.Value{state.Value(math.NaN())}, len(h.Times))
}

// thinned has as many points as a history in memory at most: of points that are left out the greatest value is kept, or the
// least one of the answered share, so that no fault is lost. A gap stays one.
func thinned(h state.History) state.History {
	n := len(h.Times)
	if n <= state.HistoryPoints {
		return h
	}
	width := width(h)
	out := state.History{Series: map[string][]state.Value{}}
	for first := 0; first < n; {
		end := first + 1
		for end < n && h.Times[end]-h.Times[first] < width && isGap(h, end) == isGap(h, first) {
			end++
		}
		out.Times = append(out.Times, h.Times[end-1])
		for name, values := range h.Series {
			out.Series[name] = append(out.Series[name], extreme(name, values[first:end]))
		}
		first = end
	}
	return out
}

// extreme is the value of a series that stands for several.
func extreme(name string, values []state.Value) state.Value {
	least, most, known := rangeOf(values)
	switch {
	case !known:
		return state.Value(math.NaN())
	case name == state.SeriesAnswered:
		return state.Value(least)
	}
	return state.Value(most)
}

// isGap reports whether nothing is known at a time.
func isGap(h state.History, i int) bool {
	for _, values := range h.Series {
		if !math.IsNaN(float64(values[i])) {
			return false
		}
	}
	return true
}
