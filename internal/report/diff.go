package report

import (
	"cmp"
	"fmt"
	"io"

	"github.com/natkit/natkit/internal/diff"
	"github.com/natkit/natkit/internal/units"
)

// Diff is the document of `natkit diff`.
type Diff struct{ *diff.Document }

// diffHeads are the headings of the changes of a kind.
var diffHeads = map[diff.Kind]string{
	diff.Kernel: "Kernel", diff.Memory: "Memory", diff.Sysctl: "Sysctls", diff.NATRule: "NAT rules",
	diff.Refusal: "Rules that refuse", diff.RuleTable: "Tables of iptables", diff.Program: "Programs of the gateway",
	diff.Interface: "Interfaces", diff.Queue: "Queues", diff.Route: "Routes", diff.IPVS: "IPVS", diff.IPsec: "IPsec policies",
	diff.Subscriber: "Event listeners", diff.Rate: "Counters",
}

// Text writes what differs: - is of A, + of B.
func (d Diff) Text(w io.Writer, style Style) error {
	p := &printer{w: w, style: style}
	for i := range d.Namespaces {
		if i > 0 {
			p.gap()
		}
		p.diffNamespace(&d.Namespaces[i])
	}
	for _, only := range []struct {
		sign  string
		names []string
	}{{"- ", d.OnlyA}, {"+ ", d.OnlyB}} {
		for _, name := range only.names {
			p.gap()
			p.mark(0, Cell{Text: only.sign}, "network namespace "+diffName(name), Plain)
		}
	}
	return p.err
}

func diffName(name string) string {
	if name == "" {
		return "of the host"
	}
	return name
}

func (p *printer) diffNamespace(n *diff.Namespace) {
	if n.Name != "" {
		p.line(p.style.Paint(Bold, clean("network namespace "+n.Name)))
	}
	for _, side := range []struct {
		sign string
		diff.Side
	}{{"- ", n.A}, {"+ ", n.B}} {
		p.mark(0, Cell{side.sign, Dim}, fmt.Sprintf("%s: %s, Linux %s, %s", side.Source,
			side.TakenAt.UTC().Format("2006-01-02 15:04:05 UTC"), cmp.Or(side.Kernel, "of an unknown release"), samples(side.SinceStart, side.Seconds)), Dim)
	}
	p.diffChanges(n.Changes)
	if len(n.New)+len(n.Gone) > 0 {
		p.heading("Findings")
		for _, f := range n.Gone {
			p.mark(2, Cell{"- ", Good}, fmt.Sprintf("%s: %s (%s)", f.Severity, f.Title, f.ID), Plain)
		}
		for _, f := range n.New {
			p.mark(2, Cell{"+ ", Bad}, fmt.Sprintf("%s: %s (%s)", f.Severity, f.Title, f.ID), Plain)
		}
	}
	if len(n.NotCompared) > 0 {
		p.heading("Not compared")
		for _, m := range n.NotCompared {
			p.mark(2, Cell{Text: "- "}, m.Part+": "+m.Why, Plain)
		}
	}
	p.gap()
	p.line(p.style.Paint(Bold, diffSummary(n)))
}

// diffChanges writes what both have in one line each, and what one has by its sign.
func (p *printer) diffChanges(all []diff.Change) {
	kind := diff.Kind("")
	for _, c := range all {
		if c.Kind != kind {
			p.heading(diffHeads[c.Kind])
			kind = c.Kind
		}
		switch {
		case c.A != "" && c.B != "":
			p.mark(2, Cell{Text: "  "}, c.Name+": "+c.A+" -> "+c.B, Plain)
		case c.B != "":
			p.mark(2, Cell{"+ ", Good}, diffItem(c.Name, c.B), Plain)
		default:
			p.mark(2, Cell{"- ", Bad}, diffItem(c.Name, c.A), Plain)
		}
	}
}

func diffItem(name, value string) string {
	if value == diff.Present {
		return name
	}
	return name + ": " + value
}

func diffSummary(n *diff.Namespace) string {
	text := "no difference that matters to NAT"
	if count := n.Count(); count > 0 {
		text = units.Plural(count, "difference", "differences")
	}
	if kept := len(n.Kept); kept > 0 {
		text += ", " + units.Plural(kept, "finding of both", "findings of both")
	}
	return text
}
