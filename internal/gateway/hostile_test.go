package gateway

import (
	"fmt"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/testutil"
)

// hostile are texts of about size bytes that readers of YAML take the square of the
// time for, or more memory than the text has.
func hostile(size int) map[string]string {
	many := func(before, each, between, after string) string {
		return before + each + strings.Repeat(between+each, size/len(between+each)) + after
	}
	var keys, rules, names, outs strings.Builder
	for i := 0; keys.Len() < size; i++ {
		fmt.Fprintf(&keys, "  k%d: 1\n", i)
	}
	for i := 0; rules.Len() < size; i++ {
		fmt.Fprintf(&rules, "    - snat: {from: 10.%d.%d.%d, to: 203.0.113.1}\n", i>>16, i>>8&255, i&255)
	}
	for i := 0; names.Len() < size; i++ {
		fmt.Fprintf(&names, "    - eth%d\n", i)
	}
	for i := 0; outs.Len() < size; i++ {
		fmt.Fprintf(&outs, "    - masquerade: {out: eth%d}\n", i)
	}
	return map[string]string{
		"names":                    "gateway:\n  interfaces:\n    wan:\n" + names.String(),
		"names of rules":           "gateway:\n  nat:\n" + outs.String(),
		"blank lines in a literal": "gateway: |\n" + strings.Repeat("\n", size) + "  a\n",
		"blank lines in quotes":    "gateway: \"" + strings.Repeat("\n", size) + "\"\n",
		"rules on one line":        many("gateway: {nat: [", "{snat: {to: 203.0.113.1}}", ", ", "]}\n"),
		"faults on one line":       many("gateway: {nat: [", "{snat: 1}", ", ", "]}\n"),
		"keys":                     "gateway:\n" + keys.String(),
		"the same key":             many("gateway:\n", "  nat: []", "\n", "\n"),
		"rules":                    "gateway:\n  nat:\n" + rules.String(),
		"aliases":                  many("gateway:\n  nat: [&a {snat: {to: 203.0.113.1}}, ", "*a", ", ", "]\n"),
		"aliases of lists":         many("gateway: {nat: ["+many("&a [", "{}", ", ", "], "), "*a", ", ", "]}\n"),
		"aliases in aliases":       many("a0: &a0 [x, x]\n"+doubled(60)+"gateway: {nat: [", "*a60", ", ", "]}\n"),
		"documents":                many("gateway: {}\n", "---\n", "", ""),
		"comments":                 many("gateway: {}\n", "#\n", "", ""),
		"one long word":            many("gateway: {nat: [{snat: {to: ", "x", "", "}}]}\n"),
		"escapes":                  many("gateway: \"", `\u00e4`, "", "\"\n"),
		"anchors":                  many("gateway: {nat: [", "&a {}", ", ", "]}\n"),
		"tags":                     many("gateway: {nat: [", "!!str 1", ", ", "]}\n"),
	}
}

// doubled are lists of which each has the one before it twice.
func doubled(times int) string {
	var b strings.Builder
	for i := range times {
		fmt.Fprintf(&b, "a%d: &a%d [*a%d, *a%d]\n", i+1, i+1, i, i)
	}
	return b.String()
}

// TestHostileText: what a text becomes is bounded by its size.
func TestHostileText(t *testing.T) {
	const size = 40_000
	texts := map[int]map[string]string{1: hostile(size)}
	for name := range texts[1] {
		t.Run(name, func(t *testing.T) {
			testutil.Linear(t, func(times int) {
				if texts[times] == nil {
					texts[times] = hostile(times * size)
				}
				file, err := Parse("g.yaml", []byte(texts[times][name]))
				if (err == nil) != (name == "rules" || name == "rules on one line" || name == "comments") {
					t.Fatalf("%.200v", err)
				}
				if err == nil {
					checksOut(t, file, here())
				}
			})
		})
	}
}

// TestLimits: the interfaces that a file names are bounded, in all, and roles with many of them.
func TestLimits(t *testing.T) {
	names := func(n int, before, after string) (text string) {
		for i := range n {
			text += fmt.Sprintf("%seth%d%s\n", before, i, after)
		}
		return text
	}
	for name, file := range map[string]func(n int) string{
		"of a role": func(n int) string { return "gateway:\n  interfaces:\n    wan:\n" + names(n, "    - ", "") },
		"of rules":  func(n int) string { return "gateway:\n  nat:\n" + names(n, "  - masquerade: {out: ", "}") },
		"of a role that many rules are on": func(n int) string {
			return "gateway:\n  interfaces:\n    wan:\n" + names(n/10, "    - ", "") + "  nat:\n" + strings.Repeat("  - dnat: {on: wan, to: 10.0.0.1}\n", mostOn*10/mostInterfaces)
		},
	} {
		if _, err := Parse("g.yaml", []byte(file(mostInterfaces))); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := Parse("g.yaml", []byte(file(mostInterfaces+10))); err == nil {
			t.Errorf("%s: too many are read", name)
		}
	}
}
