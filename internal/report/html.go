package report

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"slices"

	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/lab"
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

var labPage = template.Must(template.New("lab.html.tmpl").Funcs(template.FuncMap{
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
}).ParseFS(assets, "assets/lab.html.tmpl"))

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
	Handshakes      [][]Cell
	HandshakeHeads  []Column
	HandshakeLegend []string
	Remedies        []remedyView
	// Exchanges are there where far ends told whom they saw.
	Exchanges     []exchangeView
	ExchangeHeads []Column
	Drops         []dropView
	Untraced      []string
	Memory        []memoryRow
	Charts        charts
}

// bar is one stage in the comparison of rates; Share is of the fastest stage,
// in percent.
type bar struct {
	Name, About, Rate, Note, Limit, Caution string
	Failing                                 bool
	Share                                   float64
}

// LabHTML writes the run of a scenario as one page that needs no network: style,
// script and data are in it.
func LabHTML(w io.Writer, r *lab.Report) error {
	// The template would write a value that has no JSON form as null.
	if _, err := json.Marshal(r); err != nil {
		return fmt.Errorf("encode the lab's report as JSON: %w", err)
	}
	view := labView{
		Report:   r,
		Counted:  counted(r),
		Facts:    labFacts(r),
		Summary:  labSummary(r),
		Bars:     rateBars(r),
		Measures: stageMeasures(r),
		Drops:    labDrops(r),
		Untraced: untraced(r),
		Charts:   labCharts(r),
	}
	view.Exchanges, view.ExchangeHeads = exchangeViews(r), exchangeColumns
	if hasRemedies(r) {
		view.HandshakeHeads, view.Handshakes = handshakeColumns, handshakeRows(r)
		view.HandshakeLegend, view.Remedies = handshakeLegend(r), remedyViews(r)
	}
	if cautious(r) {
		view.Caution = withCaution
	}
	if r.Fix != nil {
		view.Memory = fixMemory(r.Fix)
	}
	var page bytes.Buffer
	if err := labPage.Execute(&page, view); err != nil {
		return fmt.Errorf("write the lab's report as HTML: %w", err)
	}
	_, err := page.WriteTo(w)
	return err
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
