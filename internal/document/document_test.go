package document

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/testutil"
	"go.yaml.in/yaml/v4"
)

type garden struct {
	Name  string   `yaml:"name"`
	Beds  []bed    `yaml:"beds,omitempty"`
	Size  [2]int   `yaml:"size"`
	Depth float64  `yaml:"depth"`
	Opens hour     `yaml:"opens"`
	Far   *bed     `yaml:"far"`
	Words []string `yaml:"words"`
}

type bed struct {
	Plants uint16 `yaml:"plants"`
}

type hour struct{ text string }

func (h *hour) UnmarshalYAML(n *yaml.Node) error {
	return Scalar(n, "an hour such as 7h", func(text string) error {
		if !strings.HasSuffix(text, "h") {
			return errors.New("no hour")
		}
		h.text = text
		return nil
	})
}

func decode(text string) (garden, error) {
	g := garden{Name: "of old", Depth: 2}
	err := Source{File: "g.yaml", What: "garden", Text: []byte(text), Limit: 400}.Decode(&g, func() *Problem {
		if len(g.Beds) > 1 && g.Beds[1].Plants == 7 {
			return &Problem{[]any{"beds", 1, "plants"}, "expected another number"}
		}
		return nil
	})
	return g, err
}

// What the text does not name stays.
func TestDecode(t *testing.T) {
	got, err := decode("name: new\nbeds:\n  - plants: 3\nopens: 7h\n")
	if err != nil {
		t.Fatal(err)
	}
	want := garden{Name: "new", Beds: []bed{{3}}, Depth: 2, Opens: hour{"7h"}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(hour{})); diff != "" {
		t.Error(diff)
	}
}

func TestByteOrderMark(t *testing.T) {
	if got, err := decode("\ufeffname: new\n"); err != nil || got.Name != "new" {
		t.Error(got, err)
	}
	var syntax *SyntaxError
	if _, err := decode("\ufeffdepth: deep\n"); !errors.As(err, &syntax) || syntax.Line != 1 || syntax.Column != 8 {
		t.Error(err)
	}
}

