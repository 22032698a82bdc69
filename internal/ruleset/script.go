package ruleset

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/lazyregexp"
)

// statement is one of a script of nft: it ends at a semicolon, at the end of its line unless a set goes on in the next
// one, or at the bracket of the block that it opens.
type statement struct {
	text string
	// line is the one that it ends on.
	line int
	// opens: its block follows; closes: it is the bracket that ends one.
	opens, closes bool
	// handle is the number that nft -a prints behind it, 0 without.
	handle uint64
}

// scanner splits a script into statements.
type scanner struct {
	all  []statement
	text strings.Builder
	line int
	// blocks and sets are the brackets that are open, outer is the kind of the first one of blocks.
	blocks, sets int
	outer        string
	quoted       bool
	// begins: no word of the line has come yet.
	begins bool
	// handle is that of the statement.
	handle uint64
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
			comment, _, _ := strings.Cut(script[i:], "\n")
			if m := ofHandle.FindStringSubmatch(strings.TrimRight(comment, "\r")); m != nil {
				s.handle, _ = strconv.ParseUint(m[1], 10, 64)
			}
			if i += len(comment) - 1; s.blocks > 1 && s.sets == 0 {
				s.text.WriteString(notPrinted(s.text.String(), comment))
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

// What an nft without the libraries of iptables, or whose libraries cannot say it in nft's words, prints as a comment in the
// place of a match or a target of iptables: # xt_MASQUERADE, # policy match dir out pol ipsec.
var (
	ofHandle    = lazyregexp.New(` *# handle (\d+)$`)
	targetXT    = lazyregexp.New(`# xt_([A-Z0-9]+)`)
	matchXT     = lazyregexp.New(`# xt_(\w+)`)
	countedIn   = lazyregexp.New(`counter packets \d+ bytes \d+`)
	countedLast = lazyregexp.New(countedIn.String() + ` *$`)
	targetName  = lazyregexp.New(`^[A-Z0-9]{2,}\b`)
)

// notPrinted is such a comment behind the begin of a rule, as matches and targets that natkit does not know; empty for any
// other.
func notPrinted(before, comment string) string {
	comment = ofHandle.ReplaceAllString(comment, "")
	what := strings.TrimSpace(strings.TrimLeft(comment, "#"))
	switch {
	case strings.HasPrefix(comment, "# xt_"):
		return " " + matchXT.ReplaceAllString(targetXT.ReplaceAllString(comment, "xt target $1"), "xt match $1")
	case countedLast.MatchString(before) && targetName.MatchString(what):
		return " xt target " + what
	case countedIn.MatchString(what) && (strings.TrimSpace(before) != "" || strings.HasPrefix(what, "policy match ")):
		return " xt match " + what
	}
	return ""
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
		s.all = append(s.all, statement{text: text, line: s.line, opens: opens, handle: s.handle})
	}
	s.handle = 0
	s.text.Reset()
}

// open begins a block, or a set.
func (s *scanner) open() {
	kind, set := "", s.sets > 0 || s.blocks > 1 || s.blocks == 1 && s.outer != "table"
	if !set {
		kind = kindOf(s.text.String())
	}
	if set || hasSets[kind] {
		s.sets++
		s.text.WriteByte('{')
		return
	}
	if s.blocks == 0 {
		s.outer = kind
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

// kindOf is what a statement is about: its first word behind the verb.
func kindOf(text string) string {
	words := strings.Fields(text)
	if len(words) > 0 && slices.Contains(nftVerbs, words[0]) {
		words = words[1:]
	}
	if len(words) == 0 {
		return ""
	}
	return words[0]
}

// hasSets are the kinds of statements outside of chains whose brackets are those of sets.
var hasSets = map[string]bool{"define": true, "redefine": true, "rule": true, "element": true, "elements": true}

// nftVerbs are what commands of nft begin with; one without a verb adds.
var nftVerbs = []string{"add", "create", "insert", "replace", "delete", "destroy", "flush", "reset", "list", "rename", "monitor"}

// nftWords are the words of a statement: brackets are words of their own, and a list without brackets is one.
func nftWords(text string) ([]string, error) {
	var padded []byte
	quoted, comma, depth := false, false, 0
	for i := range len(text) {
		c := text[i]
		quoted = quoted != (c == '"')
		switch {
		case quoted || c == '"':
		case c == '{' || c == '}':
			depth += opened(text[i : i+1])
			padded = append(padded, ' ', c)
			c = ' '
		case c == ',' && depth == 0:
			padded = bytes.TrimRight(padded, " \t")
		case comma && depth == 0 && (c == ' ' || c == '\t'):
			continue
		}
		comma = !quoted && c == ','
		padded = append(padded, c)
	}
	return tokens(string(padded))
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
	verb, rest, _ := strings.Cut(strings.Replace(text, "\t", " ", 1), " ")
	switch verb {
	case "undefine":
		delete(d.values, strings.TrimSpace(rest))
		return true, nil
	case "define", "redefine":
	default:
		return false, nil
	}
	name, value, given := strings.Cut(rest, "=")
	if !given || strings.TrimSpace(value) == "" {
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
