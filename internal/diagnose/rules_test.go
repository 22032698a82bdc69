package diagnose

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/tune"
)

var update = flag.Bool("update", false, "write the findings into the test files")

// Each testdata/RULE.txtar holds recordings (NAME.json) and what the rule makes
// of them (NAME.want).
func TestRules(t *testing.T) {
	for _, rule := range Rules() {
		t.Run(rule.ID, func(t *testing.T) {
			path := filepath.Join("testdata", rule.ID+".txtar")
			ar, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatalf("every rule needs its cases: %v", err)
			}
			found := map[State]int{}
			for i, f := range ar.Files {
				name, isCase := strings.CutSuffix(f.Name, ".json")
				if !isCase {
					continue
				}
				t.Run(name, func(t *testing.T) {
					report := Run(readRecording(t, f.Data), []Rule{rule})
					found[report.Checks[0].State]++
					got := brief(report)
					if *update {
						ar.Files[i+1] = txtar.File{Name: name + ".want", Data: []byte(got)}
						return
					}
					if i+1 >= len(ar.Files) || ar.Files[i+1].Name != name+".want" {
						t.Fatalf("%s: no %s.want behind it", path, name)
					}
					if diff := cmp.Diff(string(ar.Files[i+1].Data), got); diff != "" {
						t.Errorf("findings (-want +got):\n%s", diff)
					}
				})
			}
			if *update {
				if err := os.WriteFile(path, txtar.Format(ar), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			for _, state := range []State{OK, Found, NotChecked} {
				if found[state] == 0 {
					t.Errorf("%s: no case that ends as %q", path, state)
				}
			}
		})
	}
}

func readRecording(t *testing.T, data []byte) *snapshot.Recording {
	t.Helper()
	rec := &snapshot.Recording{}
	if err := json.Unmarshal(data, rec); err != nil {
		t.Fatal(err)
	}
	return rec
}

// brief is a report with one line for each thing that matters.
func brief(r Report) string {
	var b strings.Builder
	for _, c := range r.Checks {
		fmt.Fprintf(&b, "check: %s: %s\n", c.State, c.Why)
	}
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "%s %s (%s): %s\n", f.Severity, f.ID, f.Confidence, f.Title)
		fmt.Fprintf(&b, "  cause: %s\n", f.Cause)
		for _, e := range f.Evidence {
			fmt.Fprintf(&b, "  evidence: %s: %v %s [%s]\n", e.What, e.Value, e.Unit, e.Source)
		}
		for _, m := range f.Remedies {
			kind := "advice"
			if m.Automatic {
				kind = "automatic"
			}
			fmt.Fprintf(&b, "  %s: %s\n", kind, m.Title)
			for _, c := range m.Changes {
				fmt.Fprintf(&b, "    %s: %s -> %s\n", c.Target, c.Before, c.After)
			}
			for _, s := range []string{m.Predicts, m.Cost, m.Risk} {
				if s != "" {
					fmt.Fprintf(&b, "    %s\n", s)
				}
			}
		}
	}
	return b.String()
}

// Every finding can be read aloud: no empty part, changes that change something,
// and nothing automatic that lowers a value.
func TestFindingsAreComplete(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no test files: %v", err)
	}
	for _, path := range files {
		ar, err := txtar.ParseFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range ar.Files {
			if !strings.HasSuffix(file.Name, ".json") {
				continue
			}
			for _, f := range Run(readRecording(t, file.Data), Rules()).Findings {
				complete(t, path+" "+file.Name, f)
			}
		}
	}
}

// TestTextsAreFormats: each text takes its arguments, whatever they are.
func TestTextsAreFormats(t *testing.T) {
	var anything []any
	for range 20 {
		anything = append(anything, formatted{})
	}
	for name := range texts().Findings {
		f := worded(name, nil, nil, anything...)
		if all := f.Title + f.Cause + f.Consequence; strings.Contains(all, "%!") {
			t.Errorf("%s: %s", name, all)
		}
	}
	for name := range texts().Remedies {
		r := advice(name, anything...)
		if all := r.Title + r.Predicts + r.Cost + r.Risk; strings.Contains(all, "%!") {
			t.Errorf("%s: %s", name, all)
		}
	}
}

// formatted takes every verb.
type formatted struct{}

func (formatted) Format(f fmt.State, _ rune) { fmt.Fprint(f, "x") }

// TestFloodAdvice: the safest comes first, nothing is dropped for a notice, and who has
// answered connections is never cut off.
func TestFloodAdvice(t *testing.T) {
	cutsOff := func(r Remedy) bool { return strings.Contains(r.Title, "priority -310") }
	limits := func(r Remedy) bool { return strings.Contains(r.Title, "limit rate over") }
	for name, want := range map[string]Severity{
		"syn-flood-from-two-sources": Warning, "udp-scan": Warning, "the-table-is-full-of-it": Critical, "ipv6": Warning, "one-dump-only": Warning,
		"a-scan-by-a-host-with-good-connections-fills-nothing": Notice, "a-scan-by-a-silent-host-fills-nothing": Notice,
	} {
		t.Run(name, func(t *testing.T) {
			f, _ := rule("ct-flood").Check(recorded(t, "ct-flood", name))
			if f == nil || f.Severity != want {
				t.Fatalf("%+v, want %s", f, want)
			}
			if f.Severity == Notice {
				if slices.ContainsFunc(f.Remedies, func(r Remedy) bool { return cutsOff(r) || limits(r) }) {
					t.Errorf("advice to drop for a notice: %+v", f.Remedies)
				}
				return
			}
			if !limits(f.Remedies[1]) || slices.ContainsFunc(f.Remedies[:len(f.Remedies)-1], cutsOff) {
				t.Errorf("not the safest first: %+v", f.Remedies)
			}
			if name == "one-dump-only" && slices.ContainsFunc(f.Remedies, cutsOff) {
				t.Errorf("who has answered connections is cut off: %+v", f.Remedies)
			}
		})
	}
}

