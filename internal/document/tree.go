package document

import (
	"iter"
	"maps"
	"reflect"
	"strings"

	"go.yaml.in/yaml/v4"
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

var nodeUnmarshaler = reflect.TypeFor[yaml.Unmarshaler]()

// misfit finds the first key that t has no field for, lists of the wrong length and
// values of another kind. The library would find them too, but not say what was
// expected.
func (f fitting) misfit(n *yaml.Node, t reflect.Type) *located {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if isNull(n) {
		if f.whole && reflect.PointerTo(t).Implements(nodeUnmarshaler) {
			return at(n, "expected a value, found nothing")
		}
		return nil
	}
	if reflect.PointerTo(t).Implements(nodeUnmarshaler) {
		return nil
	}
	switch t.Kind() {
	case reflect.Slice, reflect.Array:
		return f.list(n, t)
	case reflect.Struct, reflect.Map:
		return f.mapping(n, t)
	}
	return leaf(n, t)
}

func (f fitting) list(n *yaml.Node, t reflect.Type) *located {
	list := resolve(n)
	if list.Kind != yaml.SequenceNode {
		return otherKind(n, t)
	}
	if t.Kind() == reflect.Array && len(list.Content) != t.Len() {
		return at(n, "expected a list of %d, found %d", t.Len(), len(list.Content))
	}
	for _, item := range list.Content {
		if err := f.misfit(item, t.Elem()); err != nil {
			return err
		}
	}
	return nil
}

func (f fitting) mapping(n *yaml.Node, t reflect.Type) *located {
	if resolve(n).Kind != yaml.MappingNode {
		return otherKind(n, t)
	}
	for key, value := range pairs(n) {
		inner, err := f.inner(key, t)
		if err == nil {
			err = f.misfit(value, inner)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// inner is the type of what a key of t leads to.
func (f fitting) inner(key *yaml.Node, t reflect.Type) (reflect.Type, *located) {
	if t.Kind() == reflect.Map {
		return t.Elem(), leaf(key, t.Key())
	}
	known, met := f.fields[t]
	if !met {
		known.types, known.names = yamlFields(t)
		f.fields[t] = known
	}
	field, there := known.types[key.Value]
	if !there {
		return nil, at(key, "unknown field %q; expected one of: %s", key.Value, strings.Join(known.names, ", "))
	}
	return field, nil
}

// leaf finds what a plain value is not.
func leaf(n *yaml.Node, t reflect.Type) *located {
	value := resolve(n)
	if value.Kind != yaml.ScalarNode {
		return otherKind(n, t)
	}
	if decodeYAML(value, reflect.New(t).Interface()) == nil {
		return nil
	}
	if value.ShortTag() == "!!int" && t.Kind() != reflect.Bool {
		return at(n, "expected %s, found %s, which is out of range", kindWords(t), value.Value)
	}
	return at(n, "expected %s, found %q", kindWords(t), value.Value)
}

func otherKind(n *yaml.Node, t reflect.Type) *located {
	return at(n, "expected %s, found %s", kindWords(t), nodeWords(resolve(n)))
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

// survey bounds what a document's nodes become.
type survey struct {
	// left is how many nodes there may still be, each as often as aliases stand for it:
	// few lines can stand for any number.
	left int
}

// deepest is how many lists and mappings may be in each other.
const (
	deepest = 500
	tooDeep = "expected lists and mappings at most 500 deep in each other"
)

// node also finds keys that a mapping has twice.
func (s *survey) node(n *yaml.Node, depth int) *located {
	s.left--
	if s.left < 0 {
		return at(n, "aliases (*name) stand for more than a file of this length could hold")
	}
	if depth > deepest {
		return at(n, tooDeep)
	}
	n = resolve(n)
	if n.Kind == yaml.MappingNode {
		if err := unique(n); err != nil {
			return err
		}
	}
	for _, inner := range n.Content {
		if err := s.node(inner, depth+1); err != nil {
			return err
		}
	}
	return nil
}

func unique(n *yaml.Node) *located {
	met := make(map[string]bool, len(n.Content)/2)
	for key := range pairs(n) {
		if key.Kind == yaml.ScalarNode && met[key.Value] {
			return at(key, "the key %q is there twice", key.Value)
		}
		met[key.Value] = true
	}
	return nil
}

// Tree knows where the things of a document stand.
type Tree struct {
	body  *yaml.Node
	lines lines
}

// Place is a place in a document, counted from 1, and its line with a mark below.
type Place struct {
	Line, Column int
	Excerpt      string
}

// At follows a path of keys and list indexes as far as the document goes.
func (t *Tree) At(path ...any) Place {
	at := locate(t.body, path)
	return Place{at.Line, at.Column, t.lines.excerpt(at.Line, at.Column)}
}

// resolve is what an alias (*name) stands for.
func resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

func isNull(n *yaml.Node) bool {
	n = resolve(n)
	return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null"
}

func mark(n *yaml.Node) yaml.Mark {
	return yaml.Mark{Line: max(n.Line, 1), Column: max(n.Column, 1)}
}

// pairs are the keys and values of a mapping.
func pairs(n *yaml.Node) iter.Seq2[*yaml.Node, *yaml.Node] {
	return func(yield func(key, value *yaml.Node) bool) {
		content := resolve(n).Content
		for i := 1; i < len(content) && yield(content[i-1], content[i]); i += 2 {
		}
	}
}

// locate follows a path of keys and list indexes as far as the text goes, so
// that what is missing is reported where it should have been.
func locate(n *yaml.Node, path []any) yaml.Mark {
	for _, step := range path {
		next := child(n, step)
		if next == nil {
			break
		}
		n = next
	}
	return mark(n)
}

func child(n *yaml.Node, step any) *yaml.Node {
	n = resolve(n)
	switch step := step.(type) {
	case int:
		if n.Kind == yaml.SequenceNode && step < len(n.Content) {
			return n.Content[step]
		}
	case string:
		if n.Kind != yaml.MappingNode {
			return nil
		}
		for key, value := range pairs(n) {
			if key.Value == step {
				return value
			}
		}
	}
	return nil
}
