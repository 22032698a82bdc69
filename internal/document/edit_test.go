package document

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v4"
)

// edited has a value in each layout that people write.
const edited = `# head
a: 1   # one
b: "two"
flow: {x: 1, y: [p, q], z: 'it''s'} # end
list:
  - eth0 # first
  # of the second
  - eth1
items:
- name: web
  to: 10.0.0.1:80
# before proxy
- {name: proxy, to: [{address: 10.0.0.1, weight: 3}, 10.0.0.2]}
wide: [
  10.0.0.0/8,     # private
  192.168.0.0/16, # private too
]
deep:
  one:
    two: 2
last: end`

func TestEdit(t *testing.T) {
	for _, c := range []struct {
		kind  ChangeKind
		path  []any
		value string
		// from and to are the lines that change.
		from, to string
	}{
		{Set, []any{"a"}, "2", "a: 1   # one", "a: 2   # one"},
		{Set, []any{"b"}, `say "hi"`, `b: "two"`, `b: "say \"hi\""`},
		{Set, []any{"last"}, "[fd00::2]:80", "last: end", `last: "[fd00::2]:80"`},
		{Set, []any{"last"}, "fd00::", "last: end", `last: "fd00::"`},
		{Set, []any{"last"}, "[a, b]", "last: end", "last: [a, b]"},
		{Set, []any{"last"}, "null", "last: end", `last: "null"`},
		{Set, []any{"flow", "z"}, "a, b", "flow: {x: 1, y: [p, q], z: 'it''s'} # end", "flow: {x: 1, y: [p, q], z: 'a, b'} # end"},
		{Set, []any{"flow", "y"}, "r", "flow: {x: 1, y: [p, q], z: 'it''s'} # end", "flow: {x: 1, y: r, z: 'it''s'} # end"},
		{Set, []any{"flow", "new"}, "::1", "flow: {x: 1, y: [p, q], z: 'it''s'} # end", "flow: {x: 1, y: [p, q], z: 'it''s', new: ::1} # end"},
		{Set, []any{"items", Named("web"), "to"}, "10.0.0.4:80", "  to: 10.0.0.1:80", "  to: 10.0.0.4:80"},
		{Set, []any{"items", Named("proxy"), "to", Named("10.0.0.1"), "weight"}, "5",
			"- {name: proxy, to: [{address: 10.0.0.1, weight: 3}, 10.0.0.2]}", "- {name: proxy, to: [{address: 10.0.0.1, weight: 5}, 10.0.0.2]}"},
		{Set, []any{"items", 0, "enabled"}, "off", "  to: 10.0.0.1:80", "  to: 10.0.0.1:80\n  enabled: off"},
		{Set, []any{"list"}, "eth2", "list:\n  - eth0 # first\n  # of the second\n  - eth1", "list: eth2"},
		{Set, []any{"deep", "one", "three"}, "3", "    two: 2", "    two: 2\n    three: 3"},
		{Set, []any{"more", "wan"}, "eth9", "last: end", "last: end\nmore: {wan: eth9}"},
		{Set, []any{"items", 1, Either{"from", "to"}}, "x", "- {name: proxy, to: [{address: 10.0.0.1, weight: 3}, 10.0.0.2]}", "- {name: proxy, to: x}"},
		{Add, []any{"list"}, "eth2", "  - eth1", "  - eth1\n  - eth2"},
		{Add, []any{"items"}, "{name: c, to: [x, y]}", "- {name: proxy, to: [{address: 10.0.0.1, weight: 3}, 10.0.0.2]}",
			"- {name: proxy, to: [{address: 10.0.0.1, weight: 3}, 10.0.0.2]}\n- name: c\n  to: [x, y]"},
		{Add, []any{"flow", "y"}, "r", "flow: {x: 1, y: [p, q], z: 'it''s'} # end", "flow: {x: 1, y: [p, q, r], z: 'it''s'} # end"},
		{Add, []any{"a"}, "2", "a: 1   # one", "a: [1, 2]   # one"},
		{Add, []any{"new"}, "2", "last: end", "last: end\nnew: 2"},
		{Add, []any{"wide"}, "172.16.0.0/12", "  192.168.0.0/16, # private too", "  192.168.0.0/16, 172.16.0.0/12, # private too"},
		{Remove, []any{"list"}, "eth0", "  - eth0 # first\n", ""},
		{Remove, []any{"list"}, "eth1", "  - eth1\n", ""},
		{Remove, []any{"flow", "y"}, "p", "y: [p, q]", "y: [q]"},
		{Remove, []any{"flow", "y"}, "q", "y: [p, q]", "y: [p]"},
		{Remove, []any{"wide"}, "10.0.0.0/8", "  10.0.0.0/8,     # private\n", ""},
		{Remove, []any{"wide"}, "192.168.0.0/16", "  192.168.0.0/16, # private too\n", ""},
		{Remove, []any{"items"}, "web", "- name: web\n  to: 10.0.0.1:80\n", ""},
		{Remove, []any{"items", 1, "to"}, "10.0.0.1", "{address: 10.0.0.1, weight: 3}, ", ""},
		{Remove, []any{"a"}, "1", "a: 1   # one\n", ""},
		{Unset, []any{"flow", "x"}, "", "x: 1, ", ""},
		{Unset, []any{"flow", "z"}, "", ", z: 'it''s'", ""},
		{Unset, []any{"items", 0, "name"}, "", "name: web\n  ", ""},
		{Unset, []any{"items", 0, "to"}, "", "  to: 10.0.0.1:80\n", ""},
		{Unset, []any{"deep", "one", "two"}, "", "one:\n    two: 2", "one: {}"},
		{Unset, []any{"last"}, "", "last: end", ""},
	} {
		want := strings.Replace(edited, c.from, c.to, 1)
		if want == edited {
			t.Fatalf("%q is not there", c.from)
		}
		for _, form := range []func(string) string{
			func(text string) string { return text },
			func(text string) string { return "\ufeff" + strings.ReplaceAll(text, "\n", "\r\n") },
		} {
			s := Source{File: "f", What: "document", Text: []byte(form(edited)), Limit: 1000}
			got, err := s.Edit(Change{Path: c.path, Kind: c.kind, Value: c.value})
			if err != nil {
				t.Errorf("%v %q: %v", c.path, c.value, err)
			} else if diff := cmp.Diff(form(want), string(got)); diff != "" {
				t.Errorf("%v %q:\n%s", c.path, c.value, diff)
			}
		}
	}
}

