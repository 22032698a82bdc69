package document

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
)

// located is a fault at a known place.
type located struct {
	mark    yaml.Mark
	message string
}

func (l *located) Error() string { return l.message }

func at(n *yaml.Node, format string, args ...any) *located {
	return &located{mark(n), fmt.Sprintf(format, args...)}
}

// Advice is an error of Scalar's read that says more than that the text does not fit.
type Advice string

func (a Advice) Error() string { return string(a) }

// Scalar hands a plain value's text to read. Any failure becomes "expected …", with
// the words of an Advice after it.
func Scalar(n *yaml.Node, expected string, read func(string) error) error {
	value := resolve(n)
	if value.Kind != yaml.ScalarNode {
		return at(n, "expected %s", expected)
	}
	err := read(value.Value)
	if err == nil {
		return nil
	}
	message := fmt.Sprintf("expected %s, found %q", expected, value.Value)
	var advice Advice
	if errors.As(err, &advice) {
		message += ": " + advice.Error()
	}
	return at(n, "%s", message)
}

// List hands each item of a list, or a value that is none, to read: "one, or a list".
func List(n *yaml.Node, read func(item *yaml.Node) error) error {
	list := resolve(n)
	if list.Kind != yaml.SequenceNode {
		return read(n)
	}
	if len(list.Content) == 0 {
		return at(n, "expected one or more, found an empty list")
	}
	for _, item := range list.Content {
		if err := read(item); err != nil {
			return err
		}
	}
	return nil
}

// explain turns the YAML library's errors into a place and words.
func (s Source) explain(err error) error {
	var own *located
	var load *yaml.LoadError
	switch {
	case !errors.As(err, &load):
		return s.fail(yaml.Mark{}, "%s", err.Error())
	case errors.As(load, &own):
		return s.fail(own.mark, "%s", own.message)
	}
	at := load.Mark
	if at.Line == 0 { // bytes that are no text
		before := s.Text[:min(max(at.Index, 0), len(s.Text))]
		line := before[bytes.LastIndexByte(before, '\n')+1:]
		at.Line, at.Column = bytes.Count(before, []byte("\n"))+1, utf8.RuneCount(line)+1
	}
	return s.fail(at, "%s", hint(load.Message, s.at(at)))
}

// at is the character at a place; 0 where the line ends.
func (s Source) at(place yaml.Mark) rune {
	all := lines{text: bytes.Split(s.Text, []byte("\n"))}
	if place.Line <= len(all.text) && place.Column <= len(all.line(place.Line)) {
		return all.line(place.Line)[max(place.Column, 1)-1]
	}
	return 0
}

// hint says what to do where the library's words leave one alone.
func hint(message string, found rune) string {
	switch {
	case found == '\t':
		return "found a tab; expected spaces"
	case strings.HasPrefix(message, "exceeded max depth"):
		return tooDeep
	case strings.HasPrefix(message, "mapping values are not allowed"):
		return message + "; expected every key of a mapping at the same indentation"
	case strings.HasPrefix(message, "did not find expected") && found == ':':
		return message + "; text that begins with a bracket stands in quotes: \"[fd00::2]:80\""
	}
	return message
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

func kindWords(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "a whole number"
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.Struct, reflect.Map, reflect.Pointer:
		return "a mapping (key: value)"
	default:
		return "text"
	}
}

func nodeWords(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping (key: value)"
	case yaml.SequenceNode:
		return "a list"
	}
	switch n.ShortTag() {
	case "!!int", "!!float":
		return "a number"
	case "!!bool":
		return "true or false"
	case "!!null":
		return "nothing"
	}
	return "text"
}

// lines are those of a text. The last one that was shown is kept as characters: of a
// file in one line all that there is to say is about that one.
type lines struct {
	text  [][]byte
	last  int
	runes []rune
}

func (l *lines) line(number int) []rune {
	if number != l.last {
		l.last, l.runes = number, bytes.Runes(bytes.TrimSuffix(l.text[number-1], []byte("\r")))
	}
	return l.runes
}

// excerpt is a line, with a mark below the column that counts characters.
func (l *lines) excerpt(line, column int) string {
	const most, before = 60, 40
	if line > len(l.text) {
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
