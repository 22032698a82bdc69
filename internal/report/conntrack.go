package report

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/conntrack/aggregate"
	"github.com/natkit/natkit/internal/names"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// Overview is what is shown of a connection table on one screen, and most of its document.
type Overview struct {
	// Source names the table, Filter is what selected the entries.
	Source string `json:"-"`
	Filter string `json:"-"`
	// Count and Max are nf_conntrack_count and nf_conntrack_max; 0 where they are not
	// known, as of a text.
	Count int64 `json:"nf_conntrack_count,omitempty"`
	Max   int64 `json:"nf_conntrack_max,omitempty"`
	*aggregate.Overview
}

// fewProtocols are shown, and as many states as there can be.
const (
	fewProtocols = 5
	fewZones     = 2
	// screen is the width that two blocks beside each other take. They leave all but
	// namesRoom of it for their names, the right one at least nameRight.
	screen    = 80
	namesRoom = 42
	nameRight = 22
)

// Text writes the overview.
func (o Overview) Text(w io.Writer, style Style) error {
	p := &printer{w: w, style: style}
	p.line(style.Paint(Bold, clean(o.Source+": "+units.Plural(o.Entries, "entry", "entries")+chosenBy(o.Filter))))
	if o.Max > 0 {
		p.mark(0, Cell{Text: "in use "}, fmt.Sprintf("%s of %s (%s of nf_conntrack_max)", units.Count(o.Count), units.Count(o.Max),
			units.Percent(float64(o.Count)/float64(o.Max))), fullness(o.Count, o.Max))
	}
	if o.Entries == 0 {
		return p.err
	}
	left := append(block("protocol", o.Protocols, fewProtocols), nil)
	left = append(left, block("status", o.Status, len(o.Status))...)
	p.besides(left, block("TCP state", o.TCPStates, len(o.TCPStates)))
	left = append(block("translated", o.Translated, len(o.Translated)), nil)
	left = append(left, o.zones()...)
	p.besides(left, o.idle())
	if i := o.Idle; i != nil && timeoutFrom[i.TimeoutFrom] != "" {
		p.line(style.Paint(Dim, fmt.Sprintf("idle: of a timeout of %s, %s", units.Plural(uint64(i.Timeout), "second", "seconds"), timeoutFrom[i.TimeoutFrom])))
	}
	p.frequent(o.Overview)
	return p.err
}

func chosenBy(filter string) string {
	if filter == "" {
		return ""
	}
	return " (" + filter + ")"
}

// fullness warns of a table that is nearly full.
func fullness(count, limit int64) Tone {
	switch {
	case count*100 >= limit*95:
		return Bad
	case count*100 >= limit*80:
		return Warn
	}
	return Plain
}

// line3 is a name, a count and a share in a block; nil is an empty line.
type line3 = []Cell

// block is a head and the first few parts, the rest summed up.
func block(head string, parts []aggregate.Part, few int) []line3 {
	if len(parts) == 0 {
		return nil
	}
	lines := []line3{{{head, Bold}, {"entries", Bold}, {"share", Bold}}}
	if len(parts) > few {
		rest := aggregate.Part{Name: fmt.Sprintf("%d others", len(parts)-few+1)}
		for _, part := range parts[few-1:] {
			rest.Entries += part.Entries
			rest.Share += part.Share
		}
		parts = append(append([]aggregate.Part{}, parts[:few-1]...), rest)
	}
	for _, part := range parts {
		lines = append(lines, partLine(part.Name, part.Entries, part.Share))
	}
	return lines
}

func partLine(name string, n int64, share float64) line3 {
	if n == 0 {
		return line3{{name, Dim}, {"0", Dim}}
	}
	return line3{{Text: name}, {Text: units.Count(n)}, {Text: units.Percent(share)}}
}

// zones are not worth a block where there is only the default one.
func (o Overview) zones() []line3 {
	top := o.Zones.Top
	if len(top) == 1 && top[0].Name == "0" {
		return []line3{{{"zone", Bold}}, {{"only 0", Plain}}}
	}
	few := fewZones
	if o.Zones.Different == few+1 {
		few++ // it takes no more room than the line for one more
	}
	lines := block("zone", top[:min(len(top), few)], few)
	if rest := o.Zones.Different - few; rest > 0 {
		lines = append(lines, line3{{fmt.Sprintf("%s more", units.Count(rest)), Dim}})
	}
	return lines
}

