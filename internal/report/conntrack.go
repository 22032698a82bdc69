package report

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/conntrack/aggregate"
	"github.com/natkit/natkit/internal/units"
)

// Overview is what is shown of a connection table on one screen.
type Overview struct {
	*aggregate.Overview
	// Source says in words which table it is, Filter what chose the entries.
	Source, Filter string
	// Count and Max are nf_conntrack_count and nf_conntrack_max; 0 where they are not
	// known, as of a text.
	Count, Max int64
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
	p.line(style.Paint(Bold, clean(o.title())))
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
	if o.Idle != nil && o.Idle.TimeoutFrom != aggregate.TimeoutRead {
		p.line(style.Paint(Dim, fmt.Sprintf("idle: of a timeout of %s, %s", units.Plural(uint64(o.Idle.Timeout), "second", "seconds"), o.timeoutFrom())))
	}
	p.frequent(o.Overview)
	return p.err
}

func (o Overview) title() string {
	text := fmt.Sprintf("%s: %s", o.Source, units.Plural(o.Entries, "entry", "entries"))
	if o.Filter != "" {
		text += " (" + o.Filter + ")"
	}
	return text
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
		few++ // it takes no more room than to say that there is one more
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
	lines := []line3{{{"ESTABLISHED, idle", Bold}, {"entries", Bold}, {"share", Bold}}}
	before := ""
	for _, step := range o.Idle.Steps {
		name := "longer"
		if step.AtMost > 0 {
			name = "up to " + span(step.AtMost)
			before = span(step.AtMost)
		} else if before != "" {
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

// timeoutFrom says how a timeout is known that nobody told.
func (o Overview) timeoutFrom() string {
	if o.Idle.TimeoutFrom == aggregate.TimeoutDefault {
		return "the kernel's default"
	}
	return "the longest that an entry has left"
}

// span is a whole time: 60 is 1 min.
func span(seconds uint32) string {
	switch {
	case seconds%86400 == 0:
		return fmt.Sprintf("%d d", seconds/86400)
	case seconds%3600 == 0:
		return fmt.Sprintf("%d h", seconds/3600)
	case seconds%60 == 0:
		return fmt.Sprintf("%d min", seconds/60)
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
	sources, destinations := frequentBlock("source", o.Sources), frequentBlock("destination", o.Destinations)
	if nameWidth(sources)+max(nameWidth(destinations), nameRight) <= max(screen, p.style.Columns)-namesRoom {
		p.besides(sources, destinations)
	} else {
		p.besides(sources, nil)
		p.besides(destinations, nil)
	}
	p.besides(frequentBlock("service", o.Services), nil)
}

// frequentBlock says in its head how many there are, and below how far it can be trusted.
func frequentBlock(one string, f aggregate.Frequent) []line3 {
	head := units.Plural(f.Different, one, one+"s")
	if f.Exact {
		return block(head, f.Top, len(f.Top))
	}
	return append(block("≥ "+head, f.Top, len(f.Top)), line3{{"≤ " + units.Count(f.Bound) + " too high", Warn}})
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
	// Source says in words which table it was, Filter what chose the entries.
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
	text := fmt.Sprintf("%s of %s", units.Plural(g.Entries(), "entry", "entries"), g.Source)
	if g.Filter != "" {
		text += " (" + g.Filter + ")"
	}
	text += ", "
	if !g.Exact() {
		text += "at least "
	}
	return text + units.Plural(g.Len(), "group", "groups") + " by " + strings.Join(g.names(), ", ")
}

// sketched says what the counts are worth where not all groups found room.
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

// JSON writes one document: the members of head, an object, and the groups. It does so
// group by group, as a million need not be in memory as text.
func (g Groups) JSON(w io.Writer, head any) error {
	text, err := json.MarshalIndent(head, "", "  ")
	if err != nil {
		return fmt.Errorf("encode %T as JSON: %w", head, err)
	}
	p := &printer{w: w}
	p.line(strings.TrimSuffix(string(escapeControls(text)), "\n}") + `,`)
	p.print(`  "groups": [`)
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

// object is one group: {"key": {"state": "TIME_WAIT", "dport": 80}, "entries": 12, "share": 0.5}.
func (g Groups) object(group aggregate.Group) (string, error) {
	var b strings.Builder
	b.WriteString(`{"key": {`)
	for i, name := range g.names() {
		value, err := json.Marshal(group.Value(i))
		if err != nil {
			return "", err
		}
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%q: %s", name, escapeControls(value))
	}
	fmt.Fprintf(&b, `}, "entries": %d, "share": %s`, group.Entries,
		strconv.FormatFloat(float64(group.Entries)/float64(g.Entries()), 'g', 6, 64))
	if group.Excess > 0 {
		fmt.Fprintf(&b, `, "too_high_at_most": %d`, group.Excess)
	}
	b.WriteByte('}')
	return b.String(), nil
}
