package report

import (
	"fmt"
	"io"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// Profile writes what the CPUs spent their time on: shares first, then functions.
func Profile(w io.Writer, style Style, kernel string, p *snapshot.Profile) error {
	pr := &printer{w: w, style: style}
	pr.line(fmt.Sprintf("%s over %s s, Linux %s: %d samples a second of each by %s",
		units.Plural(p.CPUs, "CPU", "CPUs"), units.Fixed(p.Seconds, 1), clean(kernel), p.Hz, p.Event))
	if p.Lost > 0 {
		pr.line(style.Paint(Warn, units.Count(p.Lost)+" samples were lost, and are in none of these figures: the kernel gave no stack for them, or natkit's table was full"))
	}
	pr.line("")
	shares := profileShares(p)
	if pr.err == nil {
		pr.err = shares.Write(w, style)
	}
	if sends(p) {
		pr.line(style.Paint(Dim, "conntrack, NAT and rules that are not in packet receive worked on what this host sends"))
	}
	if p.Samples == 0 || len(p.Functions) == 0 {
		return pr.err
	}
	pr.line("")
	functions := profileFunctions(p)
	if pr.err == nil {
		pr.err = functions.Write(w, style)
	}
	return pr.err
}

// sends reports whether netfilter has samples elsewhere than in packet receive.
func sends(p *snapshot.Profile) bool {
	for _, c := range p.Classes {
		kind, _, _ := strings.Cut(c.Name, " ")
		if !c.Receive && c.Samples > 0 && (kind == "conntrack" || kind == "NAT" || kind == "rules") {
			return true
		}
	}
	return false
}

// profileShares has a row for each kind of work that there was.
func profileShares(p *snapshot.Profile) *Table {
	t := &Table{Columns: []Column{{Head: "of all CPU time", Min: 36}, {Head: "share", Right: true}, {Head: "of these", Right: true}, {Head: "samples", Right: true}}}
	all := p.Samples + p.Idle
	t.Cells(Cell{"busy", Bold}, Cell{share(p.Samples, all), Bold}, Cell{}, Cell{units.Count(p.Samples), Bold})
	addClasses(t, p, "  packet receive", true, p.Receive, all)
	addClasses(t, p, "  not in packet receive", false, p.Samples-p.Receive, all)
	t.Cells(Cell{"idle", Dim}, Cell{share(p.Idle, all), Dim}, Cell{}, Cell{units.Count(p.Idle), Dim})
	return t
}

func addClasses(t *Table, p *snapshot.Profile, name string, receive bool, sum, all uint64) {
	t.Cells(Cell{name, Bold}, Cell{share(sum, all), Bold}, Cell{}, Cell{units.Count(sum), Bold})
	for _, c := range p.Classes {
		if c.Receive == receive && c.Samples > 0 {
			t.Row("    "+c.Name, share(c.Samples, all), share(c.Samples, sum), units.Count(c.Samples))
		}
	}
}

// profileFunctions shows shares of the busy time.
func profileFunctions(p *snapshot.Profile) *Table {
	t := &Table{Columns: []Column{{Head: "self", Right: true}, {Head: "total", Right: true}, {Head: "of busy time in"}, {Head: "kind of work"}}}
	for _, f := range p.Functions {
		name := f.Function
		if f.Module != "" {
			name += " [" + f.Module + "]"
		}
		t.Row(share(f.Self, p.Samples), share(f.Total, p.Samples), name, f.Class)
	}
	return t
}