func (o Overview) idle() []line3 {
	if o.Idle == nil {
		return nil
	}
	lines, before := []line3{{{"ESTABLISHED, idle", Bold}, {"entries", Bold}, {"share", Bold}}}, ""
	for _, step := range o.Idle.Steps {
		name := "longer"
		switch {
		case step.AtMost > 0:
			before = span(step.AtMost)
			name = "up to " + before
		case before != "":
			name = "more than " + before
		}
		lines = append(lines, partLine(name, step.Entries, step.Share))
	}
	all := float64(o.Idle.Entries)
	lines = append(lines, partLine("last "+span(o.Idle.ShortTimeout)+", or unacked", o.Idle.Waiting, float64(o.Idle.Waiting)/all))
	if n := o.Idle.Unknown; n > 0 {
		lines = append(lines, partLine("not known", n, float64(n)/all))
	}
	return lines
}

// timeoutFrom is how a timeout is known that was not read.
var timeoutFrom = map[string]string{aggregate.TimeoutDefault: "the kernel's default", aggregate.TimeoutLargest: "the longest that an entry has left"}

// span is a whole time: 60 is 1 min.
func span(seconds uint32) string {
	for _, unit := range []struct {
		seconds uint32
		name    string
	}{{86400, "d"}, {3600, "h"}, {60, "min"}} {
		if seconds%unit.seconds == 0 {
			return fmt.Sprintf("%d %s", seconds/unit.seconds, unit.name)
		}
	}
	return fmt.Sprintf("%d s", seconds)
}

// besides writes two blocks beside each other if there is room, below an empty line.
func (p *printer) besides(left, right []line3) {
	if p.style.Columns > 0 && p.style.Columns < screen && len(right) > 0 {
		p.besides(left, nil)
		p.besides(right, nil)
		return
	}
	t := &Table{Columns: []Column{{Min: 13}, {Right: true, Min: 9}, {Right: true, Min: 6}, {}, {Min: nameRight}, {Right: true, Min: 9}, {Right: true, Min: 6}}}
	for i := range max(len(left), len(right)) {
		var row []Cell
		if i < len(left) {
			row = append(row, left[i]...)
		}
		if i < len(right) {
			for len(row) < 4 {
				row = append(row, Cell{})
			}
			row = append(row, right[i]...)
		}
		t.Cells(row...)
	}
	p.blank()
	p.table(t)
}

// frequent writes what has the most entries: sources and destinations beside each other
// where they are short.
func (p *printer) frequent(o *aggregate.Overview) {
	sources, destinations := p.style.frequentBlock("source", o.Sources), p.style.frequentBlock("destination", o.Destinations)
	if nameWidth(sources)+max(nameWidth(destinations), nameRight) <= max(screen, p.style.Columns)-namesRoom {
		p.besides(sources, destinations)
	} else {
		p.besides(sources, nil)
		p.besides(destinations, nil)
	}
	p.besides(p.style.frequentBlock("service", o.Services), nil)
}

// frequentBlock has the total in its head, and below it how accurate the counts are.
func (s Style) frequentBlock(one string, f aggregate.Frequent) []line3 {
	top := slices.Clone(f.Top)
	for i := range top {
		top[i].Name = names.BesideWho(s.Names, top[i].Name)
	}
	head := units.Plural(f.Different, one, one+"s")
	if f.Exact {
		return block(head, top, len(top))
	}
	return append(block("≥ "+head, top, len(top)), line3{{"≤ " + units.Count(f.Bound) + " too high", Warn}})
}

func nameWidth(lines []line3) (width int) {
	for _, line := range lines {
		width = max(width, textWidth(line[0].Text))
	}
	return width
}

// Groups is what is shown of entries that were grouped by keys.
type Groups struct {
	*aggregate.Aggregator
	// Source names the table, Filter is what selected the entries.
	Source, Filter string
	// Top is the most groups to show, 0 all; Min the entries that each has at least.
	Top int
	Min int64
	// Memory is what the program was allowed, in bytes.
	Memory int64
}

// blockRows are laid out at a time: columns then fit what is in them, and a million
// groups need not be in memory as text.
const blockRows = 1000

