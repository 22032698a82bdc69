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

// samples is what the report compares.
func samples(sinceStart bool, seconds float64) string {
	switch {
	case sinceStart:
		return "one sample: counters are since the start"
	case seconds <= 0:
		return "two samples, a time apart that is not known"
	}
	return fmt.Sprintf("two samples %s s apart", units.Fixed(seconds, 1))
}

// Doctor writes the findings, most severe first, what could not be read and why, and
// ends with a line that counts the checks; with verbose it lists all of them. next is
// advice on how to go on, or empty.
func Doctor(w io.Writer, style Style, r *diagnose.Report, verbose bool, next string) error {
	style.Names = r.Names
	p := &printer{w: w, style: style}
	about := clean(fmt.Sprintf("%s, Linux %s, %s", netnsName(r), cmp.Or(r.Kernel, "of an unknown release"), samples(r.SinceStart, r.Seconds)))
	if r.SinceNstat {
		about += ", those of TCP, UDP and IP since nstat's last run"
	}
	if verbose {
		p.line("natkit doctor: " + about)
	}
	p.compared(r.Compared)
	p.lost(r.Lost, r.Summary)
	p.summary(r.Summary)
	p.findings(r.Findings)
	p.incomplete(r)
	for _, why := range r.Defects {
		p.gap()
		p.unfinished(why, nil)
	}
	p.others(r.Others, verbose)
	p.followed(r.Followed)
	p.profiled(r.Profile)
	p.dropped(r)
	if verbose {
		p.checks(r)
	}
	if len(r.Unread) > 0 {
		p.heading("Could not be read")
		t := &Table{Indent: 2, Columns: []Column{{}, {Wrap: true}}}
		for _, u := range r.Unread {
			t.Cells(Cell{u.What, Warn}, Cell{Text: u.Why})
		}
		p.table(t)
	}
	if next != "" {
		p.gap()
		for line := range strings.SplitSeq(next, "\n") {
			p.line(line)
		}
	}
	p.gap()
	if !verbose {
		p.line(style.Paint(Dim, about))
	}
	p.line(style.Paint(Bold, checksSummary(r)))
	return p.err
}

// summary is the whole report in a sentence, and what to do first.
func (p *printer) summary(s *diagnose.Summary) {
	if s == nil {
		return
	}
	p.labelled(0, "summary", labelWidth, s.Text)
	if s.First != "" {
		p.labelled(0, "first", labelWidth, s.First)
	}
}

// lost prints what a file does not have that all of the report is made of, above its summary.
func (p *printer) lost(all []string, s *diagnose.Summary) {
	if len(all) == 0 {
		return
	}
	if p.unfinished("the report is about what could be read", all); s != nil {
		p.gap()
	}
}

// incomplete prints why a report is not complete, which must not be taken for health.
func (p *printer) incomplete(r *diagnose.Report) {
	if len(r.Incomplete) == 0 {
		return
	}
	checks, reasons := 0, []string{}
	for _, m := range r.Incomplete {
		checks += len(m.Checks)
		reasons = append(reasons, m.Why)
	}
	p.gap()
	if checks == 0 {
		p.unfinished(strings.Join(reasons, "; "), nil)
	} else {
		p.unfinished(fmt.Sprintf("%d of %s have no result", checks, units.Plural(len(r.Checks), "check", "checks")), reasons)
	}
}

// Incomplete writes what could not be read, and why.
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

// others is one line on the other network namespaces: what is wrong there is a finding.
func (p *printer) others(o *diagnose.Others, verbose bool) {
	if o == nil || !verbose && len(o.Sick) == 0 && o.Refused == 0 && o.Unreached == 0 && o.Unlisted == 0 && !o.SearchCut {
		return
	}
	p.gap()
	p.mark(0, Cell{"other network namespaces: ", Bold}, o.String(), Plain)
}

// fewServices is how many services are listed below findings.
const fewServices = 5

// followed is what became of connections while doctor looked.
func (p *printer) followed(f *snapshot.Followed) {
	if f == nil || len(f.Services) == 0 {
		return
	}
	few := *f
	few.Services = f.Services[:min(len(f.Services), fewServices)]
	few.MoreServices += int64(len(f.Services) - len(few.Services))
	p.gap()
	p.flows(&few)
}

// profiled is one line on where the CPUs spent their time.
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
	p.gap()
	p.labelled(0, "CPU time", labelWidth, text)
}

// fewDrops is how many places and flows of dropped packets are listed below findings.
const fewDrops = 5

