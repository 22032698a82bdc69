package document

import (
	"fmt"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/testutil"
	"go.yaml.in/yaml/v4"
	"go.yaml.in/yaml/v4/plugin/loaderlimits"
)

// dense returns texts of about the given size that have more values, or words that the
// library keeps, than others of that size.
func dense(size int) map[string]string {
	many := func(before, each, after string) string {
		return before + strings.Repeat(each, size/len(each)) + after
	}
	var directives strings.Builder
	for i := 0; directives.Len() < size; i++ {
		fmt.Fprintf(&directives, "%%TAG !%x! a\n", i)
	}
	return map[string]string{
		"words in brackets":     many("words: [", "a,", "]"),
		"keys in braces":        many("words: {", "a,", "}"),
		"pairs in brackets":     many("words: [", "a: ,", "]"),
		"nothing in braces":     many("words: {", ",", "}"),
		"questions in brackets": many("words: [", "? ,", "]"),
		"brackets":              many("words: [", "[],", "]"),
		"brackets, not split":   many("words: [", "[]", "]"),
		"quotes":                many("words: [", "'',", "]"),
		"quotes, not split":     many("words: [", `""`, "]"),
		"anchors":               many("words: [", "&a ", "]"),
		"aliases":               many("words: [&a x,", "*a ", "]"),
		"tags":                  many("words: [", "! ", "]"),
		"ends":                  many("words: [\n", "...\n", "]"),
		"hyphens in brackets":   many("words: [\n", "- ", "]"),
		"colons in brackets":    many("words: [\n", ": ", "]"),
		"directives in them":    many("words: [\n", "%A\n", "]"),
		"lines":                 many("words:\n", "- a\n", ""),
		"empty lines":           many("words:\n", "-\n", ""),
		"next line":             many("words:\n", "-\u0085", ""),
		"keys":                  many("words:\n", " a:\n", ""),
		"questions":             many("words:\n", " ?\n", ""),
		"comments":              many("words:\n", "- #\n", ""),
		"comments before":       many("words:\n", "#\n- a\n", ""),
		"directives":            directives.String() + "---\nwords: []\n",
		"documents":             many("words: []\n", "---\n", ""),
		"line breaks":           many("words: |\n", "\n", "  a\n"),
		"line breaks in quotes": many("words: \"", "\n", "\"\n"),
		"UTF-16":                "\xff\xfe" + strings.ReplaceAll(many("words: [", "a,", "]")[:size/2], "", "\x00")[1:],
	}
}

// TestDense: what a text becomes is refused before there is too much of it.
func TestDense(t *testing.T) {
	const size, most = 8 << 20, 400 << 20
	for name, text := range dense(size) {
		t.Run(name, func(t *testing.T) {
			before := testutil.Allocated()
			err := Source{File: "g.yaml", What: "garden", Text: []byte(text), Limit: 2 * size}.Decode(new(garden), nil)
			if grown := testutil.Allocated() - before; err == nil || grown > most {
				t.Errorf("allocates %d MB: %v", grown>>20, err)
			}
		})
	}
}

// TestMeter: no text has more values than its signs count for.
func TestMeter(t *testing.T) {
	for name, text := range dense(1000) {
		t.Run(name, func(t *testing.T) { metered(t, text) })
	}
	for _, text := range []string{"a", "- a\n- b", "a: [b, c: d]", "{a, b: c, ? d : e}", "? a\n: b", "a: {\"b\":c,\"d\":{}}", "[a: b]", "- - a: b\n    c:\n    - d"} {
		metered(t, text)
	}
}

// metered wants the values of a text that can be read to be few for what the meter counts.
func metered(t *testing.T, text string) {
	t.Helper()
	read := &meter{text: []byte(text)}
	loader, err := yaml.NewLoader(read, yaml.WithPlugin(loaderlimits.New(loaderlimits.DepthFunc(read.nested))))
	if err != nil {
		t.Fatal(err)
	}
	var n yaml.Node
	if err := loader.Load(&n); err != nil {
		return
	}
	if values := nodes(&n); 2*values > 3*read.parts+6 {
		t.Errorf("%.80q: %d values, the meter counts %d", text, values, read.parts)
	}
}

func nodes(n *yaml.Node) int {
	all := 1
	for _, child := range n.Content {
		all += nodes(child)
	}
	return all
}
