// Package document reads one YAML document into a struct, strictly: a key that is
// not known, a value that does not fit and a value that makes no sense are errors
// with line, column and the line itself.
package document

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"

	"go.yaml.in/yaml/v4"
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

// DecodeTree is Decode that returns where things stand, too.
func (s Source) DecodeTree(into any, check func() *Problem) (*Tree, error) {
	s.Text = bytes.TrimPrefix(s.Text, []byte("\ufeff")) // a byte order mark, as some editors leave (YAML 1.2.2, 5.2)
	if len(s.Text) > s.Limit {
		return nil, s.fail(yaml.Mark{}, "%d bytes: a %s is at most %d", len(s.Text), s.What, s.Limit)
	}
	body, err := s.body()
	if err != nil {
		return nil, err
	}
	fit := fitting{s.Whole, map[reflect.Type]structFields{}}
	if err := fit.misfit(body, reflect.TypeOf(into)); err != nil {
		return nil, s.fail(err.mark, "%s", err.message)
	}
	if err := decodeYAML(body, into); err != nil {
		return nil, s.explain(err)
	}
	if check != nil {
		if p := check(); p != nil {
			return nil, s.fail(locate(body, p.Path), "%s", p.Message)
		}
	}
	return &Tree{body: body, lines: lines{text: bytes.Split(s.Text, []byte("\n"))}}, nil
}

// body is the only document in the text.
func (s Source) body() (*yaml.Node, error) {
	documents, err := parseYAML(s.Text)
	switch {
	case err != nil:
		return nil, s.explain(err)
	case len(documents) > 1:
		return nil, s.fail(yaml.Mark{}, "expected one YAML document with a %s, found more", s.What)
	case len(documents) == 0 || len(documents[0].Content) == 0 || isNull(documents[0].Content[0]):
		return nil, s.fail(yaml.Mark{}, "expected a %s, found an empty document", s.What)
	}
	body := documents[0].Content[0]
	size := survey{left: len(s.Text) + 1000}
	if err := size.node(body, 0); err != nil {
		return nil, s.fail(err.mark, "%s", err.message)
	}
	return body, nil
}

func (s Source) fail(at yaml.Mark, format string, args ...any) error {
	e := &SyntaxError{File: s.File, Line: 1, Column: 1, Message: OneLine(fmt.Sprintf(format, args...))}
	if at.Line > 0 {
		e.Line, e.Column = at.Line, max(at.Column, 1)
		all := lines{text: bytes.Split(s.Text, []byte("\n"))}
		e.Excerpt = all.excerpt(e.Line, e.Column)
	}
	return e
}

// parseYAML and decodeYAML turn a panic of the library into an error: what a user
// wrote must never end natkit. A second document ends the reading.
func parseYAML(source []byte) (documents []*yaml.Node, err error) {
	defer caught(&err)
	loader, err := yaml.NewLoader(bytes.NewReader(source))
	for err == nil && len(documents) < 2 {
		document := new(yaml.Node)
		if err = loader.Load(document); err == nil {
			documents = append(documents, document)
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return documents, err
}

func decodeYAML(body *yaml.Node, to any) (err error) {
	defer caught(&err)
	return body.Load(to, yaml.WithKnownFields())
}

func caught(err *error) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("this YAML cannot be read (%v)", r)
	}
}