// dropped is what a flight recorder counted.
func (p *printer) dropped(r *diagnose.Report) {
	d := r.Dropped
	if d == nil || d.Packets == 0 {
		return
	}
	view := DropsView{Names: r.Names, Rows: fewDrops, Netns: func(inode uint64) string {
		if inode == r.NetnsInode {
			return r.Netns
		}
		return ""
	}}
	p.heading(fmt.Sprintf("Dropped by the kernel meanwhile: %s (%s/s)", units.Plural(d.Packets, "packet", "packets"), perSecond(d.Packets, d.Seconds)))
	p.table(view.sites(d))
	if len(d.Flows) > 0 {
		p.blank()
		p.table(view.flows(d))
	}
}

func netnsName(r *diagnose.Report) string {
	switch {
	case r.Netns != "":
		return fmt.Sprintf("network namespace %s (%d)", r.Netns, r.NetnsInode)
	case r.Elsewhere && r.NetnsInode != 0:
		return fmt.Sprintf("the recorded network namespace (%d)", r.NetnsInode)
	case r.Elsewhere:
		return "the recorded network namespace"
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
		p.gap()
		p.finding(f, sorted[:i])
	}
}

var severityTones = map[diagnose.Severity]Tone{diagnose.Critical: Alarm, diagnose.Warning: Warn, diagnose.Notice: Bold}

// finding writes one finding. What was written of those above is not repeated:
// two faults of one table have nearly the same evidence and the same ways out.
func (p *printer) finding(f diagnose.Finding, above []diagnose.Finding) {
	p.mark(0, Cell{f.Severity.String() + ": ", severityTones[f.Severity]}, f.Title, Bold)
	rule := f.ID
	if f.Confidence != "" {
		rule += ", " + f.Confidence
	}
	p.labelled(2, "rule", labelWidth, rule)
	p.labelled(2, "docs", labelWidth, "docs/failure-modes/"+f.ID+".md")
	p.names(f)
	p.evidence(f.Evidence, above)
	p.labelled(2, "cause", labelWidth, f.Cause)
	p.labelled(2, "consequence", labelWidth, f.Consequence)
	for _, other := range above {
		if len(f.Remedies) > 0 && reflect.DeepEqual(f.Remedies, other.Remedies) {
			p.labelled(2, "remedy", labelWidth, "same as for "+other.ID)
			return
		}
	}
	for _, r := range f.Remedies {
		p.remedy(r)
	}
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
		p.labelled(2, "evidence", labelWidth, "see above")
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
	for _, c := range r.Commands {
		p.labelled(indent, "there", 10, c)
	}
	p.labelled(indent, "predicts", 10, r.Predicts)
	p.labelled(indent, "cost", 10, r.Cost)
	p.labelled(indent, "risk", 10, r.Risk)
}

// stateMarks show how the search for a fault ended; a check's title names the
// fault, so a mark alone could be read either way.
var stateMarks = map[diagnose.State]Cell{
	diagnose.OK:         {"✓ not found", Good},
	diagnose.Found:      {"✗ found", Bad},
	diagnose.NotChecked: {"? not checked", Warn},
}

func (p *printer) checks(r *diagnose.Report) {
	p.heading("Checks")
	t := &Table{Indent: 2, Columns: []Column{{}, {}, {Wrap: true}}}
	for _, c := range r.Checks {
		t.Cells(stateMarks[c.State], Cell{Text: c.Title}, Cell{Text: c.Why})
	}
	p.table(t)
}

// checksSummary counts the checks: "16 checks passed, 1 not run: needs --trace";
// of an interrupted recording "16 checks passed on 0.4 s only".
func checksSummary(r *diagnose.Report) string {
	passed, incomplete, notRun := 0, 0, 0
	var needs, parts []string
	for _, c := range r.Checks {
		switch {
		case c.State == diagnose.OK:
			passed++
		case c.NotAsked && strings.HasPrefix(c.Why, "needs "):
			notRun++
			need, _, _ := strings.Cut(c.Why, " (") // what follows is for --verbose
			needs = append(needs, need)
		case c.NotAsked: // it has a line of its own
		case c.State == diagnose.NotChecked:
			incomplete++
		}
	}
	if n := len(r.Findings); n > 0 {
		parts = append(parts, units.Plural(n, "finding", "findings"))
	}
	parts = append(parts, units.Plural(passed, "check passed", "checks passed"))
	if slices.ContainsFunc(r.Incomplete, func(m diagnose.Missing) bool { return len(m.Checks) == 0 }) { // cut short
		parts[len(parts)-1] += fmt.Sprintf(" on %s s only", units.Fixed(r.Seconds, 1))
	}
	if incomplete > 0 {
		parts = append(parts, fmt.Sprintf("%d without result", incomplete))
	}
	if notRun > 0 {
		slices.Sort(needs)
		parts = append(parts, fmt.Sprintf("%d not run: %s", notRun, strings.Join(slices.Compact(needs), "; ")))
	}
	return strings.Join(parts, ", ")
}
