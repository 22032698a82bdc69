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