// A new key follows those that it has its place behind.
func TestEditOrder(t *testing.T) {
	s := Source{Text: []byte("a: 1\nd: 4\n"), Limit: 100}
	got, err := s.Edit(Change{Path: []any{"c"}, Value: "3", Order: []string{"a", "b", "c", "d"}})
	if err != nil || string(got) != "a: 1\nc: 3\nd: 4\n" {
		t.Errorf("%q, %v", got, err)
	}
	for text, want := range map[string]string{
		"t:\n  # of d\n\n  d: 4\n": "t:\n  c: 3\n  # of d\n\n  d: 4\n",
		"t: {d: 4}":                "t: {c: 3, d: 4}",
		"t:\n- 1\n- d: 4\n  e: 5":  "",
	} {
		s, path := Source{Text: []byte(text), Limit: 100}, []any{"t", "c"}
		if want == "" {
			path, want = []any{"t", 1, "c"}, "t:\n- 1\n- c: 3\n  d: 4\n  e: 5"
		}
		got, err := s.Edit(Change{Path: path, Value: "3", Order: []string{"c", "d"}})
		if err != nil || string(got) != want {
			t.Errorf("%q, %v", got, err)
		}
	}
}

// What cannot be changed is refused where it stands.
func TestEditRefused(t *testing.T) {
	const text = "a: &m {e: 1}\nb: 1\nc: {d: *m}\nlong: one\n  two\nm: 1\nlist: [p, q]\n? k\n: v\nblock: |\n  text\n"
	for _, c := range []struct {
		change       Change
		line, column int
	}{
		{Change{Path: []any{"a"}, Kind: Unset}, 1, 4},
		{Change{Path: []any{"c", "d", "e"}, Value: "2"}, 3, 8},
		{Change{Path: []any{"m"}, Value: "{x: *m}"}, 6, 4},
		{Change{Path: []any{"list", 2}, Value: "2"}, 7, 7},
		{Change{Path: []any{"list", Named("r")}, Value: "2"}, 7, 7},
		{Change{Path: []any{"list", "r"}, Value: "2"}, 7, 7},
		{Change{Path: []any{"list", 0, "r"}, Value: "2"}, 7, 8},
		{Change{Path: []any{"list", 0}, Value: "{x"}, 7, 8},
		{Change{Path: []any{"list", 0}, Value: "a\nb"}, 7, 8},
		{Change{Path: []any{"list"}, Kind: Remove, Value: "r"}, 7, 7},
		{Change{Path: []any{"no"}, Kind: Remove, Value: "r"}, 1, 1},
		{Change{Path: []any{"b"}, Kind: Remove, Value: "1", KeepOne: true}, 2, 4},
		{Change{Path: []any{"no", 1}, Value: "r"}, 1, 1},
		{Change{Path: []any{"no"}, Kind: Unset}, 1, 1},
		{Change{}, 1, 1},
	} {
		s := Source{File: "f", Text: []byte(text), Limit: 1000}
		got, err := s.Edit(c.change)
		var syntax *SyntaxError
		if !errors.As(err, &syntax) || got != nil {
			t.Errorf("%v: %q, %v", c.change, got, err)
		} else if syntax.Line != c.line || syntax.Column != c.column {
			t.Errorf("%v: at %d:%d: %s", c.change, syntax.Line, syntax.Column, syntax.Message)
		}
	}
}

