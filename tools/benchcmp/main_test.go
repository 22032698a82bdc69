package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/testutil"
	"github.com/natkit/natkit/internal/units"
	"github.com/natkit/natkit/tools/bench"
)

func TestSuitesAreSound(t *testing.T) {
	all, err := choose("", "/nonexistent/natkit")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range all {
		if err := s.Check(0); err != nil {
			t.Error(err)
		}
		if slices.Contains(names, s.Name) {
			t.Errorf("two benchmarks are called %s", s.Name)
		}
		names = append(names, s.Name)
	}
	for _, section := range sections(t) {
		if !slices.Contains(names, section) {
			t.Errorf("docs/benchmarks.md has a section %s, and no benchmark rewrites it", section)
		}
	}
	var list strings.Builder
	if err := printList(&list, all); err != nil || strings.Count(list.String(), "\n") != len(all) {
		t.Errorf("%v, the list:\n%s", err, &list)
	}
}

// sections are those that docs/benchmarks.md has marks for.
func sections(t *testing.T) []string {
	t.Helper()
	doc, err := os.ReadFile("../../docs/benchmarks.md")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, m := range regexp.MustCompile(`(?m)^<!-- (.*): begin -->$`).FindAllSubmatch(doc, -1) {
		names = append(names, string(m[1]))
	}
	if len(names) == 0 {
		t.Fatal("docs/benchmarks.md has no marks: the search is broken")
	}
	return names
}

func TestChoose(t *testing.T) {
	got, err := choose("http,limits", "natkit")
	if err != nil || len(got) != 2 || got[0].Name != "http" || got[1].Name != "limits" {
		t.Errorf("got %v, %v", got, err)
	}
	all, err := choose("", "natkit")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range all {
		names = append(names, s.Name)
	}
	known := strings.Join(names, ", ")
	if _, err := choose("http,https", "natkit"); err == nil || err.Error() != `no benchmark "https"; there are: `+known {
		t.Errorf("got %v", err)
	}
}

// counting is a suite whose subject counts its runs.
func counting(name string, failures int64) bench.Suite {
	runs := 0.0
	return bench.Suite{
		Name: name, Title: "Suite " + name, About: "About " + name + ".", Method: "nothing", Rounds: 3,
		Quantities: []bench.Quantity{{Name: "runs", Label: "runs", Better: bench.Higher, Text: units.Rate}},
		Subjects: []bench.Subject{{Name: "natkit", Run: func(context.Context) (bench.Sample, error) {
			runs++
			return bench.Sample{Values: bench.Values{"runs": runs}, Failures: failures}, nil
		}}},
	}
}

// TestTake: a refused benchmark leaves its old figures and does not stop the next.
func TestTake(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("NATKIT_RUN_DIR", dir)
	doc := filepath.Join(dir, "figures.md")
	const old = "# Figures\n\n<!-- bad: begin -->\nold figures\n<!-- bad: end -->\n"
	if err := os.WriteFile(doc, []byte(old), 0o644); err != nil {
		t.Fatal(err)
	}
	err := take(t.Context(), []bench.Suite{counting("bad", 1), counting("good", 0)}, 0, doc)
	if err == nil || err.Error() != "no figures of bad, for the reasons given above" {
		t.Errorf("got %v", err)
	}
	text, err := os.ReadFile(doc)
	if err != nil {
		t.Fatal(err)
	}
	added, kept := bytes.CutPrefix(text, []byte(old))
	if !kept || !bytes.Contains(added, []byte("\n## Suite good\n\nAbout good.\n")) || !bytes.Contains(added, []byte("| runs, median | 2.00 |\n")) {
		t.Errorf("the document is now:\n%s", text)
	}
	if files, err := filepath.Glob(filepath.Join(dir, "figures", "*")); err != nil || len(files) != 1 || filepath.Base(files[0]) != "good.json" {
		t.Errorf("JSON documents: %v, %v", files, err)
	}
}

func TestTakeChecksAllFirst(t *testing.T) {
	runs := 0
	first, second := counting("first", 0), counting("Second", 0)
	first.Setup = func(context.Context) (func(context.Context) error, error) {
		runs++
		return func(context.Context) error { return nil }, nil
	}
	if err := take(t.Context(), []bench.Suite{first, second}, 0, ""); err == nil || !strings.Contains(err.Error(), "kebab-case") || runs != 0 {
		t.Errorf("got %v after %d runs", err, runs)
	}
}

func TestTakeEndsWhenInterrupted(t *testing.T) {
	t.Setenv("NATKIT_RUN_DIR", t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := take(ctx, []bench.Suite{counting("first", 0), counting("second", 0)}, 0, ""); err == nil || err.Error() != "benchmark first: context canceled" {
		t.Errorf("got %v", err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	first := counting("first", 0)
	first.Setup = func(context.Context) (func(context.Context) error, error) {
		return func(context.Context) error { cancel(); return nil }, nil
	}
	if err := take(ctx, []bench.Suite{first, counting("second", 0)}, 0, ""); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted after the first of two: got %v", err)
	}
}

// Benchmarks and tests keep one another away by the same file.
func TestHostLock(t *testing.T) {
	if hostLock != testutil.HostLock {
		t.Errorf("benchmarks lock %s, tests lock %s", hostLock, testutil.HostLock)
	}
}
