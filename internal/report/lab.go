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

// Lab writes the run of a scenario: what was built, the stages side by side,
// what doctor found, the fix and the verdict.
func Lab(w io.Writer, style Style, r *lab.Report) error {
	p := &printer{w: w, style: style}
	p.labHeader(r)
	if len(r.Stages) > 0 {
		p.labStages(r)
	}
	p.labDrops(r)
	p.heading("What doctor found")
	if len(r.Findings) == 0 {
		p.line("  nothing")
	}
	p.findings(r.Findings)
	if r.Fix != nil {
		p.labFix(r.Fix)
	}
	p.labCaptures(r)
	p.labVerdict(r)
	return p.err
}

func (p *printer) labHeader(r *lab.Report) {
	p.line(p.style.Paint(Bold, clean("natkit lab run "+r.Scenario)))
	if r.Title != "" {
		p.labelled(2, "", 0, r.Title)
	}
	p.blank()
	for _, fact := range labFacts(r) {
		for i, text := range fact.Lines {
			label := fact.Label
			if i > 0 {
				label = ""
			}
			p.labelled(2, label, labelWidth, text)
		}
	}
}

// fact is a label with the lines that belong to it.
type fact struct {
	Label string
	Lines []string
}

// labFacts say where and how a report was measured.
func labFacts(r *lab.Report) []fact {
	machine := fmt.Sprintf("Linux %s, %s", r.Kernel, units.Plural(r.CPUs, "CPU", "CPUs"))
	run := fmt.Sprintf("natkit %s, %s, took %s", r.Version, r.Started.UTC().Format(time.DateTime)+" UTC", units.Seconds(r.Seconds))
	facts := []fact{{"machine", []string{machine}}, {"run", []string{run}}}
	if r.Server != "" {
		facts = append(facts, fact{"server", []string{r.Server}})
	}
	if len(r.Topology) > 0 {
		facts = append(facts, fact{"topology", r.Topology})
	}
	if lines := loadLines(r); len(lines) > 0 {
		facts = append(facts, fact{"load", lines})
	}
	return facts
}

// stageWidth lets the figures of stages stand apart from each other.
const stageWidth = 11

func (p *printer) labStages(r *lab.Report) {
	p.heading("Stages")
	about := &Table{Indent: 2, Columns: []Column{{}, {Wrap: true}}}
	for _, s := range r.Stages {
		about.Cells(Cell{s.Name, Bold}, Cell{Text: s.About})
		if s.GeneratorLimit != "" {
			about.Cells(Cell{}, Cell{"the generator was the limit: " + s.GeneratorLimit, Warn})
		}
		if why := r.Caution(&s); why != "" {
			about.Cells(Cell{}, Cell{"caution: " + why, Warn})
		}
	}
	p.table(about)
	p.blank()
	if hasRemedies(r) {
		p.labRemedies(r)
		return
	}
	p.labMeasures(r)
	p.labExchanges(r)
}

// labMeasures has a column for each stage.
func (p *printer) labMeasures(r *lab.Report) {
	t := &Table{Indent: 2, Keys: 2, Columns: []Column{{Min: 16}, {Min: 19}}}
	for _, s := range r.Stages {
		t.Columns = append(t.Columns, Column{Head: s.Name, Right: true, Min: stageWidth})
	}
	for i, group := range stageMeasures(r) {
		if i > 0 && !group.Joined {
			t.Row()
		}
		for j, m := range group.Rows {
			title := Cell{}
			if j == 0 {
				title = Cell{group.Title, Bold}
			}
			t.Cells(append([]Cell{title, {Text: m.Label}}, m.Cells...)...)
		}
	}
	p.table(t)
}

func (p *printer) labFix(fix *lab.Fix) {
	p.heading("The fix")
	remedy := fix.Remedy
	if fix.Rounds > 1 {
		remedy += fmt.Sprintf(" (%d rounds of applying and measuring again)", fix.Rounds)
	}
	p.labelled(2, "applied", labelWidth, remedy)
	p.labelled(2, "against", labelWidth, fix.Finding)
	p.changes(2+labelWidth, fix.Changes, nil)
	t := &Table{Indent: 2, Columns: []Column{{Head: "memory"}, {Head: "predicted", Right: true, Min: 10}, {Head: "seen", Right: true, Min: 10}}}
	for _, m := range fixMemory(fix) {
		t.Row(m.What, m.Predicted, m.Seen)
	}
	p.blank()
	p.table(t)
	p.blank()
	restored := Cell{"✓ every changed host value is back as it was", Good}
	if !fix.Restored {
		restored = Cell{"✗ not every changed host value is back: run natkit lab clean", Bad}
	}
	p.line("  " + p.style.Paint(restored.Tone, restored.Text))
}

