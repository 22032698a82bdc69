package report

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/fleet"
	"github.com/natkit/natkit/internal/units"
)

// Fleet is the document of 'natkit doctor --from' and several nodes. Whole is whether nothing is shortened.
type Fleet struct {
	*fleet.Report
	Whole bool `json:"-"`
}

const (
	// fewNodes is how many nodes of a finding are named, fewRanked how many are ranked, fewReasons how many failures of a
	// kind are listed.
	fewNodes   = 8
	fewRanked  = 10
	fewReasons = 10
)

// most is n, or any number where all is wanted.
func (f Fleet) most(n int) int {
	if f.Whole {
		return 0
	}
	return n
}

// Text writes the outcome first, then the findings over the nodes, the nodes and what is to be known of the input.
func (f Fleet) Text(w io.Writer, style Style) error {
	p := &printer{w: w, style: style}
	if s := f.Summary; s != nil {
		p.labelled(0, "summary", labelWidth, s.Text)
		p.labelled(0, "first", labelWidth, s.First)
	}
	f.unfinished(p)
	for _, g := range f.Groups {
		p.gap()
		f.group(p, &g)
	}
	for _, t := range f.tables() {
		p.heading(t.Title)
		t.Title, t.Indent = "", 2
		p.table(t)
	}
	for _, note := range f.notes() {
		p.gap()
		p.mark(0, Cell{note.label + ": ", Bold}, note.text, Plain)
	}
	p.gap()
	p.line(style.Paint(Dim, clean(f.about())))
	p.line(style.Paint(Bold, f.counts()))
	return p.err
}

// unfinished lists what gave no result, which must not be taken for health.
func (f Fleet) unfinished(p *printer) {
	for _, kind := range f.gaps() {
		p.gap()
		p.unfinished(kind.text, kind.reasons)
	}
}

// gapKind is one kind of what is missing.
type gapKind struct {
	text    string
	reasons []string
}

func (f Fleet) gaps() (all []gapKind) {
	for _, kind := range []struct {
		what     string
		failures []fleet.Failure
	}{
		{"gave no bundle", f.Missing}, {"could not be read", f.Unread}, {"could be read in part only", f.Damaged},
	} {
		if len(kind.failures) == 0 {
			continue
		}
		var reasons []string
		for _, failure := range kind.failures {
			reasons = append(reasons, unreadName(failure)+": "+failure.Why)
		}
		all = append(all, gapKind{units.Plural(len(kind.failures), "node", "nodes") + " " + kind.what, f.shortened(reasons)})
	}
	if len(f.Incomplete) > 0 {
		var reasons []string
		for _, m := range f.Incomplete {
			reasons = append(reasons, fmt.Sprintf("%s (%s): %s", units.Plural(m.Nodes, "node", "nodes"), m.Example, m.Why))
		}
		all = append(all, gapKind{"checks have no result on some nodes", f.shortened(reasons)})
	}
	return all
}

func unreadName(failure fleet.Failure) string {
	if failure.Node != "" {
		return failure.Node
	}
	return failure.Source
}

func (f Fleet) shortened(reasons []string) []string {
	most := f.most(fewReasons)
	if most == 0 || len(reasons) <= most {
		return reasons
	}
	return append(slices.Clone(reasons[:most]), fmt.Sprintf("… and %s more", units.Count(len(reasons)-most)))
}

// group writes one finding over the nodes.
func (f Fleet) group(p *printer, g *fleet.Group) {
	p.mark(0, Cell{g.Severity.String() + ": ", severityTones[g.Severity]}, fmt.Sprintf("%s, on %s", g.Title, ofNodes(len(g.Sick), g.Checked)), Bold)
	for _, l := range f.lines(g) {
		p.labelled(2, l.label, labelWidth, l.text)
	}
}

// labelledLine is a line of a finding.
type labelledLine struct{ label, text string }

