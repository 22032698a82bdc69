package lab

import (
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// maxSource bounds a scenario's text, in bytes; real ones take two or three thousand.
const maxSource = 1 << 20

// SyntaxError is a fault in a scenario's text: where, and what was expected.
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
	fail := func(tk *token.Token, format string, args ...any) error {
		e := &SyntaxError{File: filename, Line: 1, Column: 1, Message: fmt.Sprintf(format, args...)}
		if tk != nil && tk.Position != nil {
			e.Line, e.Column = max(tk.Position.Line, 1), max(tk.Position.Column, 1)
		}
		return e
	}
	if len(source) > maxSource {
		return nil, fail(nil, "%d bytes: a scenario is at most %d", len(source), maxSource)
	}
	file, err := parser.ParseBytes(source, 0)
	if err != nil {
		tk, message := explain(err)
		return nil, fail(tk, "%s", message)
	}
	if len(file.Docs) != 1 || file.Docs[0].Body == nil {
		return nil, fail(nil, "expected one YAML document with a scenario, found %d", len(file.Docs))
	}
	body := file.Docs[0].Body
	if tk, message := unknownField(body, reflect.TypeFor[Scenario]()); tk != nil {
		return nil, fail(tk, "%s", message)
	}
	var s Scenario
	if err := yaml.NodeToValue(body, &s, yaml.Strict()); err != nil {
		tk, message := explain(err)
		return nil, fail(tk, "%s", message)
	}
	if p := s.check(); p != nil {
		return nil, fail(locate(body, p.path), "%s", p.message)
	}
	return &s, nil
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
		return other.GetToken(), other.GetMessage()
	}
	first, _, _ := strings.Cut(err.Error(), "\n")
	return nil, first
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
	case reflect.Int, reflect.Int64, reflect.Uint16:
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

// unknownField finds the first key that t has no field for. The library would
// find it too, but not say which keys there are.
func unknownField(n ast.Node, t reflect.Type) (*token.Token, string) {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if _, own := reflect.New(t).Interface().(yaml.NodeUnmarshaler); own {
		return nil, ""
	}
	switch t.Kind() {
	case reflect.Slice, reflect.Array:
		if list, ok := resolve(n).(*ast.SequenceNode); ok {
			for _, item := range list.Values {
				if tk, message := unknownField(item, t.Elem()); tk != nil {
					return tk, message
				}
			}
		}
	case reflect.Struct:
		fields, names := yamlFields(t)
		for _, pair := range pairs(n) {
			key := pair.Key.GetToken()
			field, known := fields[key.Value]
			if !known {
				return key, fmt.Sprintf("unknown field %q; expected one of: %s", key.Value, strings.Join(names, ", "))
			}
			if tk, message := unknownField(pair.Value, field); tk != nil {
				return tk, message
			}
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
