package report

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/names"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// The schemas of drops and of one drop as JSON.
const (
	DropsSchema     = "natkit.drops/1"
	dropEventSchema = "natkit.drop-event/1"
)

// DropsView specifies how drops are shown.
type DropsView struct {
	// Netns names a network namespace by its inode; empty where it has no name.
	Netns func(inode uint64) string
	// Names are what the host calls addresses; nil where that is not known.
	Names *snapshot.Names
	// Rows is the most that a table has; 0 is all.
	Rows int
	// Stacks shows more than the most frequent stack, which takes many lines.
	Stacks bool
}

// DropsDocument is what was dropped in a time.
type DropsDocument struct {
	Schema  string `json:"schema"`
	Version string `json:"version"`
	// Notes are what could not be done here.
	Notes []string        `json:"notes,omitempty"`
	Drops *snapshot.Drops `json:"drops"`
	View  DropsView       `json:"-"`
}

// Text writes the document for people.
func (d DropsDocument) Text(w io.Writer, style Style) error { return Drops(w, style, d.View, d.Drops) }

// CSV writes the places.
func (d DropsDocument) CSV(w io.Writer) error { return CSV(w, d.Drops.Sites) }

// Drops writes all that a tracer found: places, causes, flows and stacks.
func Drops(w io.Writer, style Style, v DropsView, d *snapshot.Drops) error {
	p := &printer{w: w, style: style}
	p.line(style.Paint(Bold, fmt.Sprintf("%s dropped in %s s (%s/s), counted by %s", units.Plural(d.Packets, "packet", "packets"),
		units.Fixed(d.Seconds, 1), perSecond(d.Packets, d.Seconds), clean(d.Source))))
	p.dropLosses(d)
	for _, t := range []*Table{v.sites(d), v.causes(d), v.programs(d), v.flows(d), v.interfaces(d)} {
		if len(t.rows) > 0 {
			p.blank()
			p.table(t)
		}
	}
	p.dropStacks(v, d)
	return p.err
}

// DropSites writes the places of one interval, which ended at a time, unless there are none.
func DropSites(w io.Writer, style Style, v DropsView, at time.Time, d *snapshot.Drops) error {
	if d.Packets == 0 {
		return nil
	}
	p := &printer{w: w, style: style}
	p.line(at.Format(time.TimeOnly))
	p.dropLosses(d)
	p.table(v.sites(d))
	if t := v.programs(d); len(t.rows) > 0 {
		p.blank()
		p.table(t)
	}
	p.blank()
	return p.err
}

// dropLosses prints what is missing from the figures.
func (p *printer) dropLosses(d *snapshot.Drops) {
	for _, l := range []struct {
		n    uint64
		tone Tone
		what string
	}{
		{d.Harmless, Dim, "frees that are no drops are left out (--all shows them)"},
		{d.Lost, Warn, "drops did not fit into natkit's tables and are in no line below"},
		{d.LostFlows, Warn, "flows did not fit or made room for others: the counts below are too small"},
		{d.LostStacks, Warn, "stacks did not fit"},
		{d.LostEvents, Warn, "drops came too fast to be shown one by one; they are counted"},
	} {
		if l.n > 0 {
			p.line(p.style.Paint(l.tone, units.Count(l.n)+" "+l.what))
		}
	}
}

// The columns that several tables of drops have.
var (
	packetsColumn = Column{Head: "packets", Right: true, Min: 8}
	shareColumn   = Column{Head: "share", Right: true, Min: 6}
)

func (v DropsView) sites(d *snapshot.Drops) *Table {
	t := &Table{Columns: []Column{packetsColumn, {Head: "per s", Right: true, Min: 6}, shareColumn,
		{Head: "protocol"}, {Head: "reason"}, {Head: "function"}, {Head: "netns"}}}
	addRows(t, d.Sites, v.Rows, 5, func(s *snapshot.DropSite) []Cell {
		row := texts(units.Count(s.Packets), perSecond(s.Packets, d.Seconds), share(s.Packets, d.Packets), s.Protocol, orNone(s.Reason),
			s.Place(), v.netns(s.Netns))
		row[4].Tone = Bold
		return row
	})
	return t
}

// attributed describes how netfilter's drops got their causes, by Drops.NAT.
var attributed = map[string]string{"fexit": "return values of conntrack and NAT functions", "counters": "conntrack counter deltas", "": "function only"}

// causes are why netfilter dropped.
func (v DropsView) causes(d *snapshot.Drops) *Table {
	t := &Table{Title: "netfilter drops, attributed by " + attributed[d.NAT],
		Columns: []Column{packetsColumn, {Head: "cause"}, {Head: "source"}, {Head: "netns"}}}
	for _, c := range d.Causes {
		t.Cells(Cell{Text: units.Count(c.Packets)}, Cell{c.Cause, Bad}, Cell{Text: c.Source}, Cell{Text: v.netns(c.Netns)})
	}
	return t
}

