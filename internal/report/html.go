package report

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/units"
)

//go:embed assets
var assets embed.FS

func asset(name string) string {
	text, err := assets.ReadFile("assets/" + name)
	if err != nil {
		panic(err) // embedded at build time
	}
	return string(text)
}

// Asset returns one of the files that pages have: their style sheets and scripts, uPlot and its licence.
func Asset(name string) string { return asset(name) }

// pages are the templates of lab and simulate, and that of a Table.
var pages = template.Must(template.New("pages").Funcs(template.FuncMap{
	"css":      func(name string) template.CSS { return template.CSS(asset(name)) },
	"js":       func(name string) template.JS { return template.JS(asset(name)) },
	"text":     asset,
	"value":    Value,
	"changed":  ChangeValue,
	"rate":     units.Rate,
	"count":    units.Count[int64],
	"millis":   units.Millis,
	"decimals": units.Fixed,
	"add":      func(a, b int) int { return a + b },
	"class":    func(t Tone) string { return toneClasses[t] },
	"severity": func(s diagnose.Severity) string { return s.String() },
}).ParseFS(assets, "assets/*.tmpl"))

// writePage writes a view as one page that needs no network: style, script and data are in
// it. The template would write a report that has no JSON form as null.
func writePage(w io.Writer, name string, view, report any) error {
	if _, err := json.Marshal(report); err != nil {
		return fmt.Errorf("encode %T as JSON: %w", report, err)
	}
	var page bytes.Buffer
	if err := pages.ExecuteTemplate(&page, name+".html.tmpl", view); err != nil {
		return fmt.Errorf("write %T as HTML: %w", report, err)
	}
	_, err := page.WriteTo(w)
	return err
}

// toneClasses are the page's CSS classes for tones.
var toneClasses = map[Tone]string{Bold: "strong", Dim: "dim", Good: "good", Warn: "warn", Bad: "bad", Alarm: "bad strong"}

// labView is what the page's template reads.
type labView struct {
	Report *lab.Report
	// Caution is there where the machine was not quiet.
	Caution string
	// Counted is what the rates count: requests, where there was nothing else.
	Counted  string
	Facts    []fact
	Summary  []string
	Bars     []bar
	Measures []measures
	// Handshakes and Remedies are there where a run compares remedies.
	Handshakes      *Table
	HandshakeLegend []string
	Remedies        []remedyView
	// Comparison is there where stages are compared.
	Comparison *Table
	// Exchanges are there where far ends reported source addresses.
	Exchanges []*Table
	Drops     []dropView
	Untraced  []string
	Memory    *Table
	Charts    charts
}

// bar is one stage in the comparison of rates; Share is of the fastest stage,
// in percent.
type bar struct {
	Name, About, Rate, Note, Limit, Caution string
	Failing                                 bool
	Share                                   float64
}

// LabHTML writes the run of a scenario as one page.
func LabHTML(w io.Writer, r *lab.Report) error {
	view := labView{
		Report:    r,
		Counted:   counted(r),
		Facts:     labFacts(r),
		Summary:   labSummary(r),
		Bars:      rateBars(r),
		Measures:  stageMeasures(r),
		Exchanges: exchanges(r),
		Drops:     labDrops(r),
		Untraced:  untraced(r),
		Charts:    labCharts(r),
	}
	if hasRemedies(r) {
		view.Handshakes, view.HandshakeLegend, view.Remedies = handshakes(r), handshakeLegend(r), remedyViews(r)
	}
	if r.Compared != nil {
		view.Comparison = comparison(r)
	}
	if cautious(r) {
		view.Caution = withCaution
	}
	if r.Fix != nil {
		view.Memory = fixMemory(r.Fix)
	}
	return writePage(w, "lab", view, r)
}

func counted(r *lab.Report) string {
	if slices.ContainsFunc(r.Stages, func(s lab.StageReport) bool { return !onlyHTTP(s) }) {
		return "Requests, datagrams or packets"
	}
	return "Requests"
}

func rateBars(r *lab.Report) []bar {
	fastest := 0.0
	for _, s := range r.Stages {
		fastest = max(fastest, s.RequestsPerSecond)
	}
	var bars []bar
	for _, s := range r.Stages {
		b := bar{Name: s.Name, About: s.About, Rate: units.Rate(s.RequestsPerSecond), Note: "none failed", Limit: s.GeneratorLimit, Caution: r.Caution(&s)}
		if fastest > 0 {
			b.Share = 100 * s.RequestsPerSecond / fastest
		}
		if s.Failed > 0 {
			b.Failing = true
			b.Note = units.Count(s.Failed) + " of " + units.Count(s.Failed+s.Completed) + " failed"
		}
		bars = append(bars, b)
	}
	return bars
}

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

// Alternative describes a chart for those who cannot see it.
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

// levels are the bars of a sparkline, the lowest first.
var levels = []rune("▁▂▃▄▅▆▇█")

// Spark draws one bar for each value, from 0 to top, or to the greatest one where
// that is more.
func Spark(values []float64, top float64) string {
	for _, v := range values {
		top = max(top, v)
	}
	var b strings.Builder
	for _, v := range values {
		level := 0
		if top > 0 && v > 0 {
			level = min(int(v/top*float64(len(levels))), len(levels)-1)
		}
		b.WriteRune(levels[level])
	}
	return b.String()
}

// Squeeze makes a curve of at most points points: each is the mean of those that it
// replaces.
func Squeeze(values []float64, points int) []float64 {
	if len(values) <= points {
		return values
	}
	squeezed := make([]float64, points)
	for i := range squeezed {
		from, to := i*len(values)/points, (i+1)*len(values)/points
		sum := 0.0
		for _, v := range values[from:to] {
			sum += v
		}
		squeezed[i] = sum / float64(to-from)
	}
	return squeezed
}
