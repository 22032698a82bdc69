package document

import "bytes"

// deepest is how many brackets and lists may be in each other: with each of them the
// parser calls itself, and its memory grows with the square of their number.
const deepest = 500

// deep tells whether the text may have more than that. It takes brackets in strings and
// comments for brackets, too, of which that many do not stay open by chance. What is
// nested by indentation is bounded by the text's length.
func deep(text []byte) bool {
	open := 0
	for line := range bytes.Lines(text) {
		lists := 0
		for rest := bytes.TrimLeft(line, " "); len(rest) > 1 && (rest[0] == '-' || rest[0] == '?') && rest[1] == ' '; {
			lists++
			rest = bytes.TrimLeft(rest[1:], " ")
		}
		for _, c := range line {
			switch c {
			case '[', '{':
				open++
			case ']', '}':
				open = max(open-1, 0)
			}
			if open+lists > deepest {
				return true
			}
		}
	}
	return false
}