// programs are what programs of gateways dropped.
func (v DropsView) programs(d *snapshot.Drops) *Table {
	t := &Table{Title: "of these dropped by eBPF programs of gateways", Columns: []Column{packetsColumn, {Head: "bytes", Right: true, Min: 8}, {Head: "reason"}, {Head: "netns"}}}
	for _, g := range d.Programs {
		t.Cells(Cell{Text: units.Count(g.Packets)}, Cell{Text: units.Bytes(g.Bytes)}, Cell{g.Reason, Bad}, Cell{Text: v.netns(g.Netns)})
	}
	return t
}

func (v DropsView) flows(d *snapshot.Drops) *Table {
	t := &Table{Title: "flows: of every drop",
		Columns: []Column{packetsColumn, {Head: "protocol"}, {Head: "source"}, {Head: "destination"}, {Head: "interface"}, {Head: "function"}, {Head: "netns"}}}
	switch {
	case d.FlowSample == 0:
		t.Title = "flows: of the drops whose headers were recorded"
	case d.FlowSample > 1:
		t.Title = fmt.Sprintf("flows: of one in %s drops, and the first 64 of each place (--flows: of all)", units.Count(d.FlowSample))
	}
	addRows(t, d.Flows, v.Rows, 2, func(f *snapshot.DropFlow) []Cell {
		return texts(units.Count(f.Packets), f.Protocol, names.BesideIn(v.Names, f.Netns, "", f.Source), names.BesideIn(v.Names, f.Netns, f.Protocol, f.Destination), orNone(f.Interface), f.Function, v.netns(f.Netns))
	})
	return t
}

// interfaces adds the flows up.
func (v DropsView) interfaces(d *snapshot.Drops) *Table {
	var sums []snapshot.DropFlow
	all := uint64(0)
	for _, f := range d.Flows {
		all += f.Packets
		i := slices.IndexFunc(sums, func(s snapshot.DropFlow) bool { return s.Interface == f.Interface && s.Netns == f.Netns })
		if i < 0 {
			sums = append(sums, f)
		} else {
			sums[i].Packets += f.Packets
		}
	}
	t := &Table{Title: "interfaces of these flows", Columns: []Column{packetsColumn, shareColumn, {Head: "interface"}, {Head: "netns"}}}
	addRows(t, sums, v.Rows, 2, func(s *snapshot.DropFlow) []Cell {
		return texts(units.Count(s.Packets), share(s.Packets, all), orNone(s.Interface), v.netns(s.Netns))
	})
	return t
}

func (p *printer) dropStacks(v DropsView, d *snapshot.Drops) {
	stacks := d.Stacks
	switch {
	case !v.Stacks:
		stacks = stacks[:min(len(stacks), 1)]
	case v.Rows > 0:
		stacks = stacks[:min(len(stacks), v.Rows)]
	}
	for _, s := range stacks {
		count := units.Plural(s.Packets, "drop", "drops")
		if d.StackSample > 1 {
			count += fmt.Sprintf(" (of one in %s, and the first of each place)", units.Count(d.StackSample))
		}
		p.blank()
		p.printf("stack of %s: %s %s, netns %s", count, s.Protocol, orNone(s.Reason), v.netns(s.Netns))
		for _, f := range s.Functions {
			p.line("    " + clean(f))
		}
	}
}

// DropEvent writes one drop as one line.
func DropEvent(w io.Writer, v DropsView, e snapshot.DropEvent) error {
	parts := []string{e.Time.Format("15:04:05.000000"), e.Protocol}
	if e.Source != "" {
		parts = append(parts, names.BesideIn(v.Names, e.Netns, "", e.Source)+" > "+names.BesideIn(v.Names, e.Netns, e.Protocol, e.Destination))
	}
	if e.TCPFlags != "" {
		parts = append(parts, "["+e.TCPFlags+"]")
	}
	parts = append(parts, fmt.Sprintf("%d B", e.Length), "on "+orNone(e.Interface), "in "+v.netns(e.Netns),
		orNone(e.Reason), snapshot.DropSite{Function: e.Function, Offset: e.Offset, Module: e.Module}.Place())
	if e.Cause != "" {
		parts = append(parts, "("+e.Cause+")")
	}
	_, err := fmt.Fprintln(w, clean(strings.Join(parts, "  ")))
	return err
}

// DropEventJSON writes one drop as one line of JSON.
func DropEventJSON(w io.Writer, v DropsView, e snapshot.DropEvent) error {
	mentioned, _ := names.Mentioned(fmt.Sprintln(e.Source, e.Destination, e.Netns), v.Names)
	return JSONLine(w, struct {
		Schema string `json:"schema"`
		snapshot.DropEvent
		namesOf
	}{dropEventSchema, e, namesOf{mentioned}})
}

func (v DropsView) netns(inode uint64) string {
	if inode == 0 {
		return units.None
	}
	if v.Netns != nil {
		if name := v.Netns(inode); name != "" {
			return name
		}
	}
	return fmt.Sprint(inode)
}

func orNone(text string) string { return cmp.Or(text, units.None) }

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
