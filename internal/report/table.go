package report

import (
	"io"
	"strings"
	"unicode"
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
	rows   [][]Cell
}

// Row adds a row of plain text; without any it adds an empty line.
func (t *Table) Row(texts ...string) {
	cells := make([]Cell, len(texts))
	for i, text := range texts {
		cells[i].Text = text
	}
	t.Cells(cells...)
}

// Cells adds a row. Missing cells at the end stay empty.
func (t *Table) Cells(cells ...Cell) {
	row := make([]Cell, len(cells))
	for i, c := range cells {
		row[i] = Cell{Text: clean(c.Text), Tone: c.Tone}
	}
	t.rows = append(t.rows, row)
}

// Write writes the title, the heads unless all are empty, and the rows.
func (t *Table) Write(w io.Writer, style Style) error {
	p := &printer{w: w, style: style}
	if t.Title != "" {
		p.line(style.Paint(Bold, clean(t.Title)))
	}
	widths := t.widths(style.columns())
	head := make([]Cell, len(t.Columns))
	hasHead := false
	for i, c := range t.Columns {
		head[i] = Cell{Text: clean(c.Head), Tone: Bold}
		hasHead = hasHead || c.Head != ""
	}
	if hasHead {
		t.writeRow(p, widths, head)
	}
	for _, row := range t.rows {
		t.writeRow(p, widths, row)
	}
	return p.err
}

// each writes the rows only, and lets after write below each.
func (t *Table) each(p *printer, after func(row int)) {
	widths := t.widths(p.style.columns())
	for i, row := range t.rows {
		t.writeRow(p, widths, row)
		after(i)
	}
}

// widths are the columns' widths; the wrapping one takes what the others leave of width.
func (t *Table) widths(width int) []int {
	widths := make([]int, len(t.Columns))
	for i, c := range t.Columns {
		widths[i] = max(c.Min, textWidth(clean(c.Head)))
	}
	for _, row := range t.rows {
		for i, cell := range row {
			widths[i] = max(widths[i], textWidth(cell.Text))
		}
	}
	used := t.Indent
	for i, c := range t.Columns {
		if c.Wrap {
			widths[i] = min(widths[i], max(width-used, minWrap))
		}
		used += widths[i] + columnGap
	}
	return widths
}

// minWrap is what a wrapping column gets even where the others leave nothing.
const minWrap = 24

func (t *Table) writeRow(p *printer, widths []int, row []Cell) {
	if last := len(t.Columns) - 1; len(row) == len(t.Columns) && t.Columns[last].Below && !t.fits(widths, row[last], p.style.columns()) {
		t.writeRow(p, widths, row[:last])
		for _, part := range wrap(row[last].Text, p.style.columns()-t.Indent-columnGap) {
			p.line(strings.Repeat(" ", t.Indent+columnGap) + p.style.Paint(row[last].Tone, part))
		}
		return
	}
	lines := 1
	parts := make([][]string, len(row))
	for i, cell := range row {
		parts[i] = []string{cell.Text}
		if t.Columns[i].Wrap {
			parts[i] = wrap(cell.Text, widths[i])
		}
		lines = max(lines, len(parts[i]))
	}
	for n := range lines {
		line := strings.Repeat(" ", t.Indent)
		pending := 0 // spaces owed before the next text, so that no line ends in blanks
		for i := range row {
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
		p.line(line)
	}
}

// fits tells whether a cell of the last column ends within the line.
func (t *Table) fits(widths []int, last Cell, width int) bool {
	used := t.Indent + textWidth(last.Text)
	for _, width := range widths[:len(widths)-1] {
		used += width + columnGap
	}
	return used <= width
}

// wrap breaks text at spaces into lines of at most width columns; a longer word
// is broken anywhere. There is always at least one line.
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
	for _, word := range strings.Fields(text) {
		wordWidth := textWidth(word)
		if used > 0 && used+1+wordWidth > width {
			end()
		}
		if used > 0 {
			line.WriteByte(' ')
			used++
		}
		for wordWidth > width {
			head := truncateExact(word, width)
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
