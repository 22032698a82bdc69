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
		if name, is := SetName(item); is {
			*all = append(*all, "$"+name)
			return nil
		}
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
		"books: []":           "s.yaml:1:8: expected at least one item, found an empty list",
		"books: [one, two.]":  `s.yaml:1:14: expected a title, found "two.": leave out the full stop`,
		"books: [[one]]":      "s.yaml:1:9: expected a title, found a list: one value is meant; repeat what it belongs to for each of the others",
		"books:\nroom: 7h":    "s.yaml:1:7: expected a value, found nothing",
		"room: null":          "s.yaml:1:7: expected a value, found nothing",
		"{books: [a: b]}":     "s.yaml:1:10: expected a title, found a mapping (key: value)",
		"{books: [fd00::5.]}": `s.yaml:1:10: expected a title, found "fd00::5.": leave out the full stop`,
		"rooms: 7h":           `s.yaml:1:1: unknown field "rooms" (did you mean "room"?); expected one of: books, room`,
	} {
		_, tree, err := decodeShelf(text)
		var syntax *SyntaxError
		if !errors.As(err, &syntax) || tree != nil || err.Error() != want {
			t.Errorf("%q:\ngot  %v\nwant %s", text, err, want)
		}
	}
}

// A short text must not become a long list.
func TestAliasesMultiply(t *testing.T) {
	var read struct {
		First titles     `yaml:"first"`
		All   []titles   `yaml:"all"`
		Texts []string   `yaml:"texts"`
		Many  [][]string `yaml:"many"`
	}
	decode := func(text string) error {
		return Source{File: "s.yaml", What: "shelf", Text: []byte(text), Limit: 1 << 20}.Decode(&read, nil)
	}
	if err := decode("first: &f [one, two]\nall: [*f, *f, [three]]"); err != nil || len(read.All) != 3 || len(read.All[1]) != 2 {
		t.Errorf("%v, %v", read.All, err)
	}
	for _, keys := range [][2]string{{"texts", "many"}, {"first", "all"}} {
		err := decode(keys[0] + ": &t [" + strings.Repeat("a, ", 20_000) + "a]\n" + keys[1] + ": [" + strings.Repeat("*t, ", 20_000) + "*t]")
		if err == nil || !strings.Contains(err.Error(), "too many values") {
			t.Errorf("%s: %v", keys[1], err)
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
		{[]any{"books", 1}, Place{"s.yaml", 4, 5, "    4 |   - two\n      |     ^", ""}},
		{[]any{"room"}, Place{"s.yaml", 1, 7, "    1 | room: 7h\n      |       ^", ""}},
		{[]any{"books", 7, "more"}, Place{"s.yaml", 3, 3, "    3 |   - one\n      |   ^", ""}},
		{nil, Place{"s.yaml", 1, 1, "    1 | room: 7h\n      | ^", ""}},
	} {
		if diff := cmp.Diff(tt.want, tree.At(tt.path...)); diff != "" {
			t.Errorf("%v\n%s", tt.path, diff)
		}
	}
}
