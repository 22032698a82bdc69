package lab

import (
	"go.yaml.in/yaml/v4"

	"github.com/natkit/natkit/internal/document"
)

// MaxSource bounds the text of a scenario or a mix, in bytes; real ones take two or
// three thousand.
const MaxSource = 32 << 10

// SyntaxError is a fault in a scenario's or a mix's text: where, and what was expected.
type SyntaxError = document.SyntaxError

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
	read := new(T)
	text := document.Source{File: filename, What: what, Text: source, Limit: MaxSource}
	err := text.Decode(read, func() *document.Problem {
		if p := check(read); p != nil {
			return &document.Problem{Path: p.path, Message: p.message}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return read, nil
}

// scalar hands a plain value's text to read. Any failure becomes "expected …".
func scalar(n *yaml.Node, expected string, read func(string) error) error {
	return document.Scalar(n, expected, read)
}

// oneLine keeps what a file contains from flooding or steering the terminal.
func oneLine(message string) string { return document.OneLine(message) }
