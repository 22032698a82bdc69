package tui

import (
	"fmt"
	"strings"

	"github.com/natkit/natkit/internal/report"
)

// The least that anything can be shown in, and what all panels at once need.
const (
	leastWidth, leastHeight = 30, 6
	wholeWidth, wholeHeight = 72, 18
)

// View draws all lines of the screen, without an end of line behind the last one.
func (m Model) View() string {
	return m.draw(m.lines())
}

// Frame is the sample as text for a file: without keys, and only as long as needed.
func (m Model) Frame() string {
	m.mode, m.message = screen, ""
	lines := append(m.head(), m.body(m.height-len(m.head()))...)
	for len(lines) > 0 && lines[len(lines)-1].blank() {
		lines = lines[:len(lines)-1]
	}
	return m.draw(lines) + "\n"
}

func (l line) blank() bool {
	for _, s := range l {
		if strings.TrimSpace(s.text) != "" {
			return false
		}
	}
	return true
}

func (m Model) draw(lines []line) string {
	painted := make([]string, len(lines))
	for i, l := range lines {
		painted[i] = l.fit(m.width).paint(m.theme)
	}
	return strings.Join(painted, "\n")
}

// lines are as many as the screen is high.
func (m Model) lines() []line {
	if m.width < leastWidth || m.height < leastHeight {
		text := fmt.Sprintf("%d×%d is too small: natkit top needs %d×%d", m.width, m.height, leastWidth, leastHeight)
		return wrapped(text, m.width, m.height, report.Warn)
	}
	var top, middle []line
	switch m.mode {
	case help:
		top = []line{{{text: "natkit top: keys", tone: report.Bold}}, nil}
		middle = m.helpBody(m.height - len(top) - 1)
	case spaces:
		top = []line{{{text: "network namespaces", tone: report.Bold}}, nil}
		middle = m.spacesBody(m.height - len(top) - 1)
	default:
		top = m.head()
		middle = m.body(m.height - len(top) - 1)
	}
	lines := append(top, middle...)
	for len(lines) < m.height-1 {
		lines = append(lines, nil)
	}
	return append(lines[:m.height-1], m.foot())
}

// whole reports whether all panels have room.
func (m Model) whole() bool { return m.width >= wholeWidth && m.height >= wholeHeight }

// bands are the panels that stand beside each other.
var bands = [][]panelID{{states, protocols, counters}, {drops, ports}, {sources, services}}

// body returns height lines of panels, or of the focused panel alone.
func (m Model) body(height int) []line {
	if !m.whole() || m.zoomed {
		return m.panel(m.focus, m.width, height)
	}
	var lines []line
	for i, band := range bands {
		share := (height - len(lines)) / (len(bands) - i)
		lines = append(lines, m.band(band, share)...)
	}
	return lines
}

// gap separates panels.
const gap = 2

func (m Model) band(ids []panelID, height int) []line {
	lines := make([]line, height)
	left := m.width
	for i, id := range ids {
		width := (left - gap*(len(ids)-i-1)) / (len(ids) - i)
		for n, l := range m.panel(id, width, height) {
			if i > 0 {
				lines[n] = append(lines[n], span{text: strings.Repeat(" ", gap)})
			}
			lines[n] = append(lines[n], l.fit(width)...)
		}
		left -= width + gap
	}
	return lines
}

// panel is its title and what fits below it, exactly height lines.
func (m Model) panel(id panelID, width, height int) []line {
	c := m.rows(id)
	lines := []line{m.title(id, c, width, height-1)}
	if len(c.rows) == 0 {
		lines = append(lines, wrapped(c.note, width, height-1, report.Dim)...)
	}
	offset := min(m.offset[id], max(len(c.rows)-1, 0))
	lines = append(lines, rowLines(c.rows[offset:], width, height-1)...)
	for len(lines) < height {
		lines = append(lines, nil)
	}
	return lines[:max(height, 0)]
}

// title shows the key that selects the panel, and the visible rows if not all are.
func (m Model) title(id panelID, c content, width, room int) line {
	tone := report.Bold
	if id == m.focus {
		tone = "1;7" // reverse video
	}
	text := fmt.Sprintf("%d %s", id+1, c.title)
	if id == m.focus && !m.theme.Colour {
		text = "[" + text + "]"
	}
	var notes []string
	if m.byName[id] {
		notes = append(notes, "by name")
	}
	if offset := m.offset[id]; len(c.rows) > room || offset > 0 {
		notes = append(notes, fmt.Sprintf("%d–%d of %d", min(offset+1, len(c.rows)), min(offset+room, len(c.rows)), len(c.rows)))
	}
	return beside(line{{text, tone}}, line{{strings.Join(notes, ", "), report.Dim}}, width)
}

