package profile

import (
	"regexp"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/testutil"
)

func TestParseClasses(t *testing.T) {
	table := parseClasses(`# comment
[@receive] # comment
net_rx_action
[a]
exact ab* module:mod
[b]
abc* *_mt x*y
`)
	for _, tt := range []struct {
		frame string
		want  int // -1 for none
	}{
		{"exact", 0}, {"exact.constprop.0", 0}, {"exactly", -1}, {"ab", 0}, {"abx", 0}, {"abc", 1}, {"abcd.cold", 1},
		{"tcp_mt", 1}, {"abcdef_mt", 1}, {"xy", 1}, {"x1y", 1}, {"x", -1}, {"other", -1}, {"other[mod]", 0}, {"tcp_mt[mod]", 1},
		{"net_rx_action", -1},
	} {
		got, ok := table.class(frames(tt.frame)[0])
		if !ok {
			got = -1
		}
		if got != tt.want {
			t.Errorf("%s: %d, want %d", tt.frame, got, tt.want)
		}
	}
}

// TestBuiltInClasses: each name is one of a function, with one * at most, and is there once in
// its list; no class has the name of a rest.
func TestBuiltInClasses(t *testing.T) {
	function := regexp.MustCompile(`^[A-Za-z0-9_]*\*?[A-Za-z0-9_]+$|^[A-Za-z0-9_]+\*$|^module:[A-Za-z0-9_]+$`)
	names, headings, special := map[string]bool{}, map[string]bool{ClassReceiveRest: true, ClassKernelRest: true, ClassUser: true}, 0
	list := ""
	for line := range strings.Lines(classesText) {
		line, _, _ = strings.Cut(line, "#")
		line = strings.TrimSpace(line)
		if heading, ok := strings.CutPrefix(line, "["); ok {
			if heading, ok = strings.CutSuffix(heading, "]"); !ok || headings[heading] {
				t.Errorf("%q is no heading, or is there twice", line)
			}
			headings[heading] = true
			if list = ""; strings.HasPrefix(heading, "@") { // the classes share a list
				list = heading
				special++
			}
			continue
		}
		for _, name := range strings.Fields(line) {
			if !function.MatchString(name) || names[list+name] || len(headings) == 3 {
				t.Errorf("%s %s is no name of a function, or is there twice", list, name)
			}
			names[list+name] = true
		}
	}
	if c := classes; special != 3 || len(c.receive.exact) == 0 || len(c.interrupt.exact) == 0 || len(c.idle.exact) == 0 || len(c.names) != len(headings)-6 {
		t.Errorf("%d lists, classes %q", special, c.names)
	}
}

func FuzzParseClasses(f *testing.F) {
	f.Add(classesText)
	f.Add("[a]\nf g*\n[@idle]\nh")
	f.Fuzz(func(t *testing.T, text string) {
		defer testutil.Bounded(t, len(text))()
		c := newClassifier(parseClasses(text))
		if w := c.stack(frames("net_rx_action;f;g1")); w.class == "" {
			t.Fatal("a stack without a class")
		}
	})
}
