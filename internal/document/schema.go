package document

import (
	"cmp"
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"
)

// Schema is a JSON Schema, draft 2020-12, in as many of its words as documents need.
type Schema struct {
	Schema      string `json:"$schema,omitempty"`
	Title       string `json:"title,omitempty"`
	Ref         string `json:"$ref,omitempty"`
	Description string `json:"description,omitempty"`
	// Type is a name or a list of names.
	Type     any      `json:"type,omitempty"`
	Enum     []any    `json:"enum,omitempty"`
	Pattern  string   `json:"pattern,omitempty"`
	Examples []string `json:"examples,omitempty"`

	Properties map[string]*Schema `json:"properties,omitempty"`
	Required   []string           `json:"required,omitempty"`
	// AdditionalProperties is a bool, or a *Schema.
	AdditionalProperties any       `json:"additionalProperties,omitempty"`
	Items                *Schema   `json:"items,omitempty"`
	MinItems             int       `json:"minItems,omitempty"`
	AnyOf                []*Schema `json:"anyOf,omitempty"`
	OneOf                []*Schema `json:"oneOf,omitempty"`

	Defs map[string]*Schema `json:"$defs,omitempty"`
}

// Describe returns the schema of documents that are read into a type. It is made of what the decoder goes by, the
// struct's tags; of values that read themselves, it asks their UnmarshalYAML, as far as that uses Scalar, List and
// Mapping. Of several forms of a value it has all; it accepts more than is read, never less, but for numbers of
// plain fields in quotes. With c, which may be nil, $NAME may stand for every value.
func Describe(t reflect.Type, c *Compose) *Schema {
	d := describer{defs: map[string]*Schema{}, names: map[reflect.Type]string{}, compose: c}
	s := d.object(t)
	s.Schema, s.Defs = "https://json-schema.org/draft/2020-12/schema", d.defs
	if c == nil {
		return s
	}
	d.defs[variable] = &Schema{Type: "string", Pattern: nameForm.String(), Description: "$NAME: the value that define has for it"}
	top := d.defs[strings.TrimPrefix(s.Properties[c.Key].Ref, refs)]
	if len(top.AnyOf) > 0 { // it may be a variable
		top = top.AnyOf[0]
	}
	file := &Schema{Type: "string", Description: "a file with more of the same form, relative to this one"}
	top.Properties[includeKey] = anyOf([]*Schema{file, {Type: "array", Items: file, MinItems: 1}})
	top.Properties[defineKey] = &Schema{Type: "object", Description: "names for values: $NAME stands for one", AdditionalProperties: true}
	return s
}

const (
	refs     = "#/$defs/"
	variable = "variable"
)

// describer collects the schemas of types, each once.
type describer struct {
	defs  map[string]*Schema
	names map[reflect.Type]string
	// compose is not nil where variables may stand for values.
	compose *Compose
}

// of is the schema of a value, with a reference to that of its type.
func (d *describer) of(t reflect.Type) *Schema {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	readsItself := reflect.PointerTo(t).Implements(reflect.TypeFor[yaml.Unmarshaler]())
	if t.Name() == "" || !readsItself && (t.Kind() != reflect.Struct || !hasFields(t)) {
		return d.plain(t)
	}
	name, known := d.names[t]
	if !known {
		name = strings.ToLower(t.Name())
		if d.defs[name] != nil { // of another package
			name = strings.ReplaceAll(t.String(), ".", "-")
		}
		d.names[t], d.defs[name] = name, &Schema{}
		read := d.object
		if readsItself {
			read = d.asked
		}
		*d.defs[name] = *d.orVariable(read(t))
	}
	return &Schema{Ref: refs + name}
}

// orVariable has a variable as another form of a value that is not any text.
func (d *describer) orVariable(s *Schema) *Schema {
	if d.compose == nil || s.takesText() {
		return s
	}
	return &Schema{AnyOf: []*Schema{s, {Ref: refs + variable}}}
}

func (s *Schema) takesText() bool {
	types, several := s.Type.([]string)
	return len(s.Enum) == 0 && (s.Type == any("string") || several && slices.Contains(types, "string")) || slices.ContainsFunc(s.AnyOf, (*Schema).takesText)
}

// object is the schema of a struct.
func (d *describer) object(t reflect.Type) *Schema {
	s := &Schema{Type: "object", Properties: map[string]*Schema{}, AdditionalProperties: false}
	fields, names := yamlFields(t, nil)
	for _, name := range names {
		f := t.FieldByIndex(fields[name])
		s.Properties[name] = d.of(f.Type)
		if parseTag(f.Tag.Get("check")).required {
			s.Required = append(s.Required, name)
		}
	}
	return s
}

// plain is the schema of what the decoder reads by its kind.
func (d *describer) plain(t reflect.Type) *Schema {
	switch {
	case t == reflect.TypeFor[time.Duration](), reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()):
		return &Schema{Type: "string", Description: cmp.Or(written(reflect.New(t).Elem()), kindWords(t))}
	case t.Kind() == reflect.Struct:
		return d.object(t)
	case t.Kind() == reflect.Map:
		return d.orVariable(&Schema{Type: "object", AdditionalProperties: d.of(t.Elem())})
	case t.Kind() == reflect.Slice || t.Kind() == reflect.Array:
		return d.orVariable(&Schema{Type: "array", Items: d.of(t.Elem())})
	case t.Kind() == reflect.Bool:
		return &Schema{Type: "boolean"}
	case t.Kind() == reflect.Float32 || t.Kind() == reflect.Float64:
		return &Schema{Type: "number"}
	case t.Kind() == reflect.String: // numbers and true are text as well
		return &Schema{Type: []string{"string", "number", "boolean"}}
	}
	return &Schema{Type: "integer"}
}

