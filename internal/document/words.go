package document

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
)

// located is a fault at a place of the document; without one where the line is 0.
type located struct {
	line, column int
	message      string
}

func (l *located) Error() string { return l.message }

// Advice is an error of Scalar's read with more detail than that the text does not fit.
type Advice string

func (a Advice) Error() string { return string(a) }

// Scalar hands a plain value's text to read. Any failure becomes "expected …", with
// the words of an Advice after it.
func Scalar(n *yaml.Node, expected string, read func(string) error) error {
	n = resolve(n)
	switch n.Tag {
	case questionTag:
		return answerText(n, expected, read)
	case setTag:
		return setMisplaced(n, expected)
	}
	switch n.Kind {
	case yaml.SequenceNode:
		return at(n, "expected %s, found a list: one value is meant; repeat what it belongs to for each of the others", expected)
	case yaml.MappingNode:
		return at(n, "expected %s, found %s", expected, nodeWords(n))
	}
	if err := read(n.Value); err != nil {
		return at(n, "%s", Misfit(expected, n.Value, err))
	}
	return nil
}

// Misfit says what was expected in the place of a text, and an error's Advice.
func Misfit(expected, text string, err error) string {
	message := fmt.Sprintf("expected %s, found %q", expected, text)
	var advice Advice
	if errors.As(err, &advice) {
		message += ": " + advice.Error()
	}
	return message
}

// Unknown is an error about a word that is none of those that are known: an Advice
// where one of them is near.
func Unknown(word string, known ...string) error {
	if near := Nearest(word, known); near != "" {
		return Advice(fmt.Sprintf("did you mean %q?", near))
	}
	return unknownWord(known)
}

// List hands each item of a list, or a value that is none, to read: "one, or a list".
func List(n *yaml.Node, read func(item *yaml.Node) error) error {
	n = resolve(n)
	if n.Kind != yaml.SequenceNode {
		return read(n)
	}
	if n.Tag == questionTag {
		return answerList(n, read)
	}
	if len(n.Content) == 0 {
		return at(n, "expected at least one item, found an empty list")
	}
	for _, item := range n.Content {
		if err := read(item); err != nil {
			return err
		}
	}
	return nil
}

// Mapping reads a mapping into a struct by its tags, for a value that may be another kind
// of node as well.
func Mapping(n *yaml.Node, into any) error {
	if n.Tag == questionTag {
		return answerMapping(n, into)
	}
	d := decoder{whole: true, fields: map[reflect.Type]structFields{}, left: mostValues(0)}
	return d.value(n, reflect.ValueOf(into).Elem())
}

// At is a fault of a value, with its place.
func At(n *yaml.Node, message string) error { return at(n, "%s", message) }

// setTag marks the values that are names of Compose.Names; a document cannot have it.
const setTag = "!set"

// SetName is the name of what Compose.Names has that stands for a value, if one does. The reader of a value that asks
// for it takes sets; Scalar refuses them.
func SetName(n *yaml.Node) (name string, is bool) {
	n = resolve(n)
	return strings.TrimPrefix(n.Value, "$"), n.Tag == setTag
}

func setMisplaced(n *yaml.Node, expected string) error {
	return at(n, "expected %s, found %s, which is a set: write the value itself here, or give it a name below define", expected, n.Value)
}

// IsMapping reports whether a value is a mapping.
func IsMapping(n *yaml.Node) bool { return resolve(n).Kind == yaml.MappingNode }

// Shown is what a user gave, in quotes where it has characters that do not print, such as a line break.
func Shown(text string) string {
	if utf8.ValidString(text) && strings.TrimFunc(text, unicode.IsPrint) == "" {
		return text
	}
	return strconv.Quote(text)
}

// OneLine keeps what a file contains from flooding or steering the terminal.
func OneLine(message string) string {
	const most = 200
	clean := visible(message)
	if runes := []rune(clean); len(runes) > most {
		clean = string(runes[:most]) + "…"
	}
	return clean
}

// visible is the text with a space for each character that does not print.
func visible(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, text)
}

// lines are those of a text. The last one that was shown is kept as characters: of a
// file in one line all that there is to say is about that one.
type lines struct {
	text []byte
	// ends are where they end, found when the first one is asked for.
	ends  []uint32
	last  int
	runes []rune
}

func (l *lines) line(number int) []rune {
	if number != l.last {
		begin := 0
		if number > 1 {
			begin = int(l.ends[number-2]) + 1
		}
		l.last, l.runes = number, bytes.Runes(bytes.TrimSuffix(l.text[begin:l.ends[number-1]], []byte("\r")))
	}
	return l.runes
}

func (l *lines) index() {
	l.ends = make([]uint32, 0, bytes.Count(l.text, []byte("\n"))+1)
	for at, c := range l.text {
		if c == '\n' {
			l.ends = append(l.ends, uint32(at))
		}
	}
	l.ends = append(l.ends, uint32(len(l.text)))
}

// excerpt is a line, with a mark below the column that counts characters.
func (l *lines) excerpt(line, column int) string {
	const most, before = 60, 40
	if l.ends == nil {
		l.index()
	}
	if line > len(l.ends) {
		return ""
	}
	shown := l.line(line)
	column = min(column-1, len(shown))
	cut := max(column-before, 0)
	shown, column = shown[cut:], column-cut
	shown = shown[:min(len(shown), most)]
	number := fmt.Sprintf("%5d | ", line)
	return number + visible(string(shown)) + "\n" + strings.Repeat(" ", len(number)-2) + "| " + strings.Repeat(" ", column) + "^"
}
