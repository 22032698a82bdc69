package document

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v4"
)

// shelf has a list that may be one value, and fields of a struct within it.
type shelf struct {
	Books  titles `yaml:"books"`
	Labels `yaml:",inline"`
}

type Labels struct {
	Room hour `yaml:"room"`
}

type titles []string

func (all *titles) UnmarshalYAML(n *yaml.Node) error {
	*all = nil
	return List(n, func(item *yaml.Node) error {
		return Scalar(item, "a title", func(text string) error {
			if strings.HasSuffix(text, ".") {
				return Advice("leave out the full stop")
			}
			*all = append(*all, text)
			return nil
		})
	})
}

func decodeShelf(text string) (shelf, *Tree, error) {
	var s shelf
	tree, err := Source{File: "s.yaml", What: "shelf", Text: []byte(text), Limit: 400, Whole: true}.DecodeTree(&s, nil)
	return s, tree, err
}

func TestDecodeTree(t *testing.T) {
	for text, want := range map[string]shelf{
		"books: one":              {Books: titles{"one"}},
		"books: [one, two]":       {Books: titles{"one", "two"}},
		"room: 7h\nbooks:\n- one": {Books: titles{"one"}, Labels: Labels{hour{"7h"}}},
		// Colons within values, in a list within braces.
		"{books: [fd00::1, ::2, 'a:b', 1:2:3, fd00:1::/64]}": {Books: titles{"fd00::1", "::2", "a:b", "1:2:3", "fd00:1::/64"}},
		"books: &b [one]\nroom: 7h ":                         {Books: titles{"one"}, Labels: Labels{hour{"7h"}}},
	} {
		got, _, err := decodeShelf(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
		}
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(hour{})); diff != "" {
			t.Errorf("%s\n%s", text, diff)
		}
	}
}

func TestDecodeTreeErrors(t *testing.T) {
	for text, want := range map[string]string{
		"books: []":           "s.yaml:1:8: expected one or more, found an empty list",
		"books: [one, two.]":  `s.yaml:1:14: expected a title, found "two.": leave out the full stop`,
		"books: [[one]]":      "s.yaml:1:9: expected a title",
		"books:\nroom: 7h":    "s.yaml:1:7: expected a value, found nothing",
		"room: null":          "s.yaml:1:7: expected a value, found nothing",
		"{books: [a: b]}":     "s.yaml:1:10: expected a title",
		"{books: [fd00::5.]}": `s.yaml:1:10: expected a title, found "fd00::5.": leave out the full stop`,
		"rooms: 7h":           `s.yaml:1:1: unknown field "rooms"; expected one of: books, room`,
	} {
		_, tree, err := decodeShelf(text)
		var syntax *SyntaxError
		if !errors.As(err, &syntax) || tree != nil || err.Error() != want {
			t.Errorf("%q:\ngot  %v\nwant %s", text, err, want)
		}
	}
}

func TestTreeAt(t *testing.T) {
	_, tree, err := decodeShelf("room: 7h\nbooks:\n  - one\n  - two\n")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		path []any
		want Place
	}{
		{[]any{"books", 1}, Place{4, 5, "    4 |   - two\n      |     ^"}},
		{[]any{"room"}, Place{1, 7, "    1 | room: 7h\n      |       ^"}},
		{[]any{"books", 7, "more"}, Place{3, 3, "    3 |   - one\n      |   ^"}},
		{nil, Place{1, 1, "    1 | room: 7h\n      | ^"}},
	} {
		if diff := cmp.Diff(tt.want, tree.At(tt.path...)); diff != "" {
			t.Errorf("%v\n%s", tt.path, diff)
		}
	}
}
