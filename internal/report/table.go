package report

import (
	"fmt"
	"io"
	"strings"
	"unicode"

	"github.com/natkit/natkit/internal/units"
)

// columnGap separates columns.
const columnGap = 2

// Column describes a column of a Table.
type Column struct {
	Head string
	// Right aligns to the right, for numbers.
	Right bool
	// Wrap breaks long text into lines so that the table stays within the Style's. At
	// most one column, the last, may have it.
	Wrap bool
	// Below puts text that does not fit into the line on a line of its own, below
	// its row. Only the last column may have it.
	Below bool
	// Min is the least width, so that tables printed below each other line up.
	Min int
}

// Cell is one field of a Table.
type Cell struct {
	Text string
	Tone Tone
}

// Table is text in aligned columns.
type Table struct {
	Title   string
	Columns []Column
	// Indent is the left margin.
	Indent int
	// Keys is how many of the first columns say what a row is: where not all of the
	// others find room beside them, they come again beside the rest. Without any a row
	// goes on in the next line.
	Keys int
	rows [][]Cell
}

// Rows are those added.
func (t *Table) Rows() [][]Cell { return t.rows }

// Row adds a row of plain text; without any it adds an empty line.
func (t *Table) Row(cells ...string) { t.Cells(texts(cells...)...) }

// Cells adds a row. Missing cells at the end stay empty.
func (t *Table) Cells(cells ...Cell) {
	row := make([]Cell, len(cells))
	for i, c := range cells {
		row[i] = Cell{Text: clean(c.Text), Tone: c.Tone}
	}
	t.rows = append(t.rows, row)
}

// texts are cells of plain text.
func texts(texts ...string) []Cell {
	cells := make([]Cell, len(texts))
	for i, text := range texts {
		cells[i].Text = text
	}
	return cells
}

// addRows adds a row for each of list; where there are more than most (0: any number), one
// that has in column at how many there are besides.
func addRows[T any](t *Table, list []T, most, at int, row func(*T) []Cell) {
	for i := range list {
		if most > 0 && i == most {
			rest := make([]Cell, at+1)
			rest[at].Text = fmt.Sprintf("… and %s more", units.Count(len(list)-i))
			t.Cells(rest...)
			return
		}
		t.Cells(row(&list[i])...)
	}
}

// Write writes the title, the heads unless all are empty, and the rows.
func (t *Table) Write(w io.Writer, style Style) error {
	p := &printer{w: w, style: style}
	if t.Title != "" {
		p.line(style.Paint(Bold, clean(t.Title)))
	}
	l := t.grid(style)
	for i, columns := range l.parts(t.Keys) {
		if i > 0 {
			p.blank()
		}
		l.lines = columns
		if head, said := t.head(); said {
			t.writeRow(p, l, head)
		}
		for _, row := range t.rows {
			t.writeRow(p, l, row)
		}
	}
	return p.err
}

func (t *Table) head() (cells []Cell, said bool) {
	for _, c := range t.Columns {
		cells = append(cells, Cell{Text: clean(c.Head), Tone: Bold})
		said = said || c.Head != ""
	}
	return cells, said
}

// each writes the rows only, and lets after write below each.
func (t *Table) each(p *printer, after func(row int)) {
	l := t.grid(p.style)
	for i, row := range t.rows {
		t.writeRow(p, l, row)
		after(i)
	}
}

func (t *Table) writeRow(p *printer, l grid, row []Cell) {
	last := len(t.Columns) - 1
	whole := row
	below := len(row) == len(t.Columns) && t.Columns[last].Below && (len(l.lines) > 1 || !t.fits(l.widths, row[last], p.style.columns()))
	if below {
		row = row[:last]
	}
	for i, columns := range l.lines {
		indent := t.Indent
		if i > 0 {
			indent += foldIndent
		}
		t.writeLine(p, indent, l.widths, columns, row)
	}
	if below {
		for _, part := range wrap(whole[last].Text, p.style.columns()-t.Indent-columnGap) {
			p.line(strings.Repeat(" ", t.Indent+columnGap) + p.style.Paint(whole[last].Tone, part))
		}
	}
}

