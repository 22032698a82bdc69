package report

import (
	"io"
	"strings"
)

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
