package document

import (
	"bytes"
	"fmt"
	"io"

	"go.yaml.in/yaml/v4"
)

// What may be in a document. The YAML library keeps some 200 bytes for each value, and
// until a bracket is closed 600 for each word and sign in it.
const (
	// deepest is how many brackets, lists and mappings may be in each other.
	deepest = 500
	// mostParts is how many values there may be, as separates counts: those of 50,000
	// rules of a gateway.
	mostParts = 800_000
	// mostInBrackets is how many words and signs may be in one pair of brackets.
	mostInBrackets = 300_000
)

// meter hands a text to the YAML library and counts, while it reads, what it will keep: no
// value begins without a sign that counts. The library asks for a few hundred bytes at
// a time, so that it is stopped before it has kept more than it may.
type meter struct {
	text     []byte
	at       int
	brackets bool
	parts    int
	// within is counted from where the last outermost bracket was opened.
	within int
	over   error
}

// Read is io.Reader's.
func (m *meter) Read(p []byte) (int, error) {
	if m.at == len(m.text) {
		return 0, io.EOF
	}
	n := copy(p, m.text[m.at:])
	for i, c := range p[:n] {
		if (c == '-' || c == ':' || c == '?') && !m.endsWord(m.at+i+1) {
			continue
		}
		m.parts += int(separates[c])
		m.within += int(separates[c] | delimits[c])
	}
	m.at += n
	switch {
	case m.parts > mostParts:
		m.over = m.stop("too many values: at most %d are read, each sign that separates two counted", mostParts)
	case m.brackets && m.within > mostInBrackets:
		m.over = m.stop("too many values in one pair of brackets: at most %d words and signs; write lists as lines that begin with a hyphen", mostInBrackets)
	}
	return n, m.over
}

// endsWord reports whether a blank, a line break or the end may be there. Without one
// behind it, a hyphen, a colon or a question mark begins nothing, or only what another
// sign counts for.
func (m *meter) endsWord(at int) bool {
	return at >= len(m.text) || m.text[at] <= ' ' || m.text[at] >= 0x80
}

// nested is called where a bracket, a list or a mapping begins in those around it.
func (m *meter) nested(depth int, of *yaml.DepthContext) error {
	if depth > deepest {
		return fmt.Errorf("exceeded max depth of %d", deepest)
	}
	if m.brackets = of.Kind == yaml.DepthKindFlow; !m.brackets || depth == 1 {
		m.within = 0
	}
	return nil
}

func (m *meter) stop(format string, most int) error {
	return &located{1 + bytes.Count(m.text[:m.at], []byte("\n")), 1, fmt.Sprintf(format, most)}
}

// separates is how many values may begin with a sign: two behind the comma of {a, b}. A
// comment takes as much room, and the library compares each directive with all others.
var separates = [256]uint8{'-': 1, ':': 2, '?': 2, '[': 1, '{': 1, ',': 2, '#': 2, '%': 100}

// delimits are the other signs with which a word may begin or end in brackets, among
// them the last bytes of line breaks (YAML 1.1, 5.4).
var delimits = [256]uint8{']': 1, '}': 1, '"': 1, '\'': 1, '&': 1, '*': 1, '!': 1, '\n': 1, '\r': 1, 0x85: 1, 0xa8: 1, 0xa9: 1}