func TestDecodeErrors(t *testing.T) {
	for _, tt := range []struct{ name, text, want, excerpt string }{
		{"unknown key", "name: x\nbeds:\n  - plant: 3\n", `g.yaml:3:5: unknown field "plant" (did you mean "plants"?); expected one of: plants`,
			"    3 |   - plant: 3\n      |     ^"},
		{"kind", "depth: deep\n", `g.yaml:1:8: expected a number, found "deep"`, "    1 | depth: deep\n      |        ^"},
		{"own value", "opens: noon\n", `g.yaml:1:8: expected an hour such as 7h, found "noon"`, "    1 | opens: noon\n      |        ^"},
		{"meaning", "beds: [{plants: 1}, {plants: 7}]\n", "g.yaml:1:30: expected another number",
			"    1 | beds: [{plants: 1}, {plants: 7}]\n      |                              ^"},
		{"length", "size: [1]\n", "g.yaml:1:7: expected a list of 2, found 1", "    1 | size: [1]\n      |       ^"},
		{"bracket in braces", "{name: [fd00::2]:80}\n", `g.yaml:1:17: did not find expected ',' or '}'; text that begins with a bracket or ends with a colon stands in quotes: "[fd00::2]:80", "fd00::"`,
			"    1 | {name: [fd00::2]:80}\n      |                 ^"},
		{"colon at the end", "{name: fd00::}\n", `g.yaml:1:13: did not find expected ',' or '}'; text that begins with a bracket or ends with a colon stands in quotes: "[fd00::2]:80", "fd00::"`,
			"    1 | {name: fd00::}\n      |             ^"},
		{"bracket", "name: [fd00::2]:80\n", `g.yaml:1:16: did not find expected key; text that begins with a bracket or ends with a colon stands in quotes: "[fd00::2]:80", "fd00::"`,
			"    1 | name: [fd00::2]:80\n      |                ^"},
		{"wide letters", "name: ü\nopens: ünter\n", `g.yaml:2:8: expected an hour such as 7h, found "ünter"`, "    2 | opens: ünter\n      |        ^"},
		{"escapes", "name: x\nopens: \"\x1b[2J\"\n", `g.yaml:2:9: control characters are not allowed (value: 27)`, "    2 | opens: \" [2J\"\n      |         ^"},
		{"escapes resolved", "name: \"\\e[2J\"\n", `g.yaml:1:7: control character in "\x1b[2J": a terminal would act on it`, "    1 | name: \"\\e[2J\"\n      |       ^"},
		{"C1", "name: \"\\u009b2J\"\n", `g.yaml:1:7: control character in "\u009b2J": a terminal would act on it`, "    1 | name: \"\\u009b2J\"\n      |       ^"},
		{"escape in a comment", "name: x # \x1b[2J\n", `g.yaml:1:11: control characters are not allowed (value: 27)`, "    1 | name: x #  [2J\n      |           ^"},
		{"long line", "words: [" + strings.Repeat("w, ", 30) + "w]\nopens: x\n", `g.yaml:2:8: expected an hour such as 7h, found "x"`, "    2 | opens: x\n      |        ^"},
		{"far to the right", "{words: [" + strings.Repeat("w, ", 30) + "w], opens: x}\n", `g.yaml:1:111: expected an hour such as 7h, found "x"`,
			"    1 | , w, w, w, w, w, w, w, w, w, w], opens: x}\n      |" + strings.Repeat(" ", 41) + "^"},
		{"empty", "", "g.yaml:1:1: expected a garden, found an empty document", ""},
		{"two", "name: x\n---\nname: y\n", "g.yaml:3:1: expected one YAML document with a garden, found another one after it", "    3 | name: y\n      | ^"},
		{"a tag", "name: !!python/object:os.system x\n", "g.yaml:1:7: unknown tag !!python/object:os.system", "    1 | name: !!python/object:os.system x\n      |       ^"},
		{"a tag of a mapping", "!garden\nname: x\n", "g.yaml:1:1: unknown tag !garden", "    1 | !garden\n      | ^"},
		{"too large", strings.Repeat("#", 401), "g.yaml:1:1: expected a garden of at most 400 bytes, found more", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := decode(tt.text)
			var syntax *SyntaxError
			if !errors.As(err, &syntax) {
				t.Fatalf("error %T %v", err, err)
			}
			if diff := cmp.Diff([]string{tt.want, tt.excerpt}, []string{err.Error(), syntax.Excerpt}); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func FuzzDecode(f *testing.F) {
	f.Add("name: x\nbeds: [*a]\n")
	f.Add("far: &a {plants: *a}\n")
	f.Add("a: |\n" + strings.Repeat("\n", 300) + "  b\n")
	f.Add("words: [&a b" + strings.Repeat(", *a", 90) + "]\n")
	f.Fuzz(func(t *testing.T, text string) {
		defer testutil.Bounded(t, len(text))()
		metered(t, text)
		_, err := decode(text)
		var syntax *SyntaxError
		if err != nil && (!errors.As(err, &syntax) || strings.Contains(err.Error(), "\n") || strings.Count(syntax.Excerpt, "\n") > 1) {
			t.Fatalf("%T %q", err, err)
		}
	})
}

// What would make the parser call itself without end is refused before it is asked.
func TestDecodeDeep(t *testing.T) {
	const many = 100_000
	for _, text := range []string{
		"words: " + strings.Repeat("[", many), "far: " + strings.Repeat("{a: ", many), "beds: " + strings.Repeat("[{a: ", many),
		"beds:\n" + strings.Repeat("- ", many), "beds:\n  " + strings.Repeat("-   ", many), "words:\n" + strings.Repeat("[\n", many),
		"beds: [\n" + strings.Repeat("[{} ]", many/5) + strings.Repeat("{", many),
	} {
		err := Source{File: "g.yaml", What: "garden", Text: []byte(text), Limit: 10 * many}.Decode(new(garden), nil)
		if err == nil || !strings.HasSuffix(err.Error(), ": expected a garden, found brackets, lists or mappings in each other more than 500 deep") {
			t.Errorf("%.20q: error %v", text, err)
		}
	}
	// Many brackets, one after the other, are not deep.
	text := "words: [" + strings.Repeat("[a], ", 1000) + "]"
	if err := (Source{File: "g.yaml", What: "garden", Text: []byte(text), Limit: 10 * many}).Decode(new(garden), nil); err == nil || strings.Contains(err.Error(), "deep") {
		t.Errorf("error %v", err)
	}
}

// What a user gave is on one line, and shows what does not print.
func TestShown(t *testing.T) {
	for text, want := range map[string]string{"a b.yaml": "a b.yaml", "ü": "ü", "a\nb": `"a\nb"`, "\x1b[2J": `"\x1b[2J"`, "\xff": `"\xff"`} {
		if got := Shown(text); got != want {
			t.Errorf("%q: %s", text, got)
		}
	}
	if got := (&SyntaxError{File: "a\nb", Line: 1, Column: 2, Message: "c"}).Error(); got != `"a\nb":1:2: c` {
		t.Error(got)
	}
}

// UTF-16, which the library reads and of which no place would be right, is refused.
func TestUTF16(t *testing.T) {
	for _, text := range []string{"\xff\xfen\x00a\x00", "\xfe\xff\x00n"} {
		if _, err := decode(text); err == nil || !strings.Contains(err.Error(), "expected text in UTF-8, found UTF-16") {
			t.Error(err)
		}
	}
}
