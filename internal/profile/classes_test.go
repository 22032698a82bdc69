package profile

import (
	"github.com/natkit/natkit/internal/testutil"
	"strings"
	"testing"
)

func TestParseClasses(t *testing.T) {
	table, err := parseClasses(`# comment
[@receive] # comment
net_rx_action
[a]
exact ab* module:mod
[b]
abc* *_mt x*y
`)
	if err != nil {
		t.Fatal(err)
	}
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

func TestParseClassesRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"f":                          "before the first",
		"[a]\nf f":                   "there twice",
		"[a]\nf* f*":                 "there twice",
		"[a]\nf\n[b]\nf":             "line 4: f is there twice",
		"[a]\n[a]":                   `class "a" is there twice`,
		"[a":                         "is no [class]",
		"[]":                         "is no [class]",
		"[@other]":                   "no list",
		"[" + ClassReceiveRest + "]": "is of what is in no class",
		"[a]\n*":                     "no name of a function",
		"[a]\na*b*":                  "no name of a function",
		"[a]\nf,g":                   "no name of a function",
		"[a]\nmodule:":               "no name of a function",
		"[a]\nf.constprop.0":         "no name of a function",
		"[a]\n" + "naïve":            "no name of a function",
	} {
		if _, err := parseClasses(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func FuzzParseClasses(f *testing.F) {
	f.Add(classesText)
	f.Add("[a]\nf g*\n[@idle]\nh")
	f.Fuzz(func(t *testing.T, text string) {
		defer testutil.Bounded(t, len(text))()
		table, err := parseClasses(text)
		if err != nil {
			return
		}
		c := newClassifier(table)
		if w := c.stack(frames("net_rx_action;f;g1")); w.class == "" {
			t.Fatal("a stack without a class")
		}
	})
}
