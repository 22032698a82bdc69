package tui

import (
	"strings"

	"github.com/natkit/natkit/internal/report"
)

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

// fit cuts a line, or fills it with spaces, to exactly so many columns.
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

// beside puts right at the end of so many columns, where left leaves room for it.
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

// spark draws the newest values in so many columns, from 0 to top, or to the greatest
// one where top is 0.
func (h history) spark(columns int, top float64) string {
	if columns <= 0 {
		return ""
	}
	return report.Spark(h[max(len(h)-columns, 0):], top)
}

// bar is a part of a whole in so many columns. Anything above nothing is seen, and
// full is only what is all.
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