// rowLines has the values of all rows in columns, and names in what these leave. Where
// names do not fit, values make room, the first ones first; the last stays.
func rowLines(rows []row, width, height int) []line {
	rows = rows[:min(len(rows), max(height, 0))]
	columns, longest := columnsOf(rows)
	first, used := 0, 0
	for _, c := range columns {
		used += valueGap + c
	}
	for first < len(columns)-1 && longest+used > width {
		used -= valueGap + columns[first]
		first++
	}
	var lines []line
	for _, r := range rows {
		right := ""
		for i := first; i < len(r.values); i++ {
			right += strings.Repeat(" ", valueGap+columns[i]-report.TextWidth(r.values[i])) + r.values[i]
		}
		room := max(width-report.TextWidth(right), 0)
		lines = append(lines, append(line{{r.name + r.called, r.tone}}.fit(room), span{right, r.tone}))
	}
	return lines
}

// valueGap separates values.
const valueGap = 1

// columnsOf are the widths of values, and of the longest name.
func columnsOf(rows []row) (columns []int, longest int) {
	for _, r := range rows {
		longest = max(longest, report.TextWidth(report.Clean(r.name)))
		for i, v := range r.values {
			if i == len(columns) {
				columns = append(columns, 0)
			}
			columns[i] = max(columns[i], report.TextWidth(v))
		}
	}
	return columns, longest
}

// wrapped breaks text into lines of at most width columns.
func wrapped(text string, width, height int, tone report.Tone) []line {
	var lines []line
	for _, part := range report.Wrap(report.Clean(text), width) {
		if len(lines) == height {
			break
		}
		lines = append(lines, line{{part, tone}})
	}
	return lines
}

// span is text in a tone. It may hold anything: it is made harmless when it is drawn.
type span struct {
	text string
	tone report.Tone
}

// line is spans beside each other.
type line []span

func plain(text string) line { return line{{text: text}} }

// width is the number of columns.
func (l line) width() int {
	n := 0
	for _, s := range l {
		n += report.TextWidth(report.Clean(s.text))
	}
	return n
}

// fit cuts a line, or pads it with spaces, to exactly the given number of columns.
func (l line) fit(columns int) line {
	out := make(line, 0, len(l)+1)
	left := columns
	for _, s := range l {
		text := report.Truncate(report.Clean(s.text), left)
		left -= report.TextWidth(text)
		out = append(out, span{text, s.tone})
		if left <= 0 {
			break
		}
	}
	if left > 0 {
		out = append(out, span{text: strings.Repeat(" ", left)})
	}
	return out
}

// beside aligns right to the given number of columns, if left leaves room for it.
func beside(left, right line, columns int) line {
	gap := columns - left.width() - right.width()
	if gap < 2 {
		return left.fit(columns)
	}
	return append(append(left[:len(left):len(left)], span{text: strings.Repeat(" ", gap)}), right...).fit(columns)
}

// paint is the line for a terminal; trailing spaces are left out.
func (l line) paint(theme Theme) string {
	var b strings.Builder
	for _, s := range l {
		b.WriteString(theme.Paint(s.tone, report.Clean(s.text)))
	}
	text := strings.TrimRight(b.String(), " ")
	if theme.ASCII {
		return ascii(text)
	}
	return text
}

// asciiOf are the characters that the screen draws with, for terminals that cannot
// show them. Each is as wide as the other.
var asciiOf = map[rune]rune{
	'–': '-', '…': '~', '±': '+', '≈': '~', '→': '>', '·': '-', '█': '#', '░': '.', '▏': '|', '▕': '|', '─': '-', '×': 'x',
	'▁': '_', '▂': '_', '▃': '.', '▄': '-', '▅': '=', '▆': '+', '▇': '*', '▶': '>', '▲': '^', '▼': 'v', '↑': '^', '↓': 'v', '’': '\'',
}

// ascii keeps the width: what is two columns wide becomes two characters.
func ascii(text string) string {
	return strings.Map(func(r rune) rune {
		if r < 0x80 {
			return r
		}
		if c, ok := asciiOf[r]; ok {
			return c
		}
		return '?'
	}, text)
}

// spark draws the newest values, one a column, scaled from 0 to top, or to the greatest
// value if top is 0.
func (h history) spark(columns int, top float64) string {
	if columns <= 0 {
		return ""
	}
	return report.Spark(h[max(len(h)-columns, 0):], top)
}

// bar draws a share of the given number of columns. A share above 0 is always visible,
// and only a share of 1 fills the bar.
func bar(share float64, columns int) string {
	if columns <= 0 {
		return ""
	}
	filled := int(share * float64(columns))
	if share > 0 {
		filled = max(filled, 1)
	}
	filled = min(max(filled, 0), columns)
	return strings.Repeat("█", filled) + strings.Repeat("░", columns-filled)
}
