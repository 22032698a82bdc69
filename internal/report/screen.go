package report

import (
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// Clean makes control characters in text from elsewhere visible, and takes line
// ends for spaces: see clean.
func Clean(text string) string { return clean(text) }

// TextWidth is the number of terminal columns that text takes.
func TextWidth(text string) int { return textWidth(text) }

// Truncate shortens text to width columns, with an ellipsis where it was longer.
func Truncate(text string, width int) string {
	switch {
	case width <= 0:
		return ""
	case width == 1 && textWidth(text) > 1:
		return "…"
	}
	return truncate(text, width)
}

// Wrap breaks text at spaces into lines of at most width columns.
func Wrap(text string, width int) []string { return wrap(text, width) }

// Fit breaks lines that are wider than the screen, where its width is known; they go on
// below their text.
func (s Style) Fit(text string) string {
	if s.Columns <= 0 {
		return text
	}
	var out []string
	for line := range strings.SplitSeq(text, "\n") {
		out = append(out, hang(line, s.Columns)...)
	}
	return strings.Join(out, "\n")
}

// Reflow lays prose out anew for a screen: paragraphs are filled, and other lines that
// are too wide go on below their text.
func Reflow(text string, width int) string {
	var out, paragraph []string
	end := func() {
		if len(paragraph) > 0 {
			out = append(out, hang(strings.Join(paragraph, " "), width)...)
			paragraph = nil
		}
	}
	for line := range strings.SplitSeq(text, "\n") {
		if prose := line != "" && line[0] != ' ' && !strings.Contains(line, "  ") && !strings.HasSuffix(line, ":"); prose {
			paragraph = append(paragraph, line)
			continue
		}
		if strings.HasSuffix(line, ":") && line[0] != ' ' {
			paragraph = append(paragraph, line)
			end()
			continue
		}
		end()
		out = append(out, hang(line, width)...)
	}
	end()
	return strings.Join(out, "\n")
}

// Style is how text may be formatted.
type Style struct {
	// Colour allows ANSI escape sequences.
	Colour bool
	// Columns that everything has to fit into, if it can; 0, for a pipe, stands for text
	// in Width columns and tables as wide as they are. Unlimited breaks nothing.
	Columns int
	// Names, where set, are written behind addresses.
	Names *snapshot.Names
}

func (s Style) columns() int {
	if s.Columns > 0 {
		return s.Columns
	}
	return Width
}

// Tone is how a piece of text stands out where colour is allowed.
type Tone string

// The tones, as parameters of the ANSI sequence SGR.
const (
	Plain Tone = ""
	Bold  Tone = "1"
	Dim   Tone = "2"
	Good  Tone = "32"
	Warn  Tone = "33"
	Bad   Tone = "31"
	// Alarm is for what loses connections now.
	Alarm Tone = "1;31"
)

// Paint gives text a tone, or returns it as it is.
func (s Style) Paint(tone Tone, text string) string {
	if !s.Colour || tone == Plain || text == "" {
		return text
	}
	return "\x1b[" + string(tone) + "m" + text + "\x1b[0m"
}

// WantsColour decides by what the user asked for: NO_COLOR (no-color.org) forbids
// colour, CLICOLOR_FORCE (bixense.com/clicolors) wants it even in a pipe, and
// without either it is for terminals that are not dumb.
func WantsColour(isTerminal bool, getenv func(string) string) bool {
	if getenv("NO_COLOR") != "" {
		return false
	}
	if force := getenv("CLICOLOR_FORCE"); force != "" && force != "0" {
		return true
	}
	return isTerminal && getenv("TERM") != "dumb"
}

// inASCII has for what reports are written with, and a terminal without UTF-8 cannot
// show, something that it can.
var inASCII = strings.NewReplacer("─", "-", "►", ">", "◄", "<", "│", "|", "…", "...", "–", "-", "·", ".", "µ", "u", "×", "x",
	"±", "+-", "≈", "~", "≤", "<=", "≥", ">=", "§", "section ", "Δ", "d", "→", "->")

// ASCII is a writer that keeps to 7 bits: whole lines of text in UTF-8 go in.
func ASCII(w io.Writer) io.Writer { return asciiWriter{w} }

type asciiWriter struct{ w io.Writer }

func (a asciiWriter) Write(text []byte) (int, error) {
	plain := strings.Map(func(r rune) rune {
		if r >= 0x80 {
			return '?'
		}
		return r
	}, inASCII.Replace(string(text)))
	if _, err := io.WriteString(a.w, plain); err != nil {
		return 0, err
	}
	return len(text), nil
}

// Value writes an observed value, a number or a string, with its unit.
func Value(value any, unit string) string {
	number, unit := valueParts(value, unit)
	switch {
	case unit == "":
		return number
	case strings.HasPrefix(unit, "/"):
		return number + unit
	}
	return number + " " + unit
}

// valueParts writes the number and the unit apart, so that numbers can stand in
// a column. Bytes are also given in the unit that people think in.
func valueParts(value any, unit string) (number, unitText string) {
	v, isNumber := asFloat(value)
	switch {
	case !isNumber:
		return fmt.Sprint(value), unit
	case unit == "bytes" && math.Abs(v) >= 1024:
		unit = "bytes (" + units.Bytes(v) + ")"
	}
	if v == math.Trunc(v) && math.Abs(v) < 1<<53 {
		return units.Fixed(v, 0), unit
	}
	text := units.Rate(v)
	if strings.Contains(text, ".") {
		text = strings.TrimRight(strings.TrimRight(text, "0"), ".")
	}
	return text, unit
}

func asFloat(value any) (float64, bool) {
	switch v := value.(type) {
	case int:
		return float64(v), true
	case int64:
		return float64(v), true
	case uint64:
		return float64(v), true
	case float64:
		return v, true
	}
	return 0, false
}

// Bytes writes an amount of memory: 1.4 MiB.
func Bytes(n float64) string { return units.Bytes(n) }
