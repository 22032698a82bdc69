package diagnose

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var updateDocs = flag.Bool("update-docs", false, "rewrite what is generated of docs/failure-modes instead of comparing it")

const failureModes = "../../docs/failure-modes"

//go:generate go test -count=1 -run ^TestFailureModes$ . -args -update-docs

// TestFailureModes compares the tables of docs/failure-modes.md with the rules and the modes.
func TestFailureModes(t *testing.T) {
	var rules, modes strings.Builder
	rules.WriteString("| finding | fault |\n|---|---|\n")
	for _, rule := range Rules() {
		fmt.Fprintf(&rules, "| [%s](failure-modes/%[1]s.md) | %s |\n", rule.ID, rule.Title)
	}
	modes.WriteString("| mode | fault | status | findings |\n|---|---|---|---|\n")
	for _, m := range Modes() {
		var pages []string
		for _, id := range m.Findings {
			pages = append(pages, fmt.Sprintf("[%s](failure-modes/%[1]s.md)", id))
		}
		fmt.Fprintf(&modes, "| %s | %s | %s | %s |\n", m.Name, m.Title, m.Status, cmp.Or(strings.Join(pages, ", "), m.Note))
	}
	generated(t, failureModes+".md", "rules", rules.String())
	generated(t, failureModes+".md", "modes", modes.String())
}

// generated compares the part of a page between the marks of that name, or rewrites it.
func generated(t *testing.T, page, name, want string) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, opened := strings.Cut(string(text), "<!-- "+name+": made by make generate -->\n")
	have, after, closed := strings.Cut(rest, "<!-- end of "+name+" -->\n")
	switch {
	case !opened || !closed:
		t.Errorf("%s has no place for %s: <!-- %s: made by make generate -->, and <!-- end of %s -->", page, name, name, name)
	case *updateDocs:
		text := strings.TrimSuffix(string(text), rest) + want + "<!-- end of " + name + " -->\n" + after
		if err := os.WriteFile(page, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	case have != want:
		t.Errorf("%s is not current: run make generate", page)
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
