package report

import (
	"fmt"
	"io"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// DropsView says how drops are shown.
type DropsView struct {
	// Netns names a network namespace by its inode; empty where it has no name.
	Netns func(inode uint64) string
	// Rows is the most that a table has; 0 is all.
	Rows int
	// Stacks shows more than the few most frequent stacks.
	Stacks bool
}

// fewStacks are shown where nobody asked for more: each takes many lines.
const fewStacks = 1

// Drops writes all that a tracer found: places, causes, flows and stacks.
func Drops(w io.Writer, style Style, v DropsView, d *snapshot.Drops) error {
	p := &printer{w: w, style: style}
	p.line(style.Paint(Bold, fmt.Sprintf("%s dropped in %s s (%s/s), counted by %s", units.Plural(d.Packets, "packet", "packets"),
		units.Fixed(d.Seconds, 1), perSecond(d.Packets, d.Seconds), clean(d.Source))))
	p.dropLosses(d)
	if len(d.Sites) > 0 {
		p.blank()
		p.table(v.sites(d))
	}
	if len(d.Causes) > 0 {
		p.blank()
		p.table(v.causes(d))
	}
	if len(d.Flows) > 0 {
		p.blank()
		p.table(v.flows(d))
		p.blank()
		p.table(v.interfaces(d))
	}
	p.dropStacks(v, d)
	return p.err
}

// DropSites writes the places only: what one interval brought.
func DropSites(w io.Writer, style Style, v DropsView, d *snapshot.Drops) error {
	p := &printer{w: w, style: style}
	p.dropLosses(d)
	p.table(v.sites(d))
	p.blank()
	return p.err
}

// dropLosses says what is not in the figures.
func (p *printer) dropLosses(d *snapshot.Drops) {
	if d.Harmless > 0 {
		p.line(p.style.Paint(Dim, units.Count(d.Harmless)+" frees that are no drops are left out (--all shows them)"))
	}
	for _, l := range []struct {
		n    uint64
		what string
	}{
		{d.Lost, "drops found no place in natkit's tables: they are in no line below"},
		{d.LostFlows, "flows found no place, or made room for others: the counts below are too small"},
		{d.LostStacks, "stacks found no place"},
		{d.LostEvents, "drops came too fast to be shown one by one; they are counted"},
	} {
		if l.n > 0 {
			p.line(p.style.Paint(Warn, units.Count(l.n)+" "+l.what))
		}
	}
}

func (v DropsView) sites(d *snapshot.Drops) *Table {
	t := &Table{Columns: []Column{{Head: "packets", Right: true, Min: 8}, {Head: "per s", Right: true, Min: 6}, {Head: "share", Right: true, Min: 6},
		{Head: "protocol"}, {Head: "reason"}, {Head: "function"}, {Head: "netns"}}}
	for i, s := range d.Sites {
		if v.Rows > 0 && i == v.Rows {
			t.Row("", "", "", "", "", fmt.Sprintf("… and %s more", units.Count(len(d.Sites)-i)))
			break
		}
		t.Cells(Cell{Text: units.Count(s.Packets)}, Cell{Text: perSecond(s.Packets, d.Seconds)}, Cell{Text: share(s.Packets, d.Packets)},
			Cell{Text: s.Protocol}, Cell{Text: orNone(s.Reason), Tone: Bold}, Cell{Text: place(s.Function, s.Offset, s.Module)}, Cell{Text: v.netns(s.Netns)})
	}
	return t
}

// causes say why netfilter dropped, and how that was told.
func (v DropsView) causes(d *snapshot.Drops) *Table {
	how := "by the return values of conntrack's and NAT's functions"
	if d.NAT == "counters" {
		how = "by what conntrack's counters grew by in the same time"
	}
	t := &Table{Title: "netfilter's drops, told apart " + how,
		Columns: []Column{{Head: "packets", Right: true, Min: 8}, {Head: "cause"}, {Head: "told by"}, {Head: "netns"}}}
	if d.NAT == "" {
		t.Title = "netfilter's drops, as far as their place tells"
	}
	for _, c := range d.Causes {
		t.Cells(Cell{Text: units.Count(c.Packets)}, Cell{Text: c.Cause, Tone: Bad}, Cell{Text: c.Source}, Cell{Text: v.netns(c.Netns)})
	}
	return t
}

func (v DropsView) flows(d *snapshot.Drops) *Table {
	t := &Table{Title: "flows: every drop was looked at",
		Columns: []Column{{Head: "packets", Right: true, Min: 8}, {Head: "protocol"}, {Head: "source"}, {Head: "destination"},
			{Head: "interface"}, {Head: "function"}, {Head: "netns"}}}
	if d.FlowSample > 1 {
		t.Title = fmt.Sprintf("flows: one in %s drops was looked at, and the first 64 of each place (--flows looks at all)", units.Count(d.FlowSample))
	}
	for i, f := range d.Flows {
		if v.Rows > 0 && i == v.Rows {
			t.Row("", "", fmt.Sprintf("… and %s more", units.Count(len(d.Flows)-i)))
			break
		}
		t.Row(units.Count(f.Packets), f.Protocol, f.Source, f.Destination, orNone(f.Interface), f.Function, v.netns(f.Netns))
	}
	return t
}

// interfaces adds the flows up.
func (v DropsView) interfaces(d *snapshot.Drops) *Table {
	type key struct {
		name  string
		netns uint64
	}
	sum, order, all := map[key]uint64{}, []key{}, uint64(0)
	for _, f := range d.Flows {
		k := key{f.Interface, f.Netns}
		if _, ok := sum[k]; !ok {
			order = append(order, k)
		}
		sum[k] += f.Packets
		all += f.Packets
	}
	t := &Table{Title: "interfaces of these flows",
		Columns: []Column{{Head: "packets", Right: true, Min: 8}, {Head: "share", Right: true, Min: 6}, {Head: "interface"}, {Head: "netns"}}}
	for i, k := range order {
		if v.Rows > 0 && i == v.Rows {
			break
		}
		t.Row(units.Count(sum[k]), share(sum[k], all), orNone(k.name), v.netns(k.netns))
	}
	return t
}

func (p *printer) dropStacks(v DropsView, d *snapshot.Drops) {
	rows := fewStacks
	if v.Stacks {
		rows = v.Rows
	}
	for i, s := range d.Stacks {
		if rows > 0 && i == rows {
			break
		}
		p.blank()
		p.line(fmt.Sprintf("stack of %s: %s %s, netns %s", stackCount(s.Packets, d.StackSample), clean(s.Protocol), clean(orNone(s.Reason)), v.netns(s.Netns)))
		for _, f := range s.Functions {
			p.line("    " + clean(f))
		}
	}
}

func stackCount(packets uint64, sample int) string {
	text := units.Plural(packets, "drop", "drops")
	if sample > 1 {
		text += fmt.Sprintf(" (of one in %s, and the first of each place)", units.Count(sample))
	}
	return text
}

// DropEvent writes one drop as one line.
func DropEvent(w io.Writer, v DropsView, e snapshot.DropEvent) error {
	parts := []string{e.Time.Format("15:04:05.000000"), e.Protocol}
	if e.Source != "" {
		parts = append(parts, e.Source+" > "+e.Destination)
	}
	if e.TCPFlags != "" {
		parts = append(parts, "["+e.TCPFlags+"]")
	}
	parts = append(parts, fmt.Sprintf("%d B", e.Length), "on "+orNone(e.Interface), "in "+v.netns(e.Netns),
		orNone(e.Reason), place(e.Function, e.Offset, e.Module))
	if e.Cause != "" {
		parts = append(parts, "("+e.Cause+")")
	}
	_, err := fmt.Fprintln(w, clean(strings.Join(parts, "  ")))
	return err
}

func (v DropsView) netns(inode uint64) string {
	if inode == 0 {
		return units.None
	}
	if v.Netns != nil {
		if name := v.Netns(inode); name != "" {
			return clean(name)
		}
	}
	return fmt.Sprint(inode)
}

func place(function string, offset uint64, module string) string {
	if strings.HasPrefix(function, "0x") {
		return function // an address that has no name
	}
	text := fmt.Sprintf("%s+%#x", function, offset)
	if module != "" {
		text += " [" + module + "]"
	}
	return text
}

func orNone(text string) string {
	if text == "" {
		return units.None
	}
	return text
}

func perSecond(packets uint64, seconds float64) string {
	if seconds <= 0 {
		return units.None
	}
	return units.Rate(float64(packets) / seconds)
}

func share(part, of uint64) string {
	if of == 0 {
		return units.None
	}
	return units.Percent(float64(part) / float64(of))
}