func (f Fleet) lines(g *fleet.Group) (all []labelledLine) {
	add := func(label, format string, args ...any) {
		all = append(all, labelledLine{label, fmt.Sprintf(format, args...)})
	}
	rule := g.ID
	if g.Certain > 0 {
		rule += fmt.Sprintf(", certain on %s", units.Plural(g.Certain, "node", "nodes"))
	}
	add("rule", "%s", rule)
	add("docs", "docs/failure-modes/%s.md", g.ID)
	add("nodes", "%s", f.names(g.Sick))
	where := ""
	if g.Example.Netns != "" {
		where = " (network namespace " + g.Example.Netns + ")"
	}
	add("for example", "%s%s: %s", g.Example.Node, where, g.Example.Title)
	for _, s := range g.Subjects {
		add("about", "%s, on %s", s.About, units.Plural(s.Nodes, "node", "nodes"))
	}
	for i, s := range g.Shared {
		label := ""
		if i == 0 {
			label = "shared"
		}
		add(label, "%s", separationText(&s))
	}
	switch {
	case g.Unsure > 0:
		add("shared", "too few nodes to say: %s on all %d and on none of the %d others", units.Plural(g.Unsure, "attribute is", "attributes are"), len(g.Sick), g.Checked-len(g.Sick))
	case g.Checked == len(g.Sick):
		add("shared", "all nodes that were checked have it: there is none to compare with")
	case len(g.Shared) == 0:
		add("shared", "nothing recorded separates these nodes from the others")
	}
	for i, a := range g.First {
		if i == 2 && !f.Whole {
			break
		}
		text := fmt.Sprintf("%s, on %s", a.Title, units.Plural(a.Nodes, "node", "nodes"))
		if a.Command != "" {
			text += " (there: " + a.Command + ")"
		}
		add("advice", "%s", text)
	}
	return all
}

// names are those of some nodes.
func (f Fleet) names(all []string) string {
	most := f.most(fewNodes)
	if most == 0 || len(all) <= most+1 {
		return strings.Join(all, ", ")
	}
	return fmt.Sprintf("%s … and %s more", strings.Join(all[:most], ", "), units.Count(len(all)-most))
}

func ofNodes(n, of int) string {
	return fmt.Sprintf("%s of %s", units.Count(n), units.Plural(of, "node", "nodes"))
}

// separationText is an attribute with its counts.
func separationText(s *fleet.Separation) string {
	text := fmt.Sprintf("%s: with the finding %s of %s, without %s of %s", attributeText(s.Attribute, s.Compared), units.Count(s.Sick), units.Count(s.SickKnown), units.Count(s.Healthy), units.Count(s.HealthyKnown))
	if len(s.Same) == 0 {
		return text
	}
	var same []string
	for _, other := range s.Same {
		same = append(same, attributeText(other.Attribute, other.Compared))
	}
	text += "; the same nodes: " + strings.Join(same, ", ")
	if s.MoreSame > 0 {
		text += fmt.Sprintf(" and %s more", units.Count(s.MoreSame))
	}
	return text
}

// attributeText is an attribute in words: "net.ipv4.ip_forward = 0", "rule …", "no rule …".
func attributeText(a fleet.Attribute, compared string) string {
	name := a.Name
	switch a.Kind {
	case fleet.KindRule:
		name = "rule " + name
	case fleet.KindKernel:
		if name == "series" {
			name = "Linux"
		}
	}
	switch compared {
	case "has":
		return name
	case "has not":
		return "no " + name
	}
	return fmt.Sprintf("%s %s %s", name, compared, a.Value)
}

// tables are those of the nodes and of the numbers that stand out.
func (f Fleet) tables() (all []*Table) {
	if len(f.Ranking) > 0 {
		t := &Table{Title: "Nodes, the worst first", Columns: []Column{{Head: "node"}, {Head: "severity"}, {Head: "findings and numbers that stand out", Wrap: true}}}
		addRows(t, f.Ranking, f.most(fewRanked), 0, func(r *fleet.Ranked) []Cell {
			severity := Cell{}
			if r.Severity != nil {
				severity = Cell{r.Severity.String(), severityTones[*r.Severity]}
			}
			return []Cell{{Text: r.Node}, severity, {Text: strings.Join(slices.Concat(r.Findings, r.Outliers), " ")}}
		})
		all = append(all, t)
	}
	if len(f.Outliers) > 0 {
		t := &Table{Title: "Numbers that stand out", Columns: []Column{{Head: "node"}, {Head: "value", Right: true}, {Head: "median", Right: true}, {Head: "what", Wrap: true}}}
		addRows(t, f.Outliers, f.most(fewRanked), 0, func(o *fleet.Outlier) []Cell {
			return []Cell{{Text: o.Node}, {outlierValue(o, o.Value), Bold}, {Text: outlierValue(o, o.Median)}, {Text: o.Title}}
		})
		all = append(all, t)
	}
	return all
}

func outlierValue(o *fleet.Outlier, v float64) string {
	switch o.Unit {
	case "share":
		return units.Percent(v)
	case "":
		return units.Fixed(v, 0)
	}
	return units.Rate(v) + "/s"
}