// anchored has values that stand in several places.
const anchored = `a: &one 1
list: [&x p, q, *x]
base: &base # of both
  # first
  k: 1
  l: &l
  - p # one
  - q
more: {<<: *base, k: 2}
rules:
- dnat: &web {to: p}
  # of the first
- dnat: *web
- &third
  dnat: !!map {to: r}
nothing: &n
null:
gateway:
end: *l
`

// A change beside an anchor is made as beside any other value, one within it keeps it.
func TestEditAnchored(t *testing.T) {
	for _, c := range []struct {
		change   Change
		from, to string
	}{
		{Change{Path: []any{"a"}, Value: "2"}, "a: &one 1", "a: &one 2"},
		{Change{Path: []any{"a"}, Kind: Add, Value: "2"}, "a: &one 1", "a: [&one 1, 2]"},
		{Change{Path: []any{"a"}, Kind: Unset}, "a: &one 1\n", ""},
		{Change{Path: []any{"list", 0}, Value: "r"}, "[&x p, q", "[&x r, q"},
		{Change{Path: []any{"list", 2}, Value: "r"}, "q, *x]", "q, r]"},
		{Change{Path: []any{"list"}, Kind: Remove, Value: "q"}, "q, *x]", "*x]"},
		{Change{Path: []any{"base", "m"}, Value: "2"}, "  - q\n", "  - q\n  m: 2\n"},
		{Change{Path: []any{"base", "j"}, Value: "2", Order: []string{"j", "k"}}, "of both\n", "of both\n  j: 2\n"},
		{Change{Path: []any{"base"}, Value: "{k: 3}"}, "", ""}, // l goes
		{Change{Path: []any{"base", "l"}, Value: "[r]"}, "l: &l\n  - p # one\n  - q", "l: &l [r]"},
		{Change{Path: []any{"base", "l"}, Kind: Add, Value: "r"}, "  - q\n", "  - q\n  - r\n"},
		{Change{Path: []any{"base", "l"}, Kind: Unset}, "", ""},
		{Change{Path: []any{"more", "l"}, Value: "p"}, "{<<: *base, k: 2}", "{<<: *base, k: 2, l: p}"},
		{Change{Path: []any{"more", "l"}, Kind: Add, Value: "p"}, "", ""}, // would lose what it takes over
		{Change{Path: []any{"more", "l"}, Kind: Unset}, "", ""},
		{Change{Path: []any{"more", "l", 0}, Value: "p"}, "", ""},
		{Change{Path: []any{"more", Either{"l", "m"}, "x"}, Value: "p"}, "", ""},
		{Change{Path: []any{"rules", 0, "enabled"}, Value: "off"}, "{to: p}\n", "{to: p}\n  enabled: off\n"},
		{Change{Path: []any{"rules", 0, "dnat", "to"}, Value: "r"}, "{to: p}", "{to: r}"},
		{Change{Path: []any{"rules", 0}, Kind: Unset}, "", ""},
		{Change{Path: []any{"rules", 0}, Value: "{snat: {}}"}, "", ""},
		{Change{Path: []any{"rules", 1, "name"}, Value: "r"}, "- dnat: *web\n", "- dnat: *web\n  name: r\n"},
		{Change{Path: []any{"rules", 1, "dnat"}, Value: "{to: r}"}, "dnat: *web", "dnat: {to: r}"},
		{Change{Path: []any{"rules", 1}, Kind: Unset}, "- dnat: *web\n", ""},
		{Change{Path: []any{"rules", 1, "dnat", "to"}, Value: "r"}, "", ""},
		{Change{Path: []any{"rules", 2, "name"}, Value: "r"}, "{to: r}\n", "{to: r}\n  name: r\n"},
		{Change{Path: []any{"rules", 2, "dnat"}, Value: "{to: r}"}, "", ""}, // the tag may not be that of the new value
		{Change{Path: []any{"rules"}, Kind: Add, Value: "{snat: {}, name: r}"}, "{to: r}\n", "{to: r}\n- snat: {}\n  name: r\n"},
		{Change{Path: []any{"rules"}, Kind: Add, Value: "{dnat: &web {to: s}}"}, "{to: r}\n", "{to: r}\n- dnat: &web {to: s}\n"},
		{Change{Path: []any{"rules", 0, "x"}, Value: "{y: &web 1}"}, "", ""}, // *web would be that
		{Change{Path: []any{"nothing"}, Value: "1"}, "&n\n", "&n 1\n"},
		{Change{Path: []any{"null"}, Kind: Add, Value: "1"}, "null:\n", "null: 1\n"},
		{Change{Path: []any{"gateway", "nat"}, Kind: Add, Value: "{snat: {}}"}, "gateway:\n", "gateway: {nat: [{snat: {}}]}\n"},
		{Change{Path: []any{"gateway", "x", "y"}, Value: "1"}, "gateway:\n", "gateway: {x: {y: 1}}\n"},
		{Change{Path: []any{"gateway", "x"}, Kind: Unset}, "", ""},
		{Change{Path: []any{"end"}, Kind: Add, Value: "1"}, "", ""},
		{Change{Path: []any{"end"}, Kind: Remove, Value: "p"}, "", ""},
		{Change{Path: []any{"end"}, Value: "p"}, "end: *l", "end: p"},
	} {
		s := Source{File: "f", Text: []byte(anchored), Limit: 1000, Compose: &Compose{Lists: []string{"nat"}}}
		got, err := s.Edit(c.change)
		if c.from == "" {
			if err == nil {
				t.Errorf("%v:\n%s", c.change, got)
			} else if strings.Contains(err.Error(), "because of the layout around it") != (c.change.Value == "{y: &web 1}") {
				t.Errorf("%v: %v", c.change, err)
			}
			continue
		}
		if diff := cmp.Diff(strings.Replace(anchored, c.from, c.to, 1), string(got)); err != nil || diff != "" {
			t.Errorf("%v: %v\n%s", c.change, err, diff)
		}
	}
}