// writeLine writes some columns of a row, in more than one line where a cell is wider
// than its column.
func (t *Table) writeLine(p *printer, indent int, widths, columns []int, row []Cell) {
	lines := 1
	parts := make([][]string, len(row))
	for _, i := range columns {
		if i >= len(row) {
			break
		}
		parts[i] = []string{row[i].Text}
		if t.Columns[i].Wrap || textWidth(row[i].Text) > widths[i] {
			parts[i] = wrap(row[i].Text, widths[i])
		}
		lines = max(lines, len(parts[i]))
	}
	for n := range lines {
		line := strings.Repeat(" ", indent)
		pending := 0 // spaces owed before the next text, so that no line ends in blanks
		for _, i := range columns {
			if i >= len(row) {
				break
			}
			text := ""
			if n < len(parts[i]) {
				text = parts[i][n]
			}
			room := max(widths[i]-textWidth(text), 0)
			if t.Columns[i].Right {
				pending, room = pending+room, 0
			}
			if text != "" {
				line += strings.Repeat(" ", pending) + p.style.Paint(row[i].Tone, text)
				pending = 0
			}
			pending += room + columnGap
		}
		if n > 0 || len(row) == 0 || strings.TrimSpace(line) != "" {
			p.line(line)
		}
	}
}

// wrap breaks text at spaces into lines of at most width columns, and a longer word
// behind a sign, or anywhere. There is always at least one line.
func wrap(text string, width int) []string {
	width = max(width, 1)
	var lines []string
	var line strings.Builder
	used := 0 // columns of line
	end := func() {
		lines = append(lines, line.String())
		line.Reset()
		used = 0
	}
	for _, word := range unbroken(text) {
		wordWidth := textWidth(word)
		if used > 0 && used+1+wordWidth > width {
			end()
		}
		if used > 0 {
			line.WriteByte(' ')
			used++
		}
		for wordWidth > width {
			head := beginning(word, width)
			line.WriteString(head)
			end()
			word = word[len(head):]
			wordWidth -= textWidth(head)
		}
		line.WriteString(word)
		used += wordWidth
	}
	if line.Len() > 0 || len(lines) == 0 {
		end()
	}
	return lines
}

// unbroken are the words of text; a % stays with its number.
func unbroken(text string) (words []string) {
	for fields := strings.Fields(text); len(fields) > 0; {
		n := 1
		for n < len(fields) && fields[n][0] == '%' {
			n++
		}
		words, fields = append(words, strings.Join(fields[:n], " ")), fields[n:]
	}
	return words
}

// beginning is as much of a word as fits into width columns, up to a sign in its
// second half if there is one.
func beginning(word string, width int) string {
	head := truncateExact(word, width)
	if sign := strings.LastIndexAny(head, "/.,:;=_-+>"); sign >= len(head)/2 {
		return head[:sign+1]
	}
	return head
}

func padRight(text string, width int) string {
	return text + strings.Repeat(" ", max(width-textWidth(text), 0))
}

// textWidth is the number of terminal columns: none for combining marks, two
// for the wide characters of East Asia and emoji.
func textWidth(text string) int {
	width := 0
	for _, r := range text {
		width += runeWidth(r)
	}
	return width
}

func runeWidth(r rune) int {
	switch {
	case unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf):
		return 0
	case r >= 0x1100 && r <= 0x115f, r >= 0x2e80 && r <= 0xa4cf, r >= 0xac00 && r <= 0xd7a3,
		r >= 0xf900 && r <= 0xfaff, r >= 0xfe30 && r <= 0xfe6f, r >= 0xff00 && r <= 0xff60,
		r >= 0xffe0 && r <= 0xffe6, r >= 0x1f300 && r <= 0x1faff, r >= 0x20000 && r <= 0x3fffd:
		return 2
	}
	return 1
}

// truncate shortens text to width columns (three at least), with an ellipsis
// where it was longer.
func truncate(text string, width int) string {
	if textWidth(text) <= width {
		return text
	}
	return truncateExact(text, width-1) + "…"
}

// truncateExact is the longest beginning of text that fits into width columns,
// and at least one character.
func truncateExact(text string, width int) string {
	used := 0
	for i, r := range text {
		used += runeWidth(r)
		if used > width && i > 0 {
			return text[:i]
		}
	}
	return text
}