// fleetNote is what is to be known of the input.
type fleetNote struct{ label, text string }

func (f Fleet) notes() (all []fleetNote) {
	most := f.most(fewReasons)
	for i, d := range f.Duplicates {
		if i == most && most > 0 {
			all = append(all, fleetNote{"duplicates", fmt.Sprintf("… and %s more nodes", units.Count(len(f.Duplicates)-most))})
			break
		}
		text := fmt.Sprintf("%s: %s", d.Node, d.Why)
		if d.Counted != "" {
			text += fmt.Sprintf(" (%s, not %s)", d.Counted, f.names(d.Others))
		} else {
			text += " (" + f.names(d.Others) + ")"
		}
		all = append(all, fleetNote{"duplicate", text})
	}
	for i, c := range f.Clocks {
		if i == most && most > 0 {
			all = append(all, fleetNote{"clocks", fmt.Sprintf("… and %s more nodes", units.Count(len(f.Clocks)-most))})
			break
		}
		all = append(all, fleetNote{"clock", fmt.Sprintf("that of %s is %s; no finding depends on it", c.Node, c)})
	}
	if len(f.Versions) > 1 {
		var versions []string
		for _, v := range f.Versions {
			name := v.Natkit
			if name == "" {
				name = "an unknown one"
			}
			versions = append(versions, fmt.Sprintf("%s on %s", name, units.Plural(v.Nodes, "node", "nodes")))
		}
		all = append(all, fleetNote{"natkit versions", strings.Join(versions, ", ") + ": an older one recorded less"})
	}
	if f.OtherFiles > 0 {
		all = append(all, fleetNote{"other files", units.Plural(f.OtherFiles, "file of the directory is no bundle", "files of the directory are no bundles") + " and not read"})
	}
	return all
}

// about is what was compared: bundles are of different times, or clocks are apart.
func (f Fleet) about() string {
	if f.Nodes == 0 {
		return "no node was diagnosed"
	}
	const form = "2006-01-02 15:04:05"
	text := fmt.Sprintf("recorded from %s to %s UTC by the nodes' clocks", f.From.UTC().Format(form), f.Until.UTC().Format(form))
	if f.Until.Sub(f.From) > time.Hour {
		text += ": taken at different times, or clocks are apart"
	}
	return text
}

func (f Fleet) counts() string {
	return fmt.Sprintf("%s: %s critical, %s with warnings, %s without a fault that was found", units.Plural(f.Nodes, "node", "nodes"), units.Count(f.Critical), units.Count(f.Warnings), units.Count(f.Healthy))
}

// fleetView is what the page's template reads.
type fleetView struct {
	Head    string
	Tone    Tone
	First   string
	Nodes   string
	Gaps    []fleetGap
	Groups  []fleetGroup
	Tables  []*Table
	Notes   []string
	About   string
	Summary string
	Report  any
}

type fleetGap struct {
	Text    string
	Reasons []string
}

type fleetGroup struct {
	Severity diagnose.Severity
	Tone     Tone
	Title    string
	Lines    *Table
	Nodes    string
}

// FleetHTML writes the comparison of nodes as one page.
func FleetHTML(w io.Writer, r *fleet.Report) error {
	f := Fleet{Report: r, Whole: true}
	view := fleetView{Head: "No fault was found", Tone: Good, Nodes: units.Plural(r.Nodes, "node", "nodes"), Tables: f.tables(), About: f.about(), Summary: f.counts(), Report: r}
	if r.Unfinished() {
		view.Head, view.Tone = "Nothing was found, and not everything could be checked", Warn
	}
	if r.Summary != nil {
		view.Head, view.Tone, view.First = r.Summary.Text, severityTones[r.Groups[0].Severity], r.Summary.First
	}
	for _, g := range f.gaps() {
		view.Gaps = append(view.Gaps, fleetGap{g.text, g.reasons})
	}
	for _, g := range r.Groups {
		lines := &Table{Columns: []Column{{}, {}}}
		for _, l := range f.lines(&g) {
			if l.label != "nodes" {
				lines.Row(l.label, l.text)
			}
		}
		view.Groups = append(view.Groups, fleetGroup{g.Severity, severityTones[g.Severity], fmt.Sprintf("%s, on %s", g.Title, ofNodes(len(g.Sick), g.Checked)), lines, strings.Join(g.Sick, ", ")})
	}
	for _, n := range f.notes() {
		view.Notes = append(view.Notes, n.label+": "+n.text)
	}
	return writePage(w, "fleet", view, r)
}
