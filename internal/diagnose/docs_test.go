package diagnose

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var updateDocs = flag.Bool("update-docs", false, "rewrite the index of docs/failure-modes.md instead of comparing it")

const failureModes = "../../docs/failure-modes"

//go:generate go test -count=1 -run ^TestFailureModesIndex$ . -args -update-docs

// TestFailureModesIndex compares the table of docs/failure-modes.md with the rules.
func TestFailureModesIndex(t *testing.T) {
	const begin, end = "<!-- rules: made by make generate -->\n", "<!-- end of rules -->\n"
	text, err := os.ReadFile(failureModes + ".md")
	if err != nil {
		t.Fatal(err)
	}
	before, rest, opened := strings.Cut(string(text), begin)
	have, after, closed := strings.Cut(rest, end)
	if !opened || !closed {
		t.Fatalf("%s.md has no place for the table", failureModes)
	}
	var want strings.Builder
	want.WriteString("| finding | fault |\n|---|---|\n")
	for _, rule := range Rules() {
		fmt.Fprintf(&want, "| [%s](failure-modes/%[1]s.md) | %s |\n", rule.ID, rule.Title)
	}
	switch {
	case *updateDocs:
		if err := os.WriteFile(failureModes+".md", []byte(before+begin+want.String()+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	case have != want.String():
		t.Errorf("%s.md is not current: run make generate", failureModes)
	}
}

// TestRulesHavePages: each rule has a page under its ID, with what an operator looks for,
// and each page has a rule.
func TestRulesHavePages(t *testing.T) {
	pages, err := filepath.Glob(failureModes + "/*.md")
	if err != nil {
		t.Fatal(err)
	}
	unclaimed := map[string]bool{}
	for _, page := range pages {
		unclaimed[strings.TrimSuffix(filepath.Base(page), ".md")] = true
	}
	for _, rule := range Rules() {
		delete(unclaimed, rule.ID)
		text, err := os.ReadFile(filepath.Join(failureModes, rule.ID+".md"))
		if err != nil {
			t.Error(err)
			continue
		}
		for _, heading := range []string{"# " + rule.ID + "$", "## Symptom$", "## Proof by hand", "## .*[Rr]emedy", "## .*[Rr]isk", "## Reproduce$"} {
			if !regexp.MustCompile("(?m)^" + heading).Match(text) {
				t.Errorf("%s/%s.md has no heading %q", failureModes, rule.ID, heading)
			}
		}
	}
	for id := range unclaimed {
		t.Errorf("%s/%s.md belongs to no rule", failureModes, id)
	}
}
