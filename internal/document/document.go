// Package document reads one YAML document into a struct, strictly: a key that is
// not known, a value that does not fit and a value that makes no sense are errors
// with line, column and the line itself.
package document

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unicode"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
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
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Message)
}

// Problem is a fault of meaning and the path to it: keys and list indexes.
type Problem struct {
	Path    []any
	Message string
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
}

// Decode reads the document into the struct that into points to, where keys that
// are absent leave what is there, and then asks check, which may be nil, whether it
// makes sense. Its errors are *SyntaxError.
func (s Source) Decode(into any, check func() *Problem) error {
	_, err := s.DecodeTree(into, check)
	return err
}

// DecodeTree is Decode that tells afterwards where things stand.
func (s Source) DecodeTree(into any, check func() *Problem) (*Tree, error) {
	s.Text = bytes.TrimPrefix(s.Text, []byte("\ufeff")) // a byte order mark, as some editors leave (YAML 1.2.2, 5.2)
	if len(s.Text) > s.Limit {
		return nil, s.fail(nil, "%d bytes: a %s is at most %d", len(s.Text), s.What, s.Limit)
	}
	if deep(s.Text) {
		return nil, s.fail(nil, "expected a %s, found brackets or lists in each other more than %d deep", s.What, deepest)
	}
	body, err := s.body()
	if err != nil {
		return nil, err
	}
	fit := fitting{s.Whole, map[reflect.Type]structFields{}}
	if tk, message := fit.misfit(body, reflect.TypeOf(into)); tk != nil {
		return nil, s.fail(tk, "%s", message)
	}
	if err := decodeYAML(body, into); err != nil {
		tk, message := explain(err)
		return nil, s.fail(tk, "%s", message)
	}
	if check != nil {
		if p := check(); p != nil {
			return nil, s.fail(locate(body, p.Path), "%s", p.Message)
		}
	}
	return &Tree{body: body, lines: bytes.Split(s.Text, []byte("\n"))}, nil
}

// body is the only document in the text.
func (s Source) body() (ast.Node, error) {
	file, control, err := parseYAML(s.Text)
	switch {
	case err != nil:
		tk, message := explain(err)
		return nil, s.fail(tk, "%s", message)
	case control != nil:
		return nil, s.fail(control, "control character in %q: a terminal would act on it", control.Value)
	case len(file.Docs) > 1:
		return nil, s.fail(nil, "expected one YAML document with a %s, found %d", s.What, len(file.Docs))
	case len(file.Docs) == 0 || file.Docs[0].Body == nil:
		return nil, s.fail(nil, "expected a %s, found an empty document", s.What)
	}
	return file.Docs[0].Body, nil
}

func (s Source) fail(tk *token.Token, format string, args ...any) error {
	e := &SyntaxError{File: s.File, Line: 1, Column: 1, Message: OneLine(fmt.Sprintf(format, args...))}
	if tk != nil && tk.Position != nil {
		e.Line, e.Column = max(tk.Position.Line, 1), max(tk.Position.Column, 1)
		e.Excerpt = excerpt(bytes.Split(s.Text, []byte("\n")), e.Line, e.Column)
	}
	return e
}

// parseYAML and decodeYAML turn a panic of the library into an error: what a user
// wrote must never end natkit. control is the first token with a control character.
func parseYAML(source []byte) (file *ast.File, control *token.Token, err error) {
	defer caught(&err)
	tokens := joinColons(lexer.Tokenize(string(source)))
	if i := slices.IndexFunc(tokens, hasControl); i >= 0 {
		control = tokens[i]
	}
	file, err = parser.Parse(tokens, 0)
	return file, control, err
}

// hasControl reports whether a token, with its escapes resolved, has what acts on a
// terminal that prints it: C0, DEL and C1. YAML wants these escaped (1.2.2, 5.1);
// here nothing needs them at all.
func hasControl(tk *token.Token) bool {
	return strings.ContainsFunc(tk.Value, func(r rune) bool {
		return r != '\n' && r != '\r' && r != '\t' && unicode.IsControl(r)
	})
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
