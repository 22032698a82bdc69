package report

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/units"
)

// Marks of the accuracy matrix.
const (
	markFound   = "✓"
	markMissed  = "–"
	markAllowed = "○"
	markFalse   = "✗"
)

// LabMatrix is the run of all scenarios.
type LabMatrix struct{ *lab.Accuracy }

// Text writes it.
func (d LabMatrix) Text(w io.Writer, style Style) error { return Accuracy(w, style, d.Accuracy) }

// Accuracy writes what was injected beside what was found, a row for each scenario.
func Accuracy(w io.Writer, style Style, a *lab.Accuracy) error {
	p := &printer{w: w, style: style}
	p.line(p.style.Paint(Bold, "natkit lab run --all"))
	p.labelled(2, "machine", labelWidth, fmt.Sprintf("Linux %s, %s", a.Kernel, units.Plural(a.CPUs, "CPU", "CPUs")))
	p.labelled(2, "run", labelWidth, fmt.Sprintf("natkit %s, %s, took %s", a.Version, a.Started.UTC().Format(time.DateTime)+" UTC", units.Seconds(a.Seconds)))
	p.labelled(2, "rules", labelWidth, fmt.Sprint(len(a.Rules)))
	p.heading("Injected and found")
	p.table(accuracyTable(a))
	p.line("")
	p.labelled(2, "", 0, fmt.Sprintf("%s found as injected, %s injected and not found, %s found and allowed there, %s found falsely; not checked: rules that lacked their data, such as those of IPVS or a trace",
		markFound, markMissed, markAllowed, markFalse))
	p.accuracyWhy(a)
	p.blank()
	p.accuracyVerdict(a)
	return p.err
}

func accuracyTable(a *lab.Accuracy) *Table {
	t := &Table{Indent: 2, Keys: 1, Columns: []Column{{Head: "scenario"}, {Head: "found"}, {Head: "not checked", Right: true}, {Head: "cured"}, {Head: "time", Right: true}, {Head: "result"}}}
	for _, row := range a.Scenarios {
		t.Cells(Cell{Text: row.Scenario}, foundCell(row), uncheckedCell(row), curedCell(row), Cell{Text: units.Seconds(row.Seconds)}, stateCell(row))
	}
	return t
}

func wasRun(row lab.AccuracyRow) bool {
	return row.State != lab.RowNotRun && row.State != lab.RowLeftOut
}

// foundCell has the findings with their marks, the injected one first.
func foundCell(row lab.AccuracyRow) Cell {
	if !wasRun(row) {
		return Cell{}
	}
	c := Cell{Tone: Good}
	var all []string
	if row.Injected != "" && !slices.Contains(row.Found, row.Injected) {
		all, c.Tone = append(all, markMissed+" "+row.Injected), Bad
	}
	for _, id := range row.Found {
		switch {
		case slices.Contains(row.False, id):
			all, c.Tone = append(all, markFalse+" "+id), Bad
		case id == row.Injected:
			all = slices.Insert(all, 0, markFound+" "+id)
		default:
			all = append(all, markAllowed+" "+id)
		}
	}
	c.Text = strings.Join(all, "  ")
	return c
}

func uncheckedCell(row lab.AccuracyRow) Cell {
	if !wasRun(row) {
		return Cell{}
	}
	return Cell{fmt.Sprint(len(row.Unchecked)), Dim}
}

func curedCell(row lab.AccuracyRow) Cell {
	switch row.Cured {
	case lab.Cured:
		return Cell{"yes", Good}
	case lab.NotCured:
		return Cell{"no", Bad}
	}
	return Cell{row.Cured, Dim}
}

func stateCell(row lab.AccuracyRow) Cell {
	switch row.State {
	case lab.RowPassed:
		return Cell{"passed", Good}
	case lab.RowNotRun:
		return Cell{"could not be run", Warn}
	case lab.RowLeftOut:
		return Cell{"left out", Dim}
	}
	return Cell{"failed", Bad}
}

// accuracyWhy lists what was not as expected.
func (p *printer) accuracyWhy(a *lab.Accuracy) {
	first := true
	for _, row := range a.Scenarios {
		if row.Why == "" {
			continue
		}
		if first {
			p.blank()
			first = false
		}
		p.labelled(2, "", 0, row.Scenario+": "+row.Why)
	}
}

func (p *printer) accuracyVerdict(a *lab.Accuracy) {
	recall := units.None
	if a.Faults > 0 {
		recall = units.Percent(a.Recall)
	}
	text := fmt.Sprintf("Recall %s (%s of %s), %s in %s, of which %s healthy.",
		recall, units.Count(a.Recalled), units.Plural(a.Faults, "fault", "faults"),
		units.Plural(a.FalseFindings, "false finding", "false findings"), units.Plural(a.Faults+a.Healthy, "scenario", "scenarios"), units.Count(a.Healthy))
	if a.NotRun > 0 {
		text += fmt.Sprintf(" %s could not be run.", units.Count(a.NotRun))
	}
	if a.LeftOut > 0 {
		text += fmt.Sprintf(" %s left out.", units.Count(a.LeftOut))
	}
	p.labelled(0, "", 0, text)
	title := Cell{"Verdict: as expected", Good}
	if !a.Passed {
		title = Cell{"Verdict: not as expected", Alarm}
	}
	p.line(p.style.Paint(title.Tone, title.Text))
}
