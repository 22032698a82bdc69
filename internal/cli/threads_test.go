package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
	"go.yaml.in/yaml/v4"

	"github.com/natkit/natkit/internal/diagnose"
)

const threadTexts = "testdata/threads"

// thread is a public thread: its texts are in NAME.txtar.
type thread struct {
	Name, Address string
	// Concluded is what it found out; Made is what of the texts is not the thread's.
	Concluded, Made string
	// Finding is the rule that reports that. Undecided is the rule that says instead, with the words Why, what the
	// texts lack.
	Finding, Undecided, Why string
	// Also are the other findings.
	Also []string
}

func readThreads(t *testing.T) (all []thread) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(threadTexts, "threads.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Load(text, &all, yaml.WithKnownFields()); err != nil {
		t.Fatal(err)
	}
	return all
}

// TestThreads: what public threads concluded is what doctor makes of their texts, and nothing else.
func TestThreads(t *testing.T) {
	found, names := 0, map[string]bool{"threads.yaml": true}
	for _, thread := range readThreads(t) {
		names[thread.Name+".txtar"] = true
		if thread.Finding != "" {
			found++
		}
		t.Run(thread.Name, func(t *testing.T) { thread.check(t, diagnoseTexts(t, thread.Name)) })
	}
	if found < 10 {
		t.Errorf("%d threads are diagnosed, which are to be ten", found)
	}
	files, err := os.ReadDir(threadTexts)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !names[f.Name()] {
			t.Errorf("%s is of no thread in the table", f.Name())
		}
	}
}

// diagnoseTexts runs doctor on the texts of a thread.
func diagnoseTexts(t *testing.T, name string) *diagnose.Report {
	t.Helper()
	texts, err := txtar.ParseFile(filepath.Join(threadTexts, name+".txtar"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := txtar.Write(texts, dir); err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	runNatkit(t.Context(), &stdout, &stderr, "doctor", "--json", "--from", dir)
	var r diagnose.Report
	if err := json.Unmarshal(stdout.Bytes(), &r); err != nil {
		t.Fatalf("%v: %s", err, stderr.String())
	}
	return &r
}

func (th *thread) check(t *testing.T, r *diagnose.Report) {
	want := slices.Clone(th.Also)
	if th.Finding != "" {
		want = append(want, th.Finding)
	}
	got := slices.Clone(r.IDs())
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" && len(want)+len(got) > 0 {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
	if th.Undecided == "" {
		return
	}
	i := slices.IndexFunc(r.Checks, func(c diagnose.Check) bool { return c.ID == th.Undecided })
	if i < 0 || r.Checks[i].State != diagnose.NotChecked || !strings.Contains(r.Checks[i].Why, th.Why) || th.Why == "" {
		t.Errorf("%s does not say %q: %+v", th.Undecided, th.Why, r.Checks[max(0, i)])
	}
}

//go:generate go test -count=1 -run ^TestThreadsDocIsCurrent$ . -args -update-docs

// TestThreadsDocIsCurrent compares the tables of docs/threads.md with threads.yaml; `make generate` rewrites them.
func TestThreadsDocIsCurrent(t *testing.T) {
	const doc = "../../docs/threads.md"
	have, err := os.ReadFile(doc)
	if err != nil {
		t.Fatal(err)
	}
	head, _, ok := strings.Cut(string(have), "\n| thread |")
	if !ok {
		t.Fatalf("%s has no table of threads", doc)
	}
	var found, undecided strings.Builder
	fmt.Fprint(&found, "\n| thread | concluded | doctor reports |\n|---|---|---|\n")
	fmt.Fprint(&undecided, "\nOf these the texts alone do not decide it, and the check says what they lack:\n\n| thread | concluded | not checked | as |\n|---|---|---|---|\n")
	for _, th := range readThreads(t) {
		concluded := th.Concluded
		if th.Made != "" {
			concluded += " (typed in addition: " + th.Made + ")"
		}
		row := fmt.Sprintf("| [%s](<%s>) | %s |", th.Name, th.Address, concluded)
		if th.Finding != "" {
			fmt.Fprintf(&found, "%s %s |\n", row, strings.Join(pagesOf(append([]string{th.Finding}, th.Also...)), ", "))
		} else {
			fmt.Fprintf(&undecided, "%s %s | %s |\n", row, pagesOf([]string{th.Undecided})[0], th.Why)
		}
	}
	want := head + found.String() + undecided.String()
	if *updateDocs {
		if err := os.WriteFile(doc, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(string(have), want); diff != "" {
		t.Errorf("%s; `make generate` rewrites it (-file +table):\n%s", doc, diff)
	}
}

// pagesOf are links to the pages of findings.
func pagesOf(ids []string) (links []string) {
	for _, id := range ids {
		links = append(links, fmt.Sprintf("[%s](failure-modes/%[1]s.md)", id))
	}
	return links
}
