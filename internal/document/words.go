package document

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"unicode"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// located is a fault at a known place.
type located struct {
	token   *token.Token
	message string
}

func (l *located) Error() string { return l.message }

// Advice is an error of Scalar's read that says more than that the text does not fit.
type Advice string

func (a Advice) Error() string { return string(a) }

// Scalar hands a plain value's text to read. Any failure becomes "expected …", with
// the words of an Advice after it.
func Scalar(n ast.Node, expected string, read func(string) error) error {
	value, ok := resolve(n).(ast.ScalarNode)
	if !ok {
		return &located{firstToken(n), "expected " + expected}
	}
	text := value.GetToken().Value
	if err := read(text); err != nil {
		message := fmt.Sprintf("expected %s, found %q", expected, text)
		var advice Advice
		if errors.As(err, &advice) {
			message += ": " + advice.Error()
		}
		return &located{value.GetToken(), message}
	}
	return nil
}

// List hands each item of a list, or a value that is none, to read: "one, or a list".
func List(n ast.Node, read func(item ast.Node) error) error {
	list, ok := resolve(n).(*ast.SequenceNode)
	if !ok {
		return read(n)
	}
	if len(list.Values) == 0 {
		return &located{firstToken(list), "expected one or more, found an empty list"}
	}
	for _, item := range list.Values {
		if err := read(item); err != nil {
			return err
		}
	}
	return nil
}

// explain turns the YAML library's errors into a place and words without Go's types.
func explain(err error) (*token.Token, string) {
	var own *located
	var mismatch *yaml.TypeError
	var overflow *yaml.OverflowError
	var kind *yaml.UnexpectedNodeTypeError
	var other yaml.Error
	switch {
	case errors.As(err, &own):
		return own.token, own.message
	case errors.As(err, &mismatch):
		return mismatch.Token, fmt.Sprintf("expected %s, found %q", kindWords(mismatch.DstType), value(mismatch.Token))
	case errors.As(err, &overflow):
		return overflow.Token, fmt.Sprintf("expected %s, found %s, which is out of range", kindWords(overflow.DstType), overflow.SrcNum)
	case errors.As(err, &kind):
		return kind.Token, fmt.Sprintf("expected %s, found %s", nodeWords(kind.Expected), nodeWords(kind.Actual))
	case errors.As(err, &other):
		return other.GetToken(), hint(other.GetMessage())
	}
	return nil, err.Error()
}

// hint says what to do where the library's words leave one alone.
func hint(message string) string {
	switch {
	case strings.HasPrefix(message, "found character '\t'"):
		return "found a tab; expected spaces"
	case strings.HasPrefix(message, "mapping value is not allowed"):
		return message + "; expected every key of a mapping at the same indentation"
	case strings.HasPrefix(message, "found an invalid key for this map"), strings.HasPrefix(message, "value is not allowed in this context"):
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

func value(tk *token.Token) string {
	if tk == nil {
		return ""
	}
	return tk.Value
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

func nodeWords(t ast.NodeType) string {
	switch t {
	case ast.MappingType, ast.MappingValueType:
		return "a mapping (key: value)"
	case ast.SequenceType:
		return "a list"
	case ast.StringType, ast.LiteralType:
		return "text"
	case ast.IntegerType, ast.FloatType:
		return "a number"
	case ast.BoolType:
		return "true or false"
	case ast.NullType:
		return "nothing"
	}
	return strings.ToLower(t.YAMLName())
}

// excerpt is a line of the text, with a mark below the column that counts
// characters.
func excerpt(lines [][]byte, line, column int) string {
	const most, before = 60, 40
	if line > len(lines) {
		return ""
	}
	shown := []rune(visible(strings.TrimSuffix(string(lines[line-1]), "\r")))
	column = min(column-1, len(shown))
	cut := max(column-before, 0)
	shown, column = shown[cut:], column-cut
	shown = shown[:min(len(shown), most)]
	number := fmt.Sprintf("%5d | ", line)
	return number + string(shown) + "\n" + strings.Repeat(" ", len(number)-2) + "| " + strings.Repeat(" ", column) + "^"
}
