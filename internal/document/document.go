// Package document reads one YAML document into a struct, strictly: a key that is
// not known, a value that does not fit and a value that makes no sense are errors
// with line, column and the line itself.
package document

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
	"go.yaml.in/yaml/v4/plugin/loaderlimits"
)

// SyntaxError is a fault in a document: where, and what was expected.
type SyntaxError struct {
	File         string
	Line, Column int
	Message      string
	// Excerpt is the line, with a mark below the column; empty where there is no line.
	Excerpt string
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("%s:%d:%d: %s", Shown(e.File), e.Line, e.Column, e.Message)
}

// Problem is a fault of meaning and the path to it: keys and list indexes.
type Problem struct {
	Path    []any
	Message string
}

// NewProblem has a path, cut off from what is appended to it, and a message.
func NewProblem(path []any, format string, args ...any) *Problem {
	return &Problem{slices.Clone(path), fmt.Sprintf(format, args...)}
}

// Source is the text of a document.
type Source struct {
	// File is the name for errors, What a word for what the document is.
	File, What string
	Text       []byte
	// Limit bounds the text in bytes.
	Limit int
	// Whole refuses a key without a value where text is expected; otherwise such a key
	// is as good as absent.
	Whole bool
	// Compose is set where the document may have several files, and names for values.
	Compose *Compose
}

// Unmarked is a text without the byte order mark that some editors and spreadsheets begin files with (YAML 1.2.2, 5.2).
func Unmarked(text []byte) []byte { return bytes.TrimPrefix(text, []byte("\ufeff")) }

// Decode reads the document into the struct that into points to, where keys that
// are absent leave what is there, and then asks check, which may be nil, whether it
// makes sense. Its errors are *SyntaxError.
func (s Source) Decode(into any, check func() *Problem) error {
	_, err := s.DecodeTree(into, check)
	return err
}

// DecodeTree is Decode that also returns the positions of the values.
func (s Source) DecodeTree(into any, check func() *Problem) (*Tree, error) {
	s.Text = Unmarked(s.Text)
	t := &Tree{}
	if err := s.decodeTree(t, into, check); err != nil {
		if len(t.files) == 0 {
			return nil, s.fail(err)
		}
		return nil, t.fail(err)
	}
	return t, nil
}

func (s Source) decodeTree(t *Tree, into any, check func() *Problem) (err error) {
	if len(s.Text) > s.Limit {
		return &located{message: fmt.Sprintf("expected a %s of at most %d bytes, found more", s.What, s.Limit)}
	}
	c := composer{Source: s, tree: t, left: mostValues(len(s.Text))}
	if t.body, err = c.load(s.File, s.Text); err != nil {
		return err
	}
	if s.Compose != nil {
		if err := c.compose(t.body); err != nil {
			return err
		}
	}
	d := decoder{whole: s.Whole, fields: map[reflect.Type]structFields{}, left: mostValues(c.bytes), files: t.files}
	if err := d.value(t.body, reflect.ValueOf(into).Elem()); err != nil {
		return err
	}
	if check != nil {
		if p := check(); p != nil {
			return at(locate(t.body, p.Path), "%s", p.Message)
		}
	}
	return nil
}

// body is the only document in the text.
func (s Source) body() (*yaml.Node, error) { return s.read(s.Text, new(int)) }

func (s Source) fail(err error) error {
	t := &Tree{}
	t.files.add(s.File, s.Text)
	return t.fail(err)
}

// read is the only document in a text, which may have as many values more as parts leaves. A panic of the library
// becomes an error: what a user wrote must never end natkit.
func (s Source) read(text []byte, parts *int) (n *yaml.Node, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("this YAML cannot be read (%v)", r)
		}
	}()
	if bytes.HasPrefix(text, []byte("\xff\xfe")) || bytes.HasPrefix(text, []byte("\xfe\xff")) {
		return nil, fmt.Errorf("expected text in UTF-8, found UTF-16: save it as UTF-8")
	}
	s.Text = text
	read := &meter{text: text, parts: *parts}
	defer func() { *parts = read.parts }()
	loader, err := yaml.NewLoader(read, yaml.WithPlugin(loaderlimits.New(loaderlimits.DepthFunc(read.nested))))
	if err != nil {
		return nil, err
	}
	var first, more yaml.Node
	switch err := loader.Load(&first); {
	case errors.Is(err, io.EOF) || err == nil && first.Content[0].IsZero():
		return nil, fmt.Errorf("expected a %s, found an empty document", s.What)
	case err != nil:
		return nil, cmp.Or(read.over, s.explain(err))
	}
	switch err := loader.Load(&more); {
	case err == nil:
		return nil, at(more.Content[0], "expected one YAML document with a %s, found another one after it", s.What)
	case !errors.Is(err, io.EOF):
		return nil, cmp.Or(read.over, s.explain(err))
	}
	return first.Content[0], refuse(&first)
}

// tags are those that values have without one, or may have; a tag of its own would be ignored.
var tags = []string{"", "!", "!!str", "!!int", "!!float", "!!bool", "!!null", "!!map", "!!seq", "!!merge", "!!timestamp", "!!binary"}