// Text writes a table of the groups.
func (g Groups) Text(w io.Writer, style Style) error {
	p := &printer{w: w, style: style}
	p.line(style.Paint(Bold, clean(g.title())))
	if !g.Exact() {
		p.mark(0, Cell{}, g.sketched(), Warn)
	}
	if g.Entries() == 0 {
		return p.err
	}
	p.blank()
	t := g.table(true)
	shown, entries, rows := 0, int64(0), 0
	for group := range g.Groups(g.Top, g.Min) {
		if rows == blockRows {
			p.table(t)
			next := g.table(false)
			for i, width := range t.grid(p.style).widths {
				next.Columns[i].Min = width
			}
			t, rows = next, 0
		}
		t.Cells(g.cells(group)...)
		shown, entries, rows = shown+1, entries+group.Entries-group.Excess, rows+1
	}
	p.table(t)
	if rest := g.Len() - shown; rest > 0 {
		p.line(style.Paint(Dim, g.more(rest, g.Entries()-entries)))
	}
	return p.err
}

func (g Groups) title() string {
	text := fmt.Sprintf("%s of %s%s, ", units.Plural(g.Entries(), "entry", "entries"), g.Source, chosenBy(g.Filter))
	if !g.Exact() {
		text += "at least "
	}
	return text + units.Plural(g.Len(), "group", "groups") + " by " + strings.Join(g.names(), ", ")
}

// sketched returns how accurate the counts are if not all groups found room.
func (g Groups) sketched() string {
	return fmt.Sprintf("There are more groups than find room in %s (--memory): counts are at most %s too high, and a group that is not there has at most %s",
		units.Bytes(g.Memory), units.Count(g.Bound()), units.Plural(g.Bound(), "entry", "entries"))
}

func (g Groups) more(groups int, entries int64) string {
	text := "… and at least " + units.Plural(groups, "more group", "more groups")
	if g.Exact() {
		text = "… and " + units.Plural(groups, "more group", "more groups") + " with " + units.Plural(entries, "entry", "entries")
	}
	switch {
	case g.Min > 1 && g.Top > 0:
		return text + " (--top 0 --min 0 shows all)"
	case g.Min > 1:
		return text + " (--min 0 shows all)"
	}
	return text + " (--top 0 shows all)"
}

func (g Groups) names() (names []string) {
	for _, k := range g.Keys() {
		names = append(names, k.Name())
	}
	return names
}

func (g Groups) table(head bool) *Table {
	t := &Table{}
	column := func(name string, right bool) {
		if !head {
			name = ""
		}
		t.Columns = append(t.Columns, Column{Head: name, Right: right})
	}
	for _, name := range g.names() {
		column(name, false)
	}
	column("entries", true)
	column("share", true)
	if !g.Exact() {
		column("too high by at most", true)
	}
	return t
}

func (g Groups) cells(group aggregate.Group) (cells []Cell) {
	for i := range g.Keys() {
		cells = append(cells, Cell{Text: group.Text(i)})
	}
	cells = append(cells, Cell{Text: units.Count(group.Entries), Tone: Bold},
		Cell{Text: share(uint64(group.Entries), uint64(g.Entries()))})
	if !g.Exact() {
		cells = append(cells, Cell{Text: units.Count(group.Excess)})
	}
	return cells
}

// CSV writes the groups as comma-separated values, their names in the first line.
func (g Groups) CSV(w io.Writer) error {
	out := csv.NewWriter(w)
	row := append(g.names(), "entries", "too_high_at_most")
	if err := out.Write(row); err != nil {
		return err
	}
	for group := range g.Groups(g.Top, g.Min) {
		row = row[:0]
		for i := range g.Keys() {
			row = append(row, group.CSV(i))
		}
		row = append(row, strconv.FormatInt(group.Entries, 10), strconv.FormatInt(group.Excess, 10))
		if err := out.Write(row); err != nil {
			return err
		}
	}
	out.Flush()
	return out.Error()
}

// JSON writes one document: the members of head, an object, those of all groups, and the
// groups. It does so group by group, as a million need not be in memory as text.
func (g Groups) JSON(w io.Writer, head any) error {
	var text strings.Builder
	if err := JSON(&text, head, struct {
		Keys []string `json:"keys"`
		// Different is the number of groups; at least this where the counts are not exact.
		Different int   `json:"different"`
		Exact     bool  `json:"exact"`
		Bound     int64 `json:"too_high_at_most"`
	}{g.names(), g.Len(), g.Exact(), g.Bound()}); err != nil {
		return err
	}
	p := &printer{w: w}
	p.print(strings.TrimSuffix(text.String(), "\n}\n") + ",\n  \"groups\": [")
	comma := ""
	for group := range g.Groups(g.Top, g.Min) {
		line, err := g.object(group)
		if err != nil {
			return err
		}
		p.print(comma + "\n    " + line)
		comma = ","
	}
	if comma != "" {
		p.print("\n  ")
	}
	p.line("]\n}")
	return p.err
}

