package ruleset

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// statement is one of a script of nft: it ends at a semicolon, at the end of its line unless a set goes on in the next
// one, or at the bracket of the block that it opens.
type statement struct {
	text string
	// line is the one that it ends on.
	line int
	// opens: its block follows; closes: it is the bracket that ends one.
	opens, closes bool
}

// scanner splits a script into statements.
type scanner struct {
	all  []statement
	text strings.Builder
	line int
	// blocks and sets are the brackets that are open.
	blocks, sets int
	quoted       bool
	// begins: no word of the line has come yet.
	begins bool
}

// statementsOf are those of a script, whose first line has this number. Comments are left out.
func statementsOf(script string, line int) []statement {
	s := scanner{line: line}
	for i := 0; i < len(script); i++ {
		switch c := script[i]; {
		case c == '\n':
			s.newline()
		case c == '"':
			s.quoted = !s.quoted
			s.text.WriteByte(c)
		case s.quoted:
			s.text.WriteByte(c)
		case c == '#':
			for i+1 < len(script) && script[i+1] != '\n' {
				i++
			}
		case c == '\\' && i+1 < len(script) && script[i+1] == '\n':
			i++
			s.line, s.begins = s.line+1, true
			s.text.WriteByte(' ')
		case c == '{':
			s.open()
		case c == '}':
			s.close()
		case c == ';' && s.sets == 0:
			s.end(false)
		case c == '\r' || s.begins && (c == ' ' || c == '\t'):
		default:
			s.begins = false
			s.text.WriteByte(c)
		}
	}
	s.end(false)
	return s.all
}

// newline ends a statement, but for one whose set goes on. No text in quotation marks has two lines.
func (s *scanner) newline() {
	if s.quoted = false; s.sets > 0 {
		s.text.WriteByte(' ')
	} else {
		s.end(false)
	}
	s.line, s.begins = s.line+1, true
}

func (s *scanner) end(opens bool) {
	if text := strings.TrimSpace(s.text.String()); opens || text != "" {
		s.all = append(s.all, statement{text: text, line: s.line, opens: opens})
	}
	s.text.Reset()
}

// open begins a block, or a set.
func (s *scanner) open() {
	if s.sets > 0 || s.blocks > 1 || hasSets(s.text.String()) {
		s.sets++
		s.text.WriteByte('{')
		return
	}
	s.blocks++
	s.end(true)
}

func (s *scanner) close() {
	if s.sets > 0 {
		s.sets--
		s.text.WriteByte('}')
		return
	}
	s.end(false)
	s.blocks = max(s.blocks-1, 0)
	s.all = append(s.all, statement{text: "}", line: s.line, closes: true})
}

// hasSets reports whether brackets in a statement outside of chains are those of sets.
func hasSets(text string) bool {
	words := strings.Fields(text)
	if len(words) > 0 && slices.Contains(nftVerbs, words[0]) {
		words = words[1:]
	}
	return len(words) > 0 && slices.Contains([]string{"define", "redefine", "rule", "element", "elements"}, words[0])
}

// nftVerbs are what commands of nft begin with; one without a verb adds.
var nftVerbs = []string{"add", "create", "insert", "replace", "delete", "destroy", "flush", "reset", "list", "rename", "monitor"}

// nftWords are the words of a statement: brackets are words of their own, and a list without brackets is one.
func nftWords(text string) ([]string, error) {
	var padded strings.Builder
	quoted := false
	for i := range len(text) {
		c := text[i]
		quoted = quoted != (c == '"')
		if !quoted && (c == '{' || c == '}') {
			padded.WriteString(" " + string(c) + " ")
			continue
		}
		padded.WriteByte(c)
	}
	words, err := tokens(padded.String())
	joined, depth := words[:0], 0
	for _, w := range words {
		last := len(joined) - 1
		if depth == 0 && last >= 0 && w != "" && (strings.HasSuffix(joined[last], ",") || w[0] == ',') {
			joined[last] += w
			continue
		}
		depth += opened(w)
		joined = append(joined, w)
	}
	return joined, err
}

// opened is 1 for a bracket that opens, -1 for one that closes.
func opened(word string) int {
	switch word {
	case "{":
		return 1
	case "}":
		return -1
	}
	return 0
}

// definitions are the values of names of a script.
type definitions struct {
	values map[string]string
	// grown is how many bytes values have added.
	grown int
}

// mostGrown bounds what definitions within definitions become.
const mostGrown = 1 << 20

var errDefinitions = errors.New("has definitions that become too long")

// take reads define, redefine and undefine; it reports whether the statement is one of these.
func (d *definitions) take(text string) (is bool, err error) {
	verb, rest, _ := strings.Cut(text, " ")
	switch verb {
	case "undefine":
		delete(d.values, strings.TrimSpace(rest))
		return true, nil
	case "define", "redefine":
	default:
		return false, nil
	}
	name, value, given := strings.Cut(rest, "=")
	if !given {
		return true, errors.New("defines no value")
	}
	value, err = d.resolve(strings.TrimSpace(value))
	if d.values == nil {
		d.values = map[string]string{}
	}
	if d.values[strings.TrimSpace(name)] = value; err != nil {
		delete(d.values, strings.TrimSpace(name))
	}
	return true, err
}

// resolve puts values in the place of $names. One that is a set adds its elements to the set that it stands in.
func (d *definitions) resolve(text string) (string, error) {
	if !strings.Contains(text, "$") {
		return text, nil
	}
	var b strings.Builder
	quoted, depth := false, 0
	for i := 0; i < len(text); i++ {
		c := text[i]
		quoted = quoted != (c == '"')
		if depth += opened(text[i : i+1]); quoted || c != '$' {
			b.WriteByte(c)
			continue
		}
		end := i + 1
		for end < len(text) && isNameByte(text[end]) {
			end++
		}
		value, known := d.values[text[i+1:end]]
		if !known {
			return "", fmt.Errorf("%s is defined nowhere in the text", text[i:end])
		}
		if depth > 0 {
			value = strings.TrimSuffix(strings.TrimPrefix(value, "{"), "}")
		}
		if d.grown += len(value); d.grown > mostGrown {
			return "", errDefinitions
		}
		b.WriteString(value)
		i = end - 1
	}
	return b.String(), nil
}

func isNameByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-' || c == '.' || c == '/'
}