// refuse returns an error where a value has an unknown tag, and where a text, with its escapes
// resolved, has what acts on a terminal that prints it: C0, DEL and C1. The library refuses
// those that are not escaped; here nothing needs them at all.
func refuse(n *yaml.Node) error {
	if tag := n.ShortTag(); n.Kind != yaml.AliasNode && !slices.Contains(tags, tag) {
		return at(n, "unknown tag %s", tag)
	}
	if strings.ContainsFunc(n.Value, func(r rune) bool { return r != '\n' && r != '\r' && r != '\t' && unicode.IsControl(r) }) {
		return at(n, "control character in %q: a terminal would act on it", n.Value)
	}
	for _, child := range n.Content {
		if err := refuse(child); err != nil {
			return err
		}
	}
	return nil
}

func (t *Tree) fail(err error) error {
	e := &SyntaxError{File: t.files[0].name, Line: 1, Column: 1, Message: OneLine(err.Error())}
	var place *located
	if errors.As(err, &place) && place.line > 0 {
		p := t.place(place.line, max(place.column, 1))
		e.File, e.Line, e.Column, e.Excerpt = p.File, p.Line, p.Column, p.Excerpt
		if p.Uses != "" {
			e.Message += " (" + p.Uses + ")"
		}
	}
	return e
}

// explain turns the YAML library's errors into a place and what to do.
func (s Source) explain(err error) error {
	var e *yaml.LoadError
	if !errors.As(err, &e) {
		return err
	}
	message, line, column := e.Message, e.Mark.Line, e.Mark.Column
	switch {
	case e.Stage == yaml.ReaderStage:
		line, column = s.unprintable()
	case strings.Contains(message, "exceeded max depth"):
		message = fmt.Sprintf("expected a %s, found brackets, lists or mappings in each other more than %d deep", s.What, deepest)
	case strings.Contains(message, "tab character"), s.isTab(line, column):
		message = "found a tab; expected spaces"
	case strings.HasPrefix(message, "mapping values are not allowed"):
		message += "; expected every key of a mapping at the same indentation"
	case strings.HasPrefix(message, "did not find expected") && strings.HasPrefix(e.ContextMsg, "while parsing") && line == e.ContextMark.Line:
		message += "; text that begins with a bracket or ends with a colon stands in quotes: \"[fd00::2]:80\", \"fd00::\""
	case strings.HasPrefix(message, "unknown anchor"), strings.Contains(e.ContextMsg, "alias"):
		message += "; text that begins with * stands in quotes"
	}
	return &located{line, column, message}
}

// unprintable returns the position of the first character that YAML does not allow.
func (s Source) unprintable() (line, column int) {
	line, column = 1, 1
	for _, r := range string(s.Text) {
		switch {
		case r == '\n':
			line, column = line+1, 0
		case r == utf8.RuneError, unicode.IsControl(r) && r != '\t' && r != '\r' && r != '\u0085':
			return line, column
		}
		column++
	}
	return line, column
}

func (s Source) isTab(line, column int) bool {
	for text := range bytes.Lines(s.Text) {
		if line--; line == 0 {
			return column <= len(text) && text[column-1] == '\t'
		}
	}
	return false
}

// Tree knows where the things of a document stand.
type Tree struct {
	body  *yaml.Node
	files origins
	// beside are the names of files in the first one that are relative to it.
	beside []string
	// uses are the names that stand in the place of values.
	uses map[spot]string
}

// Place is a place in a document, counted from 1, and its line with a mark below.
type Place struct {
	File         string
	Line, Column int
	Excerpt      string
	// Uses says which names stand there for values, and where they are defined; empty where none does.
	Uses string
}

// At follows a path of keys and list indexes as far as the document goes.
func (t *Tree) At(path ...any) Place {
	n := locate(t.body, path)
	return t.place(n.Line, n.Column)
}

func (t *Tree) place(line, column int) Place {
	f, number := t.files.of(line)
	return Place{f.name, number, column, f.excerpt(number, column), t.uses[spot{line, column}]}
}

// Beside are the files that the first one includes by names relative to it.
func (t *Tree) Beside() []string { return t.beside }

// Fault is an error about the value at a path.
func (t *Tree) Fault(message string, path ...any) error {
	return t.fail(at(locate(t.body, path), "%s", message))
}

// Files are the names of the document's files, the first one first.
func (t *Tree) Files() (names []string) {
	for _, f := range t.files {
		names = append(names, f.name)
	}
	return names
}

// locate follows a path of keys and list indexes as far as the text goes, so
// that what is missing is reported where it should have been.
func locate(n *yaml.Node, path []any) *yaml.Node {
	for _, step := range path {
		next := child(n, step)
		if next == nil {
			break
		}
		n = next
	}
	return n
}

func child(n *yaml.Node, step any) *yaml.Node {
	n = resolve(n)
	switch step := step.(type) {
	case int:
		if n.Kind == yaml.SequenceNode && step < len(n.Content) {
			return n.Content[step]
		}
	case string:
		for key, value := range pairs(n) {
			if key.Value == step {
				return value
			}
		}
	}
	return nil
}

// pairs are the keys and values of a mapping.
func pairs(n *yaml.Node) func(yield func(key, value *yaml.Node) bool) {
	return func(yield func(key, value *yaml.Node) bool) {
		if n.Kind != yaml.MappingNode {
			return
		}
		for i := 0; i+1 < len(n.Content); i += 2 {
			if !yield(n.Content[i], n.Content[i+1]) {
				return
			}
		}
	}
}

// resolve returns the node that an alias (*name) refers to.
func resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}