// questionTag marks the values with which asked asks; a document cannot have it.
const questionTag = "!question"

// noText is asked for to be refused; no document can have it.
const noText = "\x00"

// answer is the error with which Scalar, List and Mapping answer a question.
type answer struct {
	// expected and read are of Scalar.
	expected string
	read     func(string) error
	// mapping is what Mapping reads into, item the answer about an item of List.
	mapping reflect.Type
	item    *answer
}

func (*answer) Error() string { return "a value was asked for its form" }

// errOtherForm answers that a value does not have the form that was asked for.
var errOtherForm = errors.New("another form")

// asked is the schema of a type that reads itself.
func (d *describer) asked(t reflect.Type) *Schema {
	text := &yaml.Node{Kind: yaml.ScalarNode, Tag: questionTag, Value: noText}
	mapping := &yaml.Node{Kind: yaml.MappingNode, Tag: questionTag}
	ask := func(n *yaml.Node) *Schema {
		var a *answer
		if errors.As(reflect.New(t).Interface().(yaml.Unmarshaler).UnmarshalYAML(n), &a) {
			return d.answered(a)
		}
		return nil
	}
	var forms, items []*Schema
	for _, n := range []*yaml.Node{text, mapping} {
		if s := ask(n); s != nil {
			forms = append(forms, s)
		}
		if s := ask(&yaml.Node{Kind: yaml.SequenceNode, Tag: questionTag, Content: []*yaml.Node{n}}); s != nil {
			items = append(items, s.Items)
		}
	}
	if len(items) > 0 {
		forms = append(forms, &Schema{Type: "array", Items: anyOf(items), MinItems: 1})
	}
	return anyOf(forms)
}

func anyOf(forms []*Schema) *Schema {
	if len(forms) == 1 {
		return forms[0]
	}
	return &Schema{AnyOf: forms}
}

func (d *describer) answered(a *answer) *Schema {
	switch {
	case a.item != nil:
		return &Schema{Items: d.answered(a.item)}
	case a.mapping != nil:
		return d.of(a.mapping)
	}
	return a.scalar()
}

// scalar is the schema of text: an enumeration where the words that are known are all that it can be.
func (a *answer) scalar() *Schema {
	s := &Schema{Description: a.expected}
	var words unknownWord
	errors.As(a.read(noText), &words)
	for _, example := range examplesIn(a.expected) {
		if !slices.Contains(words, example) && a.read(example) == nil {
			s.Examples = append(s.Examples, example)
		}
	}
	free := &Schema{Type: a.types(s.Examples)}
	if len(words) == 0 {
		s.Type = free.Type
		return s
	}
	known := &Schema{}
	for _, word := range words {
		known.Enum = append(known.Enum, any(word))
		if b, err := strconv.ParseBool(word); err == nil {
			known.Enum = append(known.Enum, b)
		}
	}
	if len(s.Examples) == 0 {
		s.Enum = known.Enum
	} else {
		s.AnyOf = []*Schema{known, free}
	}
	return s
}

// types are those that JSON has for what is read: the text of numbers and of true is text in a document.
func (a *answer) types(examples []string) any {
	types := []string{"string"}
	accepts := func(text string) bool { return a.read(text) == nil }
	isNumber := func(text string) bool { _, err := strconv.ParseFloat(text, 64); return err == nil }
	if slices.ContainsFunc([]string{"0", "1", "22", "1000", "0.5"}, accepts) || slices.ContainsFunc(examples, isNumber) {
		types = append(types, "number")
	}
	if accepts("true") {
		types = append(types, "boolean")
	}
	if len(types) == 1 {
		return types[0]
	}
	return types
}

// examplesIn are the values that the words for what is expected name after "such as", and what may be some.
func examplesIn(expected string) (all []string) {
	_, rest, _ := strings.Cut(expected, "such as ")
	for _, part := range strings.FieldsFunc(strings.NewReplacer(" or ", ",", " and ", ",", " with ", ",").Replace(rest), func(r rune) bool { return r == ',' }) {
		if text, err := strconv.Unquote(strings.TrimSpace(part)); err == nil {
			all = append(all, text)
		} else {
			all = append(all, strings.TrimSpace(part))
		}
	}
	return all
}

// answerText is Scalar's answer to a question.
func answerText(n *yaml.Node, expected string, read func(string) error) error {
	if n.Kind != yaml.ScalarNode {
		return errOtherForm
	}
	return &answer{expected: expected, read: read}
}

// answerMapping is Mapping's.
func answerMapping(n *yaml.Node, into any) error {
	if n.Kind != yaml.MappingNode {
		return errOtherForm
	}
	return &answer{mapping: reflect.TypeOf(into).Elem()}
}

// answerList is List's.
func answerList(n *yaml.Node, read func(item *yaml.Node) error) error {
	var of *answer
	if errors.As(read(n.Content[0]), &of) {
		return &answer{item: of}
	}
	return errOtherForm
}

// unknownWord is the error of Unknown: the words that are known.
type unknownWord []string

func (u unknownWord) Error() string { return fmt.Sprintf("not one of %s", strings.Join(u, ", ")) }
