package report

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/snapshot"
)

// TestFitsTheScreen: at every width lines stay within it, no word is broken or lost, and
// what there is room for is used.
func TestFitsTheScreen(t *testing.T) {
	accuracy := madeUpAccuracy()
	accuracy.Rules = append(accuracy.Rules, "b-rule", "c-rule", "d-rule", "e-rule", "f-rule", "g-rule", "h-rule", "i-rule", "j-rule", "k-rule", "l-rule", "m-rule", "n-rule", "o-rule", "p-rule", "q-rule")
	for name, write := range map[string]func(io.Writer, Style) error{
		"lab":      func(w io.Writer, s Style) error { return Lab(w, s, madeUpReport(t)) },
		"remedies": func(w io.Writer, s Style) error { return Lab(w, s, remediesReport()) },
		"accuracy": func(w io.Writer, s Style) error { return Accuracy(w, s, accuracy) },
		"doctor":   func(w io.Writer, s Style) error { return Doctor(w, s, madeUpDoctor(t), true, "") },
		"drops":    func(w io.Writer, s Style) error { return Drops(w, s, DropsView{}, tracedDrops()) },
		"ports":    func(w io.Writer, s Style) error { return Ports{Source: "gate", Ports: pressedPorts()}.Text(w, s) },
		"path":     func(w io.Writer, s Style) error { return Path(w, s, wayOfSYN()) },
		"profile":  ProfileDocument{Kernel: "6.1", Profile: &snapshot.Profile{}}.Text,
	} {
		whole := wordsOf(t, Unlimited, write)
		for _, columns := range []int{60, 80, 120, 200, Unlimited} {
			for word, n := range wordsOf(t, columns, write) {
				if whole[word] == 0 {
					t.Errorf("%s in %d columns has %q, which is broken", name, columns, word)
				}
				if n < whole[word] {
					t.Errorf("%s in %d columns has %q %d times, want %d", name, columns, word, n, whole[word])
				}
			}
		}
	}
}

// wordsOf returns the words of a document of the given width, which only a single word
// after the margin may exceed.
func wordsOf(t *testing.T, columns int, write func(io.Writer, Style) error) map[string]int {
	t.Helper()
	var out bytes.Buffer
	if err := write(&out, Style{Columns: columns}); err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for line := range strings.Lines(out.String()) {
		line = strings.TrimSuffix(line, "\n")
		if textWidth(line) > columns && len(strings.Fields(line)) > 1 {
			t.Errorf("%d columns of %d: %s", textWidth(line), columns, line)
		}
		for _, word := range strings.Fields(line) {
			count[word]++
		}
	}
	return count
}

func TestTableOfManyColumns(t *testing.T) {
	measures := Table{Keys: 1, Columns: []Column{{}, {Head: "before", Right: true}, {Head: "during", Right: true}, {Head: "after", Right: true}}}
	measures.Row("requests per second", "1,000", "2", "1,001")
	measures.Row()
	measures.Row("failed", "0", "998", "0")
	flows := Table{Columns: []Column{{Head: "packets", Right: true}, {Head: "from"}, {Head: "to"}, {Head: "cause", Below: true}}}
	flows.Row("12", "198.18.0.2:39028", "198.18.0.1:8080", "the connection table is full")
	for _, tc := range []struct {
		table *Table
		style Style
		want  string
	}{
		{&measures, Style{}, `
                     before  during  after
requests per second   1,000       2  1,001

failed                    0     998      0
`},
		{&measures, Style{Columns: 33}, `
            before  during  after
requests     1,000       2  1,001
per second

failed           0     998      0
`},
		{&measures, Style{Columns: 24}, `
          before  during
requests   1,000       2
per
second

failed         0     998

          after
requests  1,001
per
second

failed        0
`},
		{&flows, Style{}, `
packets  from              to               cause
     12  198.18.0.2:39028  198.18.0.1:8080  the connection table is full
`},
		{&flows, Style{Columns: 50}, `
packets  from              to               cause
     12  198.18.0.2:39028  198.18.0.1:8080
  the connection table is full
`},
		{&flows, Style{Columns: 30}, `
packets  from
    to
  cause
     12  198.18.0.2:39028
    198.18.0.1:8080
  the connection table is full
`},
	} {
		var out bytes.Buffer
		if err := tc.table.Write(&out, tc.style); err != nil || out.String() != tc.want[1:] {
			t.Errorf("%d columns, error %v:\n%s\nwant:%s", tc.style.Columns, err, out.String(), tc.want)
		}
	}
}

func TestHang(t *testing.T) {
	for _, tc := range []struct {
		line  string
		width int
		want  string
	}{
		{"short", 10, "short"},
		{"a word that-is-too-long-for-it", 10, "a word\nthat-is-too-long-for-it"},
		{"  name  what it is and more", 20, "  name  what it is\n        and more"},
		{"    indented text goes on further in", 24, "    indented text goes\n      on further in"},
		{"\x1b[1;31mred words\x1b[0m take no room", 20, "\x1b[1;31mred words\x1b[0m take no\nroom"},
		{"四字 四字 四字", 9, "四字 四字\n四字"},
	} {
		if got := strings.Join(hang(tc.line, tc.width), "\n"); got != tc.want {
			t.Errorf("%q in %d:\n%s\nwant\n%s", tc.line, tc.width, got, tc.want)
		}
	}
}

func TestReflow(t *testing.T) {
	const text = "Prose that was\nbroken early.\n\nFlags:\n      --for TIME   end after it, and not later\n  a list\n"
	const want = "Prose that was broken early.\n\nFlags:\n      --for TIME   end after it,\n                   and not later\n  a list\n"
	if got := Reflow(text, 32); got != want {
		t.Errorf("got\n%s", got)
	}
}
