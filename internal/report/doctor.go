package report

import (
	"cmp"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

const (
	// labelWidth is the column of the words before wrapped text.
	labelWidth = 13
	// longText is the width from which an evidence's name or value is a sentence,
	// such as a dropped flow or a line of the kernel's log, and gets a line of its own.
	longText = 30
)

// Doctor writes what doctor found: the findings, most severe first, then what
// was checked, then what could not be read and why.
func Doctor(w io.Writer, style Style, r *diagnose.Report) error {
	p := &printer{w: w, style: style}
	p.incomplete(r)
	p.printf("natkit doctor: %s, Linux %s, two samples %s apart", netnsName(r), r.Kernel, units.Fixed(r.Seconds, 1)+" s")
	p.findings(r.Findings)
	p.checks(r)
	p.profiled(r.Profile)
	if len(r.Unread) > 0 {
		p.heading("Could not be read")
		t := &Table{Indent: 2, Columns: []Column{{}, {Wrap: true}}}
		for _, u := range r.Unread {
			t.Cells(Cell{u.What, Warn}, Cell{Text: u.Why})
		}
		p.table(t)
	}
	return p.err
}

// incomplete is what a report says first, as a look that is not whole must not be taken
// for health.
func (p *printer) incomplete(r *diagnose.Report) {
	if len(r.Incomplete) == 0 {
		return
	}
	checks, reasons := 0, []string{}
	for _, m := range r.Incomplete {
		checks += len(m.Checks)
		reasons = append(reasons, m.Why)
	}
	if checks == 0 {
		p.unfinished(strings.Join(reasons, "; "), nil)
	} else {
		p.unfinished(fmt.Sprintf("%d of %s came to no result", checks, units.Plural(len(r.Checks), "check", "checks")), reasons)
	}
	p.blank()
}

// Incomplete says what of a look is missing, and why.
func Incomplete(w io.Writer, style Style, text string, reasons []string) error {
	p := &printer{w: w, style: style}
	p.unfinished(text, reasons)
	return p.err
}

func (p *printer) unfinished(text string, reasons []string) {
	if len(reasons) == 1 {
		text, reasons = text+": "+reasons[0], nil
	}
	p.mark(0, Cell{"INCOMPLETE: ", Warn}, text, Bold)
	for _, why := range reasons {
		p.mark(2, Cell{Text: "- "}, why, Plain)
	}
}

// profiled tells in one line where the CPUs spent their time.
func (p *printer) profiled(pr *snapshot.Profile) {
	if pr == nil {
		return
	}
	text := fmt.Sprintf("%s busy, %s in packet receive", units.Percent(pr.Share(pr.Samples)), units.Percent(pr.Share(pr.Receive)))
	classes := slices.Clone(pr.Classes)
	slices.SortStableFunc(classes, func(a, b snapshot.ProfileClass) int { return cmp.Compare(b.Samples, a.Samples) })
	separator := "; of that "
	for _, c := range classes {
		if share := receiveShare(pr, c.Name); c.Receive && share >= leastWork {
			text += separator + c.Name + " " + units.Percent(share)
			separator = ", "
		}
	}
	p.blank()
	p.labelled(0, "CPU time", labelWidth, text)
}

func netnsName(r *diagnose.Report) string {
	switch {
	case r.Netns != "":
		return fmt.Sprintf("network namespace %s (%d)", r.Netns, r.NetnsInode)
	case r.NetnsInode != 0:
		return fmt.Sprintf("this network namespace (%d)", r.NetnsInode)
	}
	return "this network namespace"
}

// findings writes findings, most severe first.
func (p *printer) findings(findings []diagnose.Finding) {
	sorted := slices.Clone(findings)
	slices.SortStableFunc(sorted, func(a, b diagnose.Finding) int { return cmp.Compare(b.Severity, a.Severity) })
	for i, f := range sorted {
		p.blank()
		p.finding(f, sorted[:i])
	}
}

var severityTones = map[diagnose.Severity]Tone{diagnose.Critical: Alarm, diagnose.Warning: Warn, diagnose.Notice: Bold}

// finding writes one finding. What was written of those above is not repeated:
// two faults of one table have nearly the same evidence and the same ways out.
func (p *printer) finding(f diagnose.Finding, above []diagnose.Finding) {
	p.mark(0, Cell{f.Severity.String() + ": ", severityTones[f.Severity]}, f.Title, Bold)
	p.labelled(2, "rule", labelWidth, ruleLine(f))
	p.evidence(f.Evidence, above)
	p.labelled(2, "cause", labelWidth, f.Cause)
	p.labelled(2, "consequence", labelWidth, f.Consequence)
	for _, other := range above {
		if len(f.Remedies) > 0 && reflect.DeepEqual(f.Remedies, other.Remedies) {
			p.labelled(2, "remedy", labelWidth, "the same as of "+other.ID)
			return
		}
	}
	for _, r := range f.Remedies {
		p.remedy(r)
	}
}

func ruleLine(f diagnose.Finding) string {
	if f.Confidence == "" {
		return f.ID
	}
	return f.ID + ", " + f.Confidence
}

func (p *printer) evidence(evidence []diagnose.Evidence, above []diagnose.Finding) {
	var fresh []diagnose.Evidence
	for _, e := range evidence {
		known := func(other diagnose.Evidence) bool { return reflect.DeepEqual(e, other) }
		if !slices.ContainsFunc(above, func(f diagnose.Finding) bool { return slices.ContainsFunc(f.Evidence, known) }) {
			fresh = append(fresh, e)
		}
	}
	switch {
	case len(evidence) == 0:
		return
	case len(fresh) == 0:
		p.labelled(2, "evidence", labelWidth, "is above")
		return
	}
	p.line("  " + p.style.Paint(Dim, "evidence"))
	t := &Table{Indent: 4, Columns: []Column{{}, {Right: true}, {}, {Below: true}}}
	var long []diagnose.Evidence
	for _, e := range fresh {
		number, unit := valueParts(e.Value, e.Unit)
		if textWidth(number) >= longText || textWidth(e.What) >= longText {
			long = append(long, e)
			continue
		}
		t.Cells(Cell{Text: e.What}, Cell{number, Bold}, Cell{Text: unit}, Cell{sourceText(e.Source), Dim})
	}
	p.table(t)
	for _, e := range long {
		text := e.What + ": " + Value(e.Value, e.Unit)
		for _, part := range wrap(clean(text+"  "+sourceText(e.Source)), p.style.columns()-4) {
			p.line("    " + part)
		}
	}
}

func sourceText(source string) string {
	if source == "" {
		return ""
	}
	return "[" + source + "]"
}

func (p *printer) remedy(r diagnose.Remedy) {
	label := "advice"
	if r.Automatic {
		label = "remedy"
	}
	p.labelled(2, label, labelWidth, r.Title)
	p.changes(2+labelWidth, r.Changes, nil)
	const indent = 2 + labelWidth
	p.labelled(indent, "predicts", 10, r.Predicts)
	p.labelled(indent, "cost", 10, r.Cost)
	p.labelled(indent, "risk", 10, r.Risk)
}

// stateMarks say how the search for a fault ended; a check's title names the
// fault, so a mark alone could be read either way.
var stateMarks = map[diagnose.State]Cell{
	diagnose.OK:         {"✓ not found", Good},
	diagnose.Found:      {"✗ found", Bad},
	diagnose.NotChecked: {"? not checked", Warn},
}

func (p *printer) checks(r *diagnose.Report) {
	count, notAsked := map[diagnose.State]int{}, 0
	t := &Table{Indent: 2, Columns: []Column{{}, {}, {Wrap: true}}}
	for _, c := range r.Checks {
		count[c.State]++
		if c.NotAsked {
			notAsked++
		}
		t.Cells(stateMarks[c.State], Cell{Text: c.Title}, Cell{Text: c.Why})
	}
	p.blank()
	p.line(p.style.Paint(Bold, checksSummary(len(r.Checks), notAsked, count)))
	p.table(t)
}

func checksSummary(all, notAsked int, count map[diagnose.State]int) string {
	unfinished := count[diagnose.NotChecked] - notAsked
	text := "Looked for " + units.Plural(all, "fault", "faults")
	switch ok := count[diagnose.OK]; {
	case all > 0 && ok == all:
		return text + " and found none"
	case ok > 0 && count[diagnose.Found] == 0 && unfinished == 0:
		return fmt.Sprintf("Looked for %d of %s and found none", ok, units.Plural(all, "fault", "faults"))
	}
	text += fmt.Sprintf(": %d found, %d not found", count[diagnose.Found], count[diagnose.OK])
	if unfinished > 0 {
		text += fmt.Sprintf(", %d could not be checked", unfinished)
	}
	if notAsked > 0 {
		text += fmt.Sprintf(", %d not asked for", notAsked)
	}
	return text
}