// memoryRow is one comparison of predicted with seen memory.
type memoryRow struct{ What, Predicted, Seen string }

func fixMemory(fix *lab.Fix) []memoryRow {
	per := memoryRow{"per tracked connection", units.None, units.None}
	full := memoryRow{"table full to the new limit", units.None, units.None}
	if fix.PredictedBytesPerEntry > 0 {
		per.Predicted = units.Fixed(fix.PredictedBytesPerEntry, 0) + " B"
	}
	if fix.SeenBytesPerEntry > 0 {
		per.Seen = units.Fixed(fix.SeenBytesPerEntry, 0) + " B"
	}
	if fix.PredictedMaxBytes > 0 {
		full.Predicted = units.Bytes(fix.PredictedMaxBytes)
	}
	rows := []memoryRow{per}
	if fix.SeenEntries > 0 {
		now := memoryRow{"the " + units.Count(fix.SeenEntries) + " entries after the last stage", units.None, units.None}
		if fix.PredictedBytesPerEntry > 0 {
			now.Predicted = units.Bytes(fix.PredictedBytesPerEntry * float64(fix.SeenEntries))
		}
		if fix.SeenBytes > 0 {
			now.Seen = units.Bytes(fix.SeenBytes)
		}
		rows = append(rows, now)
	}
	return append(rows, full)
}

func (p *printer) labVerdict(r *lab.Report) {
	p.blank()
	p.labelled(0, "", 0, strings.Join(labSummary(r), " "))
	title := Cell{"Verdict: as expected", Good}
	switch {
	case !r.ExpectationMet:
		title = Cell{"Verdict: not as expected", Alarm}
	case cautious(r):
		title = Cell{"Verdict: as expected, but " + withCaution, Warn}
	}
	p.blank()
	p.line(p.style.Paint(title.Tone, title.Text))
	t := &Table{Indent: 2, Columns: []Column{{}, {}, {Wrap: true}}}
	for _, v := range r.Verdict {
		mark := Cell{"✓", Good}
		if !v.Met {
			mark = Cell{"✗", Bad}
		}
		t.Cells(mark, Cell{Text: v.Expected}, Cell{Text: v.Seen})
	}
	p.table(t)
}

// withCaution is what a disturbed run is worth.
const withCaution = "the machine was not quiet: do not rely on its rates"

func cautious(r *lab.Report) bool {
	return slices.ContainsFunc(r.Stages, func(s lab.StageReport) bool { return r.Caution(&s) != "" })
}

// labSummary tells the story of the stages nat, fault and fixed in sentences;
// nothing where a scenario has others.
func labSummary(r *lab.Report) []string {
	if hasRemedies(r) {
		return remedySummary(r)
	}
	nat, fault, fixed := r.Stage("nat"), r.Stage("fault"), r.Stage("fixed")
	if nat == nil || fault == nil || nat.RequestsPerSecond <= 0 || !onlyHTTP(*nat) || !onlyHTTP(*fault) {
		return nil
	}
	first := fmt.Sprintf("With the fault the gateway served %s requests/s instead of %s (%s)",
		units.Rate(fault.RequestsPerSecond), units.Rate(nat.RequestsPerSecond), units.Percent(fault.RequestsPerSecond/nat.RequestsPerSecond))
	if fault.Failed > 0 {
		first += fmt.Sprintf(", %s of %s requests failed, and %s/s got through after the first failure",
			units.Count(fault.Failed), units.Count(fault.Failed+fault.Completed), units.Rate(fault.AfterFirstFailurePerSecond))
	}
	sentences := []string{first + "."}
	if fixed != nil && r.Fix != nil {
		failed := "none failed"
		if fixed.Failed > 0 {
			failed = units.Count(fixed.Failed) + " failed"
		}
		sentences = append(sentences, fmt.Sprintf("After the fix it served %s requests/s (%s); %s.",
			units.Rate(fixed.RequestsPerSecond), units.Percent(fixed.RequestsPerSecond/nat.RequestsPerSecond), failed))
	}
	if ids := findingIDs(r); len(ids) > 0 {
		sentences = append(sentences, "natkit doctor named "+strings.Join(ids, ", ")+".")
	}
	return sentences
}

func findingIDs(r *lab.Report) []string {
	var ids []string
	for _, f := range r.Findings {
		if !slices.Contains(ids, f.ID) {
			ids = append(ids, f.ID)
		}
	}
	return ids
}
