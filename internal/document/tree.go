package document

import (
	"fmt"
	"maps"
	"reflect"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// fitting compares a document with the type that it is read into.
type fitting struct {
	// whole is Source.Whole.
	whole bool
	// fields are those of structs that were met: a list has thousands of one type.
	fields map[reflect.Type]structFields
}

type structFields struct {
	types map[string]reflect.Type
	names []string
}

var nodeUnmarshaler = reflect.TypeFor[yaml.NodeUnmarshaler]()

// misfit finds the first key that t has no field for, and lists of the wrong
// length. The library would find them too, but not say what was expected.
func (f fitting) misfit(n ast.Node, t reflect.Type) (*token.Token, string) {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if reflect.PointerTo(t).Implements(nodeUnmarshaler) {
		if n.Type() == ast.NullType && f.whole {
			return n.GetToken(), "expected a value, found nothing"
		}
		return nil, ""
	}
	switch t.Kind() {
	case reflect.Slice, reflect.Array:
		return f.list(n, t)
	case reflect.Struct:
		return f.mapping(n, t)
	}
	return nil, ""
}

func (f fitting) list(n ast.Node, t reflect.Type) (*token.Token, string) {
	list, ok := resolve(n).(*ast.SequenceNode)
	if !ok {
		return nil, ""
	}
	if t.Kind() == reflect.Array && len(list.Values) != t.Len() {
		return firstToken(list), fmt.Sprintf("expected a list of %d, found %d", t.Len(), len(list.Values))
	}
	for _, item := range list.Values {
		if tk, message := f.misfit(item, t.Elem()); tk != nil {
			return tk, message
		}
	}
	return nil, ""
}

func (f fitting) mapping(n ast.Node, t reflect.Type) (*token.Token, string) {
	known, met := f.fields[t]
	if !met {
		known.types, known.names = yamlFields(t)
		f.fields[t] = known
	}
	for _, pair := range pairs(n) {
		key := pair.Key.GetToken()
		field, there := known.types[key.Value]
		if !there {
			return key, fmt.Sprintf("unknown field %q; expected one of: %s", key.Value, strings.Join(known.names, ", "))
		}
		if tk, message := f.misfit(pair.Value, field); tk != nil {
			return tk, message
		}
	}
	return nil, ""
}

func yamlFields(t reflect.Type) (fields map[string]reflect.Type, names []string) {
	fields = make(map[string]reflect.Type, t.NumField())
	for i := range t.NumField() {
		name, options, _ := strings.Cut(t.Field(i).Tag.Get("yaml"), ",")
		switch {
		case options == "inline":
			inner, more := yamlFields(t.Field(i).Type)
			maps.Copy(fields, inner)
			names = append(names, more...)
		case name != "" && name != "-":
			fields[name] = t.Field(i).Type
			names = append(names, name)
		}
	}
	return fields, names
}

// Tree knows where the things of a document stand.
type Tree struct {
	body  ast.Node
	lines [][]byte
}

// Place is a place in a document, counted from 1, and its line with a mark below.
type Place struct {
	Line, Column int
	Excerpt      string
}

// At follows a path of keys and list indexes as far as the document goes.
func (t *Tree) At(path ...any) Place {
	tk := locate(t.body, path)
	if tk == nil || tk.Position == nil {
		return Place{}
	}
	line, column := max(tk.Position.Line, 1), max(tk.Position.Column, 1)
	return Place{line, column, excerpt(t.lines, line, column)}
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
