package lab

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"unicode"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// MaxSource bounds the text of a scenario or a mix, in bytes, and with it how
// deeply the parser can be made to call itself; real ones take two or three
// thousand.
const MaxSource = 32 << 10

// SyntaxError is a fault in a scenario's or a mix's text: where, and what was expected.
type SyntaxError struct {
	File         string
	Line, Column int
	Message      string
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Message)
}

// Parse reads one scenario, refuses what it does not know, and checks that it
// makes sense. Its errors are *SyntaxError and begin with file, line and column.
func Parse(filename string, source []byte) (*Scenario, error) {
	s, err := parse(filename, "scenario", source, (*Scenario).check)
	if err == nil && s.Topology.Bridge != nil {
		s.UseBridge = s.Topology.Bridge.Always
	}
	return s, err
}

// parse reads one document of type T, which people call what.
func parse[T any](filename, what string, source []byte, check func(*T) *problem) (*T, error) {
	fail := func(tk *token.Token, format string, args ...any) error {
		e := &SyntaxError{File: filename, Line: 1, Column: 1, Message: oneLine(fmt.Sprintf(format, args...))}
		if tk != nil && tk.Position != nil {
			e.Line, e.Column = max(tk.Position.Line, 1), max(tk.Position.Column, 1)
		}
		return e
	}
	if len(source) > MaxSource {
		return nil, fail(nil, "%d bytes: a %s is at most %d", len(source), what, MaxSource)
	}
	file, err := parseYAML(source)
	if err != nil {
		tk, message := explain(err)
		return nil, fail(tk, "%s", message)
	}
	if len(file.Docs) > 1 {
		return nil, fail(nil, "expected one YAML document with a %s, found %d", what, len(file.Docs))
	}
	if len(file.Docs) == 0 || file.Docs[0].Body == nil {
		return nil, fail(nil, "expected a %s, found an empty document", what)
	}
	body := file.Docs[0].Body
	if tk, message := misfit(body, reflect.TypeFor[T]()); tk != nil {
		return nil, fail(tk, "%s", message)
	}
	read := new(T)
	if err := decodeYAML(body, read); err != nil {
		tk, message := explain(err)
		return nil, fail(tk, "%s", message)
	}
	if p := check(read); p != nil {
		return nil, fail(locate(body, p.path), "%s", p.message)
	}
	return read, nil
}

// parseYAML and decodeYAML turn a panic of the library into an error: what a user
// wrote must never end natkit.
func parseYAML(source []byte) (file *ast.File, err error) {
	defer caught(&err)
	return parser.ParseBytes(source, 0)
}

func decodeYAML(body ast.Node, to any) (err error) {
	defer caught(&err)
	return yaml.NodeToValue(body, to, yaml.Strict())
}

func caught(err *error) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("this YAML cannot be read (%v)", r)
	}
}

// located is a fault at a known place.
type located struct {
	token   *token.Token
	message string
}

func (l *located) Error() string { return l.message }

// scalar hands a plain value's text to read. Any failure becomes "expected …".
func scalar(n ast.Node, expected string, read func(string) error) error {
	value, ok := resolve(n).(ast.ScalarNode)
	if !ok {
		return &located{firstToken(n), "expected " + expected}
	}
	text := value.GetToken().Value
	if err := read(text); err != nil {
		return &located{value.GetToken(), fmt.Sprintf("expected %s, found %q", expected, text)}
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
	}
	return message
}

// oneLine keeps what a file contains from flooding or steering the terminal.
func oneLine(message string) string {
	const most = 200
	clean := strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, message)
	if runes := []rune(clean); len(runes) > most {
		clean = string(runes[:most]) + "…"
	}
	return clean
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
	case reflect.Float64:
		return "a number"
	case reflect.Int, reflect.Int64, reflect.Uint16, reflect.Uint64:
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

// misfit finds the first key that t has no field for, and lists of the wrong
// length. The library would find them too, but not say what was expected.
func misfit(n ast.Node, t reflect.Type) (*token.Token, string) {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if _, own := reflect.New(t).Interface().(yaml.NodeUnmarshaler); own {
		return nil, ""
	}
	switch t.Kind() {
	case reflect.Slice, reflect.Array:
		return misfitList(n, t)
	case reflect.Struct:
		return misfitMapping(n, t)
	}
	return nil, ""
}

func misfitList(n ast.Node, t reflect.Type) (*token.Token, string) {
	list, ok := resolve(n).(*ast.SequenceNode)
	if !ok {
		return nil, ""
	}
	if t.Kind() == reflect.Array && len(list.Values) != t.Len() {
		return firstToken(list), fmt.Sprintf("expected a list of %d, found %d", t.Len(), len(list.Values))
	}
	for _, item := range list.Values {
		if tk, message := misfit(item, t.Elem()); tk != nil {
			return tk, message
		}
	}
	return nil, ""
}

func misfitMapping(n ast.Node, t reflect.Type) (*token.Token, string) {
	fields, names := yamlFields(t)
	for _, pair := range pairs(n) {
		key := pair.Key.GetToken()
		field, known := fields[key.Value]
		if !known {
			return key, fmt.Sprintf("unknown field %q; expected one of: %s", key.Value, strings.Join(names, ", "))
		}
		if tk, message := misfit(pair.Value, field); tk != nil {
			return tk, message
		}
	}
	return nil, ""
}

func yamlFields(t reflect.Type) (fields map[string]reflect.Type, names []string) {
	fields = make(map[string]reflect.Type, t.NumField())
	for i := range t.NumField() {
		name := t.Field(i).Tag.Get("yaml")
		if name == "" || name == "-" {
			continue
		}
		fields[name] = t.Field(i).Type
		names = append(names, name)
	}
	return fields, names
}

// resolve looks through anchors. An alias (*name) stays what it is: what it
// stands for was looked at where it was written.
func resolve(n ast.Node) ast.Node {
	if anchor, ok := n.(*ast.AnchorNode); ok {
		return anchor.Value
	}
	return n
}

func pairs(n ast.Node) []*ast.MappingValueNode {
	switch n := resolve(n).(type) {
	case *ast.MappingNode:
		return n.Values
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{n}
	}
	return nil
}

// locate follows a path of keys and list indexes as far as the text goes, so
// that what is missing is reported where it should have been.
func locate(n ast.Node, path []any) *token.Token {
	for _, step := range path {
		next := child(n, step)
		if next == nil {
			break
		}
		n = next
	}
	return firstToken(n)
}

func child(n ast.Node, step any) ast.Node {
	switch step := step.(type) {
	case int:
		if list, ok := resolve(n).(*ast.SequenceNode); ok && step < len(list.Values) {
			return list.Values[step]
		}
	case string:
		for _, pair := range pairs(n) {
			if pair.Key.GetToken().Value == step {
				return pair.Value
			}
		}
	}
	return nil
}

// firstToken is where a node begins; a mapping's own token is its first colon.
func firstToken(n ast.Node) *token.Token {
	n = resolve(n)
	if m, ok := n.(*ast.MappingNode); ok && m.IsFlowStyle {
		return m.GetToken()
	}
	if p := pairs(n); len(p) > 0 {
		return p[0].Key.GetToken()
	}
	return n.GetToken()
}
