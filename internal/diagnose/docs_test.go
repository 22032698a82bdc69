package diagnose_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"go.yaml.in/yaml/v4"

	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/snapshot"
)

var updateDocs = flag.Bool("update-docs", false, "rewrite what is generated of docs/failure-modes instead of comparing it")

const failureModes = "../../docs/failure-modes"

//go:generate go test -count=1 -run ^(TestFailureModes|TestPages)$ . -args -update-docs

// TestFailureModes compares the tables of docs/failure-modes.md with the rules and the modes.
func TestFailureModes(t *testing.T) {
	var rules, modes strings.Builder
	rules.WriteString("| finding | fault |\n|---|---|\n")
	for _, rule := range diagnose.Rules() {
		fmt.Fprintf(&rules, "| [%s](failure-modes/%[1]s.md) | %s |\n", rule.ID, rule.Title)
	}
	modes.WriteString("| mode | fault | status | findings |\n|---|---|---|---|\n")
	for _, m := range diagnose.Modes() {
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

// TestPages: each rule has a page under its ID, with what an operator looks for and, at its
// head, what the code has: severity, consequence and remedies of its cases, its scenarios.
func TestPages(t *testing.T) {
	for _, rule := range diagnose.Rules() {
		page := filepath.Join(failureModes, rule.ID+".md")
		text, err := os.ReadFile(page)
		if err != nil {
			t.Error(err)
			continue
		}
		for _, heading := range []string{"# " + rule.ID + "$", "## Symptom$", "## Proof by hand"} {
			if !regexp.MustCompile("(?m)^" + heading).Match(text) {
				t.Errorf("%s has no heading %q", page, heading)
			}
		}
		place := []byte("<!-- code: made by make generate -->\n<!-- end of code -->\n\n## Symptom\n")
		if *updateDocs && !bytes.Contains(text, []byte("<!-- code: ")) { // a new page
			if err := os.WriteFile(page, bytes.Replace(text, []byte("## Symptom\n"), place, 1), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		generated(t, page, "code", head(t, rule))
	}
}

// mostRemedies bounds those of a page's head that have a line of their own.
const mostRemedies = 6

// head is what the code has of a rule, in words of its first case where they depend on one.
func head(t *testing.T, rule diagnose.Rule) string {
	var b strings.Builder
	row := func(name, text string) {
		fmt.Fprintf(&b, "| %s | %s |\n", name, strings.ReplaceAll(text, "|", `\|`))
	}
	row("fault", rule.Title)
	b.WriteString("|---|---|\n")
	findings := findingsOf(t, rule)
	var severities []string
	for _, f := range findings {
		if s := f.Severity.String(); !slices.Contains(severities, s) {
			severities = append(severities, s)
		}
	}
	row("severity", strings.Join(severities, ", "))
	row("consequence", findings[0].Consequence)
	remedies := remediesOf(findings)
	for i, r := range remedies[:min(len(remedies), mostRemedies)] {
		if i == mostRemedies-1 && len(remedies) > mostRemedies {
			row("advice", fmt.Sprintf("and %d more", len(remedies)-i))
			break
		}
		row(map[bool]string{true: "remedy, by `--fix`", false: "advice"}[r.Automatic], described(r))
	}
	for _, s := range lab.Scenarios() {
		if s.Expect.Finding == rule.ID {
			row("scenario", fmt.Sprintf("`sudo natkit lab run %s%s`: %s", s.Name, map[bool]string{true: " --allow-host"}[s.NeedsHost()], s.Title))
		}
	}
	return b.String()
}

func described(r diagnose.Remedy) string {
	if r.Risk == "" {
		return r.Title
	}
	return r.Title + ". Risk: " + r.Risk
}

// findingsOf are those of a rule's cases.
func findingsOf(t *testing.T, rule diagnose.Rule) (all []*diagnose.Finding) {
	ar, err := txtar.ParseFile(filepath.Join("testdata", rule.ID+".txtar"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range ar.Files {
		var rec snapshot.Recording
		if !strings.HasSuffix(file.Name, ".json") || json.Unmarshal(file.Data, &rec) != nil {
			continue
		}
		if f, _ := rule.Check(&rec); f != nil {
			all = append(all, f)
		}
	}
	if len(all) == 0 {
		t.Fatalf("no case of %s has a finding", rule.ID)
	}
	return all
}

// remediesOf are the different ones of findings: one for each text of texts.yaml, which
// differs in its arguments only, and for each that has none.
func remediesOf(findings []*diagnose.Finding) (all []diagnose.Remedy) {
	seen := map[string]bool{}
	for _, f := range findings {
		for _, r := range f.Remedies {
			if name := remedyName(r.Title); !seen[name] {
				seen[name] = true
				all = append(all, r)
			}
		}
	}
	return all
}

// remedyForm matches the titles that are made of one text of texts.yaml.
type remedyForm struct {
	name   string
	titles *regexp.Regexp
}

// remedyForms are those of all texts, the longest first: of two that match, the other one has
// less of its own. One that begins with an argument is left out.
var remedyForms = sync.OnceValue(func() (forms []remedyForm) {
	var texts struct{ Remedies map[string]diagnose.Remedy }
	text, err := os.ReadFile("texts.yaml")
	if err := errors.Join(err, yaml.Load(text, &texts)); err != nil {
		panic(err)
	}
	argument := regexp.MustCompile(`%(\.\d)?\\\[\d\\\][a-z]`)
	for name, r := range texts.Remedies {
		if form := argument.ReplaceAllString(regexp.QuoteMeta(r.Title), ".*"); !strings.HasPrefix(form, ".*") {
			forms = append(forms, remedyForm{name, regexp.MustCompile("^" + form + "$")})
		}
	}
	slices.SortFunc(forms, func(a, b remedyForm) int {
		return cmp.Or(len(b.titles.String())-len(a.titles.String()), strings.Compare(a.name, b.name))
	})
	return forms
})

// remedyName is the name in texts.yaml of the text that a title is made of, or its first word.
func remedyName(title string) string {
	for _, f := range remedyForms() {
		if f.titles.MatchString(title) {
			return f.name
		}
	}
	first, _, _ := strings.Cut(title, " ")
	return first
}

// TestPagesHaveRules: each page belongs to a rule.
func TestPagesHaveRules(t *testing.T) {
	pages, err := filepath.Glob(failureModes + "/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range pages {
		id := strings.TrimSuffix(filepath.Base(page), ".md")
		if !slices.ContainsFunc(diagnose.Rules(), func(r diagnose.Rule) bool { return r.ID == id }) {
			t.Errorf("%s belongs to no rule", page)
		}
	}
}
