package report

import (
	"iter"
	"math"
	"slices"
	"strings"
)

// Width is the number of columns that text is laid out for where nothing is known of
// who reads it.
const Width = 100

// Unlimited is a number of columns that no text fills.
const Unlimited = math.MaxInt32

// foldIndent is how much further in a row goes on in the next line.
const foldIndent = 2 * columnGap

// minWrap is what a wrapping column gets even where the others leave nothing.
const minWrap = 24

// grid is which columns of a table a line has, and how wide they are.
type grid struct {
	widths []int
	lines  [][]int
}

// parts are the lines of tables that are written one below the other.
func (l grid) parts(keys int) [][][]int {
	if keys == 0 {
		return [][][]int{l.lines}
	}
	var parts [][][]int
	for _, columns := range l.lines {
		parts = append(parts, [][]int{columns})
	}
	return parts
}

// grid fits the table into the Style's columns: first long words of the heads, then
// text, is broken; at last columns go into lines of their own. Where the reader's width
// is not known rows stay whole, for programs that read them.
func (t *Table) grid(style Style) grid {
	all := make([]int, len(t.Columns))
	for i := range all {
		all[i] = i
	}
	l := grid{t.natural(), [][]int{all}}
	width, room := style.columns(), minWrap
	if style.Columns > 0 {
		room = max(room, width*2/5) // beside long texts in the others
	}
	t.fill(l.widths, width, room)
	if style.Columns == 0 || t.used(l.widths) <= width {
		return l
	}
	full, least := t.squeezed()
	copy(l.widths, full)
	t.fill(l.widths, width, room)
	if t.shrink(l.widths, least, t.used(l.widths)-width) {
		return l
	}
	for i, c := range t.Columns {
		full[i] = min(max(full[i], textWidth(c.Head)), max(least[i], width-t.Indent-foldIndent))
	}
	copy(full, least[:t.Keys])
	return grid{full, t.fold(full, width)}
}

// natural are the widths that the cells ask for.
func (t *Table) natural() []int {
	widths := make([]int, len(t.Columns))
	for i, c := range t.Columns {
		widths[i] = max(c.Min, textWidth(clean(c.Head)))
	}
	for _, row := range t.rows {
		for i, cell := range row {
			widths[i] = max(widths[i], textWidth(cell.Text))
		}
	}
	return widths
}

// fill gives the wrapping column what the others leave of width, and some room at least.
func (t *Table) fill(widths []int, width, room int) {
	used := t.Indent
	for i, c := range t.Columns {
		if c.Wrap {
			widths[i] = min(widths[i], max(width-used, room))
		}
		used += widths[i] + columnGap
	}
}

// used is the width of the columns that have to stand beside each other.
func (t *Table) used(widths []int) int {
	used := t.Indent - columnGap
	for i, w := range widths {
		if !t.Columns[i].Below {
			used += w + columnGap
		}
	}
	return used
}

// squeezed are the widths with heads broken at spaces, and those with text broken, too.
func (t *Table) squeezed() (full, least []int) {
	full, least = make([]int, len(t.Columns)), make([]int, len(t.Columns))
	for i, c := range t.Columns {
		full[i] = longestWord(clean(c.Head))
		least[i] = full[i]
	}
	for _, row := range t.rows {
		for i, cell := range row {
			full[i] = max(full[i], textWidth(cell.Text))
			if t.Columns[i].Right {
				least[i] = full[i]
				continue
			}
			word := longestWord(cell.Text)
			if t.Columns[i].Wrap {
				word = min(word, minWrap)
			}
			least[i] = max(least[i], word)
		}
	}
	return full, least
}

func longestWord(text string) (width int) {
	for word := range strings.FieldsSeq(text) {
		width = max(width, textWidth(word))
	}
	return width
}

// shrink takes columns off the widest text, as long as something is left over; it
// reports whether that was enough.
func (t *Table) shrink(widths, least []int, over int) bool {
	slack := 0
	for i := range widths {
		if !t.Columns[i].Below {
			slack += max(widths[i]-least[i], 0)
		}
	}
	if slack < over {
		return false
	}
	for ; over > 0; over-- {
		widest := -1
		for i := range widths {
			if !t.Columns[i].Below && widths[i] > least[i] && (widest < 0 || widths[i] > widths[widest]) {
				widest = i
			}
		}
		widths[widest]--
	}
	return true
}

// fold returns the columns of each line.
func (t *Table) fold(widths []int, width int) [][]int {
	var keys []int
	start := t.Indent
	for i := range t.Keys {
		keys = append(keys, i)
		start += widths[i] + columnGap
	}
	lines := [][]int{slices.Clone(keys)}
	used := start
	for i := t.Keys; i < len(widths); i++ {
		if t.Columns[i].Below {
			continue
		}
		if line := len(lines) - 1; used+widths[i] > width && len(lines[line]) > len(keys) {
			lines = append(lines, slices.Clone(keys))
			used = start
			if t.Keys == 0 {
				used += foldIndent
			}
		}
		lines[len(lines)-1] = append(lines[len(lines)-1], i)
		used += widths[i] + columnGap
	}
	return lines
}

// fits reports whether a cell of the last column ends within the line.
func (t *Table) fits(widths []int, last Cell, width int) bool {
	used := t.Indent + textWidth(last.Text)
	for _, width := range widths[:len(widths)-1] {
		used += width + columnGap
	}
	return used <= width
}

// hang breaks a line that is wider than width at spaces; what follows stands below the
// text behind its label, or further in. A word that is too long stays whole. Escape
// sequences take no room.
func hang(line string, width int) []string {
	var lines []string
	indent := hangIndent(line, width)
	margin := strings.Repeat(" ", indent)
	for {
		at := breakAt(line, indent, width)
		if at < 0 {
			return append(lines, line)
		}
		lines = append(lines, strings.TrimRight(line[:at], " "))
		line = margin + strings.TrimLeft(line[at:], " ")
	}
}

// hangIndent returns where the text begins behind a label and two spaces or more, if that is
// in the first three fifths of the line.
func hangIndent(line string, width int) int {
	text := strings.TrimLeft(line, " ")
	lead := len(line) - len(text)
	if gap := strings.Index(text, "  "); gap > 0 {
		label := text[:gap]
		rest := strings.TrimLeft(text[gap:], " ")
		at := lead + screenWidth(label) + len(text) - gap - len(rest)
		if rest != "" && at <= width*3/5 {
			return at
		}
	}
	if lead == 0 {
		return 0
	}
	return min(lead+columnGap, width/2)
}

// breakAt is the last space behind the margin up to which line fits into width, or else
// the first one after that; -1 where it fits or has none.
func breakAt(line string, indent, width int) int {
	at, used := -1, 0
	for i, r := range visible(line) {
		if r == ' ' && used > indent && strings.TrimLeft(line[i:], " ") != "" {
			if used > width {
				if at < 0 {
					at = i
				}
				return at
			}
			at = i
		}
		used += runeWidth(r)
	}
	if used <= width {
		return -1
	}
	return at
}

// screenWidth is textWidth without escape sequences.
func screenWidth(text string) (width int) {
	for _, r := range visible(text) {
		width += runeWidth(r)
	}
	return width
}

// visible are the runes of a text, and where they are, without escape sequences.
func visible(text string) iter.Seq2[int, rune] {
	return func(yield func(int, rune) bool) {
		escape := false
		for i, r := range text {
			switch {
			case r == '\x1b':
				escape = true
			case escape:
				escape = r != 'm'
			case !yield(i, r):
				return
			}
		}
	}
}