// print writes text that is not a line.
func (p *printer) print(text string) {
	if p.err == nil {
		_, p.err = io.WriteString(p.w, text)
	}
}

// object is one group: {"key":{"dport":80,"state":"TIME_WAIT"},"entries":12,"share":0.5}.
func (g Groups) object(group aggregate.Group) (string, error) {
	key := map[string]any{}
	for i, name := range g.names() {
		key[name] = group.Value(i)
	}
	var line strings.Builder
	err := JSONLine(&line, struct {
		Key     map[string]any `json:"key"`
		Entries int64          `json:"entries"`
		Share   float64        `json:"share"`
		Excess  int64          `json:"too_high_at_most,omitempty"`
	}{key, group.Entries, float64(group.Entries) / float64(g.Entries()), group.Excess})
	return strings.TrimSuffix(line.String(), "\n"), err
}

// DeletionSchema names the JSON form of a Deletion.
const DeletionSchema = "natkit.conntrack-delete/1"

// Deletion is what was or would be deleted from a connection table.
type Deletion struct {
	Schema string `json:"schema"`
	Filter string `json:"filter,omitempty"`
	DryRun bool   `json:"dry_run,omitempty"`
	// Found were chosen; each was then deleted, gone meanwhile, or offloaded, which
	// the kernel does not delete.
	Found     int64                    `json:"found"`
	Deleted   int64                    `json:"deleted"`
	Gone      int64                    `json:"gone"`
	Offloaded int64                    `json:"offloaded"`
	Summary   *snapshot.ConntrackTable `json:"summary,omitempty"`
	// Interruption is why Found may be incomplete.
	Interruption string `json:"interruption,omitempty"`
}

// Plan shows what is to be deleted.
func (d *Deletion) Text(w io.Writer, style Style) error {
	p := &printer{w: w, style: style}
	if d.Found == 0 {
		p.line("no connection matches: there is nothing to delete")
		return p.err
	}
	p.printf("%s to delete (%s)", units.Plural(d.Found, "connection", "connections"), cmp.Or(d.Filter, "all"))
	t, translated := d.Summary, ""
	if t.SNAT+t.DNAT > 0 {
		translated = fmt.Sprintf("source of %s, destination of %s", units.Count(t.SNAT), units.Count(t.DNAT))
	}
	talkers := func(list []snapshot.Talker) string {
		return someOf(list, ", ", func(t *snapshot.Talker) string { return t.Who + " " + units.Count(t.Entries) })
	}
	for _, line := range [][2]string{{"protocols", largest(t.ByProtocol)}, {"TCP states", largest(t.ByTCPState)}, {"sources", talkers(t.TopSources)}, {"services", talkers(t.TopServices)},
		{"translated", translated}, {"of these", fmt.Sprintf("%s assured, %s unreplied", units.Count(t.Assured), units.Count(t.Unreplied))}} {
		p.labelled(2, line[0], 13, line[1])
	}
	p.line("this cannot be undone: the next packet of a deleted connection is treated as a new one")
	return p.err
}

// largest lists counts, the largest first.
func largest(counts map[string]int64) string {
	var list []portion
	for name, n := range counts {
		list = append(list, portion{n, name})
	}
	slices.SortFunc(list, func(a, b portion) int { return cmp.Or(cmp.Compare(b.n, a.n), cmp.Compare(a.what, b.what)) })
	return someOf(list, ", ", func(p *portion) string { return p.what + " " + units.Count(p.n) })
}

// Result shows what became of them.
func (d *Deletion) Result(w io.Writer, style Style) error {
	text := "deleted " + units.Plural(d.Deleted, "connection", "connections")
	if rest := counts(portion{d.Gone, "had ended meanwhile"}, portion{d.Found - d.Deleted - d.Gone, "left"}); rest != "" {
		text += ", " + rest
	}
	p := &printer{w: w, style: style}
	p.line(text)
	return p.err
}