// What stands behind the hyphen goes; comments below it stay.
func TestEditBehindHyphen(t *testing.T) {
	for text, want := range map[string]string{
		"- a: 1 # one\n  # of b\n  # and c\n  b: 2\n": "- # of b\n  # and c\n  b: 2\n",
		"- a: 1\n\n  b: 2\n":                          "- b: 2\n",
		"-   a: 1\n    &b b: 2\n":                     "-   &b b: 2\n",
	} {
		got, err := Source{Text: []byte(text), Limit: 100}.Edit(Change{Path: []any{0, "a"}, Kind: Unset})
		if err != nil || string(got) != want {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
}

// Text over several lines is changed as a whole, and is no obstacle.
func TestEditLongText(t *testing.T) {
	for text, end := range map[string]string{
		"one\n     two\n\n     three": "",
		"one # why":                   " # why",
		"'it''s\n\n  two'":            "",
		"|\n    one\n\n      two":     "",
		">- # why\n    one\n    two":  "",
		"|2\n    one\n    two":        "",
		"&t >\n    one":               "",
	} {
		now := "v" + end
		switch text[0] {
		case '\'':
			now = "'v'"
		case '&':
			now = "&t v"
		}
		for _, after := range []string{"", "\n", "\n- k: 2\n", "\n# of the list\n- k: 2\n"} {
			s := Source{File: "f", Text: []byte("- k: " + text + after), Limit: 1000}
			for _, c := range []struct {
				change Change
				want   string
			}{
				{Change{Path: []any{0, "k"}, Value: "v"}, "- k: " + now + after},
				{Change{Path: []any{0, "l"}, Value: "v"}, "- k: " + text + "\n  l: v" + after},
			} {
				if c.change.Path[1] == any("l") && after == "" && strings.ContainsAny(text[:4], "|>") { // the line break would be of the text
					continue
				}
				if got, err := s.Edit(c.change); err != nil || string(got) != c.want {
					t.Errorf("%q %v: %q, %v", s.Text, c.change.Path, got, err)
				}
			}
		}
	}
}

// A list of rules is one from its first item on.
func TestEditAddsToNoList(t *testing.T) {
	for text, want := range map[string]string{
		"k: 1\n":             "k: 1\nnat:\n  - snat: {}\n    name: r\n",
		"k: 1\r\n":           "k: 1\r\nnat:\r\n  - snat: {}\r\n    name: r\r\n",
		"{k: 1}":             "{k: 1, nat: [{snat: {}, name: r}]}",
		"{}":                 "{nat: [{snat: {}, name: r}]}",
		"nat: # none yet\n":  "nat: [{snat: {}, name: r}] # none yet\n",
		"nat: &n\nk: [*n]\n": "nat: &n [{snat: {}, name: r}]\nk: [*n]\n",
		"nat: null\n":        "nat: [{snat: {}, name: r}]\n",
		"nat: []\n":          "nat: [{snat: {}, name: r}]\n",
		"nat: {snat: {}}\n":  "nat: [{snat: {}}, {snat: {}, name: r}]\n",
		"nat:\n  snat: {}\n": "",
	} {
		s := Source{File: "f", Text: []byte(text), Limit: 1000, Compose: &Compose{Lists: []string{"nat"}}}
		if got, err := s.Edit(Change{Path: []any{"nat"}, Kind: Add, Value: "{snat: {}, name: r}"}); string(got) != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
}

// writer writes values as different people would.
type writer struct {
	r *rand.Rand
	b bytes.Buffer
	// anchors is how many values have one.
	anchors int
}

// anchor is one, or none.
func (w *writer) anchor() string {
	if !w.chance(5) {
		return ""
	}
	w.anchors++
	return fmt.Sprintf("&x%d ", w.anchors)
}

func (w *writer) chance(n int) bool { return w.r.IntN(n) == 0 }

var editWords = []string{"eth0", "10.0.0.0/8", "fd00::2", "[fd00::2]:80", "a b", "it's", `"q"`, "5000/s", "tcp+udp/53", "-x", "*", "#", "a #b", "a: b", "on", "null", "", "ü", "a,b", "1"}

func (w *writer) scalar() string { return editWords[w.r.IntN(len(editWords))] }

// any is a value, with fewer inside.
func (w *writer) any(depth int) any {
	switch n := w.r.IntN(3); {
	case depth == 0 || n == 0:
		return w.scalar()
	case n == 1:
		list := make([]any, 1+w.r.IntN(3))
		for i := range list {
			list[i] = w.any(depth - 1)
		}
		return list
	}
	all := map[string]any{}
	for range 1 + w.r.IntN(3) {
		all[string(rune('a'+w.r.IntN(6)))] = w.any(depth - 1)
	}
	return all
}

func (w *writer) quote(text string, inFlow bool) string {
	if v, err := value(text, inFlow, nil); err == nil && v.node.Kind == yaml.ScalarNode && v.text == text && w.chance(2) {
		return text
	}
	if w.chance(2) {
		return "'" + strings.ReplaceAll(text, "'", "''") + "'"
	}
	return fmt.Sprintf("%q", text)
}

func (w *writer) flow(v any) string {
	glue := []string{", ", ",", ",\n      ", ", # why\n      "}[w.r.IntN(4)]
	var parts []string
	anchor := w.anchor()
	switch v := v.(type) {
	case string:
		return anchor + w.quote(v, true)
	case []any:
		for _, item := range v {
			parts = append(parts, w.flow(item))
		}
		return anchor + "[" + strings.Join(parts, glue) + "]"
	case map[string]any:
		for _, key := range keysOf(v) {
			parts = append(parts, key+": "+w.flow(v[key]))
		}
		return anchor + "{" + strings.Join(parts, glue) + "}"
	}
	panic(v)
}

func keysOf(m map[string]any) (keys []string) {
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// block writes a value behind a key or a hyphen.
func (w *writer) block(v any, indent string) {
	if _, text := v.(string); text || w.chance(3) {
		w.b.WriteString(" " + map[bool]func(any) string{true: func(v any) string { return w.quote(v.(string), false) }, false: w.flow}[text](v) + []string{"", " # why"}[w.r.IntN(2)] + "\n")
		return
	}
	w.b.WriteString(strings.TrimRight(" "+w.anchor(), " ") + "\n")
	w.lines(v, indent+"  ")
}

// item writes a value behind a hyphen: a mapping may begin there.
func (w *writer) item(v any, indent string) {
	m, isMap := v.(map[string]any)
	if !isMap || w.chance(3) {
		w.b.WriteString(" " + w.flow(v) + "\n")
		return
	}
	begin := " "
	for _, key := range keysOf(m) {
		w.b.WriteString(begin + key + ":")
		w.block(m[key], indent+"  ")
		begin = indent + "  "
	}
}

func (w *writer) lines(v any, indent string) {
	comment := func() {
		if w.chance(4) {
			w.b.WriteString(indent + "# comment\n\n")
		}
	}
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			comment()
			w.b.WriteString(indent + "-")
			w.item(item, indent)
		}
	case map[string]any:
		for _, key := range keysOf(v) {
			comment()
			w.b.WriteString(indent + key + ":")
			w.block(v[key], indent)
		}
	}
}

// TestEditRandom: what is read after a change is what the change makes of what was read before, and no line but
// those of the changed value is another one.
func TestEditRandom(t *testing.T) {
	made := map[ChangeKind]int{}
	for seed := range uint64(2000) {
		w := &writer{r: rand.New(rand.NewPCG(seed, 1))}
		doc := map[string]any{"k": w.any(3), "l": w.any(3)}
		w.lines(doc, "")
		text := w.b.String()
		change := Change{Kind: ChangeKind(w.r.IntN(4)), Value: w.scalar()}
		want, ok := w.step(doc, &change)
		if !ok {
			continue
		}
		got, err := Source{File: "f", Text: []byte(text), Limit: 1 << 20}.Edit(change)
		if err != nil {
			t.Errorf("%d: %+v: %v\n%s", seed, change, err, text)
			continue
		}
		var read any
		if err := yaml.Unmarshal(got, &read); err != nil {
			t.Errorf("%d: %+v: %v\n%s\n%s", seed, change, err, text, got)
			continue
		}
		if diff := cmp.Diff(want, texts(read)); diff != "" {
			t.Errorf("%d: %+v: %s\n%s\n%s", seed, change, diff, text, got)
		}
		if lost := lostComments(text, string(got)); change.Kind == Add && lost > 0 {
			t.Errorf("%d: %+v: %d comments are lost\n%s\n%s", seed, change, lost, text, got)
		}
		unchanged(t, seed, change, text, string(got))
		made[change.Kind]++
	}
	if len(made) != 4 || min(made[Set], made[Unset], made[Add], made[Remove]) < 150 {
		t.Errorf("the changes say little: %v", made)
	}
}

func lostComments(before, after string) int {
	return strings.Count(before, "#") - strings.Count(after, "#")
}

// unchanged finds lines that were changed in more than one place.
func unchanged(t *testing.T, seed uint64, c Change, before, after string) {
	t.Helper()
	old, now := strings.SplitAfter(before, "\n"), strings.SplitAfter(after, "\n")
	for len(old) > 0 && len(now) > 0 && old[0] == now[0] {
		old, now = old[1:], now[1:]
	}
	for len(old) > 0 && len(now) > 0 && old[len(old)-1] == now[len(now)-1] {
		old, now = old[:len(old)-1], now[:len(now)-1]
	}
	if len(now) > 1 {
		t.Errorf("%d: %+v: more than a line is new: %q, before: %q", seed, c, now, old)
	}
}

// step picks a way down and makes the change, in the model.
func (w *writer) step(v any, c *Change) (any, bool) {
	stop := w.chance(3) && len(c.Path) > 0
	switch v := v.(type) {
	case map[string]any:
		keys := keysOf(v)
		key := keys[w.r.IntN(len(keys))]
		if w.chance(6) && (c.Kind == Set || c.Kind == Add) {
			key = "new"
		}
		c.Path = append(c.Path, key)
		below, there := v[key]
		if there && !stop && !isText(below) {
			now, ok := w.step(below, c)
			if now == nil {
				return w.without(v, key), ok
			}
			v[key] = now
			return v, ok
		}
		now, ok := w.here(below, there, c)
		if now == nil {
			return w.without(v, key), ok
		}
		v[key] = now
		return v, ok
	case []any:
		i := w.r.IntN(len(v))
		c.Path = append(c.Path, i)
		var now any
		var ok bool
		if stop || isText(v[i]) {
			now, ok = w.here(v[i], true, c)
		} else {
			now, ok = w.step(v[i], c)
		}
		if now != nil {
			v[i] = now
			return v, ok
		}
		if v = slices.Delete(v, i, i+1); len(v) == 0 {
			return nil, ok
		}
		return v, ok
	}
	return v, false
}

func isText(v any) bool { _, is := v.(string); return is }

func (w *writer) without(v map[string]any, key string) any {
	delete(v, key)
	return v
}

// here is what a value becomes; nil where it goes.
func (w *writer) here(v any, there bool, c *Change) (any, bool) {
	list, isList := v.([]any)
	switch c.Kind {
	case Set:
		return c.Value, true
	case Unset:
		return nil, there
	case Add:
		switch _, isMap := v.(map[string]any); {
		case isMap:
			return v, false
		case isList:
			return append(list, c.Value), true
		case there:
			return []any{v, c.Value}, true
		}
		return c.Value, true
	}
	if !isList {
		c.Value, _ = v.(string)
		return nil, there && isText(v)
	}
	i := w.r.IntN(len(list))
	text, is := list[i].(string)
	if c.Value = text; !is {
		return v, false
	}
	if list = slices.Delete(list, slices.Index(list, any(text)), slices.Index(list, any(text))+1); len(list) == 0 {
		return nil, true
	}
	return list, true
}

// texts is a value with all scalars as they are written.
func texts(v any) any {
	switch v := v.(type) {
	case []any:
		for i := range v {
			v[i] = texts(v[i])
		}
	case map[string]any:
		for key := range v {
			v[key] = texts(v[key])
		}
	case string:
	default:
		return fmt.Sprint(v)
	}
	return v
}