func complete(t *testing.T, where string, f Finding) {
	t.Helper()
	if f.ID == "" || f.Title == "" || f.Cause == "" || f.Consequence == "" || f.Confidence == "" || len(f.Evidence) == 0 || len(f.Remedies) == 0 {
		t.Errorf("%s: finding with an empty part: %+v", where, f)
	}
	if text, err := json.Marshal(f); err != nil || bytes.Contains(text, []byte("%!")) {
		t.Errorf("%s: %s: a text that lacks its arguments: %s, %v", where, f.ID, text, err)
	}
	for _, e := range f.Evidence {
		if e.What == "" || e.Source == "" || e.Value == nil {
			t.Errorf("%s: %s: evidence without value or source: %+v", where, f.ID, e)
		}
	}
	for _, m := range f.Remedies {
		if m.Automatic && (len(m.Changes) == 0 || m.Cost == "" || m.Risk == "" || m.Predicts == "") {
			t.Errorf("%s: %s: automatic remedy without changes, cost, risk or prediction: %+v", where, f.ID, m)
		}
		for _, c := range m.Changes {
			if c.Kind == tune.NATRule { // a range of ports is widened, or an option added
				if c.After == c.Before || c.Target == "" {
					t.Errorf("%s: %s: rule %q goes from %q to %q", where, f.ID, c.Target, c.Before, c.After)
				}
				continue
			}
			var before, after int64
			fmt.Sscan(c.Before, &before)
			fmt.Sscan(c.After, &after)
			if after <= before {
				t.Errorf("%s: %s: %s goes from %d to %d", where, f.ID, c.Target, before, after)
			}
		}
	}
}

// TestStepPanics: a defect in what is done with findings leaves the findings, and names the rule.
func TestStepPanics(t *testing.T) {
	rec := recorded(t, "ct-flood", "udp-scan")
	broken := []Rule{
		{"service-unanswered", "", func(rec *snapshot.Recording) (*Finding, Check) {
			f := servicesFinding(rec, []failing{{client: netip.MustParseAddr("198.18.0.2"), place: "lost"}})
			f.Severity = Critical
			return f, Check{}
		}},
		{causes[0], "", func(*snapshot.Recording) (*Finding, Check) {
			return &Finding{Severity: Warning, isWhy: func(*failing) bool { panic("no reason") }}, Check{}
		}},
	}
	r := Run(rec, broken)
	if !slices.Equal(r.IDs(), []string{"service-unanswered", causes[0]}) || r.Summary == nil {
		t.Errorf("findings %q, summary %v", r.IDs(), r.Summary)
	}
	if len(r.Defects) != 1 || !strings.Contains(r.Defects[0], "rule "+causes[0]+" panicked at rules_test.go:") || !strings.Contains(r.Defects[0], "no reason") {
		t.Errorf("defects: %q", r.Defects)
	}
}

// TestRulePanics: a rule with a defect has no result, says where it failed, and leaves the others, those that
// ask for its finding too, as they are.
func TestRulePanics(t *testing.T) {
	rec := recorded(t, "ct-flood", "udp-scan")
	sound := Run(rec, Rules())
	broken := Rule{"broken", "what never works", func(*snapshot.Recording) (*Finding, Check) {
		var none *snapshot.ConntrackTable
		return nil, Check{Why: fmt.Sprint(none.Sampled)}
	}}
	r := Run(rec, append([]Rule{broken}, Rules()...))
	if diff := cmp.Diff(sound.IDs(), r.IDs()); diff != "" || len(r.IDs()) == 0 {
		t.Errorf("findings beside a broken rule (-without +with): %s", diff)
	}
	if diff := cmp.Diff(sound.Checks, r.Checks[1:]); diff != "" {
		t.Errorf("checks beside a broken rule (-without +with): %s", diff)
	}
	c := r.Checks[0]
	if c.ID != "broken" || c.State != NotChecked || !c.Defect {
		t.Errorf("the check of the broken rule: %+v", c)
	}
	for _, part := range []string{"rule broken panicked", "rules_test.go:", "nil pointer", "natkit snapshot", defects} {
		if !strings.Contains(c.Why, part) {
			t.Errorf("%q does not say %q", c.Why, part)
		}
	}
	if i := slices.IndexFunc(r.Incomplete, func(m Missing) bool { return slices.Contains(m.Checks, "broken") }); i < 0 {
		t.Errorf("the diagnosis counts as complete: %+v", r.Incomplete)
	}
}
