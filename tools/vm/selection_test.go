package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseRun(t *testing.T) {
	for _, tt := range []struct {
		text string
		want selection
		err  string
	}{
		{"", selection{}, ""},
		{"./internal/netns ./internal/lab/...", selection{packages: []string{"./internal/netns", "./internal/lab/..."}}, ""},
		{"./x -run TestA|TestB -count=3 --short", selection{packages: []string{"./x"}, testFlags: []string{"-test.run=TestA|TestB", "-test.count=3", "-test.short"}}, ""},
		{"./x -test.run 'TestA$'", selection{packages: []string{"./x"}, testFlags: []string{"-test.run=TestA$"}}, ""},
		{"-run TestA", selection{testFlags: []string{"-test.run=TestA"}}, ""},
		{"natkit lab run table-full --json", selection{command: "natkit lab run table-full --json"}, ""},
		{"uname -r; ip addr", selection{command: "uname -r; ip addr"}, ""},
		{"./x -run", selection{}, "-run needs a value"},
		{"./x -race", selection{}, "unknown flag -race"},
		{"./x -short ./y", selection{}, "packages come before flags"},
	} {
		got, err := parseRun(tt.text)
		if tt.err != "" {
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("RUN=%q: error %v, want %q", tt.text, err, tt.err)
			}
			continue
		}
		if d := cmp.Diff(tt.want, got, cmp.AllowUnexported(selection{})); err != nil || d != "" {
			t.Errorf("RUN=%q: %v\n%s", tt.text, err, d)
		}
	}
}

// TestLeftOutExists: a name in the lists that stands for nothing leaves out nothing.
func TestLeftOutExists(t *testing.T) {
	for pkg := range leftOut {
		if files, err := filepath.Glob(filepath.Join("../..", pkg, "*_test.go")); err != nil || len(files) == 0 {
			t.Errorf("%s is left out and has no tests", pkg)
		}
	}
	for pkg, tests := range leftOutTests {
		for test := range tests {
			if !declares(t, pkg, test) {
				t.Errorf("%s has no %s to leave out", pkg, test)
			}
		}
	}
}

func declares(t *testing.T, pkg, test string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("../..", pkg, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "func "+test+"(") {
			return true
		}
	}
	return false
}

func TestChoose(t *testing.T) {
	all := []goPackage{{ImportPath: modulePath + "/internal/netns"}, {ImportPath: modulePath + "/internal/units"}}
	if got := choose(all, false); len(got) != 1 || got[0].pkg.short() != "internal/netns" {
		t.Errorf("the default list is %v", got)
	}
	both := append(halfOf(choose(all, true), 1), halfOf(choose(all, true), 2)...)
	if len(both) != 2 || both[0].pkg.short() == both[1].pkg.short() || len(halfOf(choose(all, true), 0)) != 2 {
		t.Errorf("halves: %+v", both)
	}
	if got := choose(all, true); len(got) != 2 {
		t.Errorf("of two that were named are run: %v", got)
	}
}

// TestBatches: binaries have the last name of their package.
func TestBatches(t *testing.T) {
	var list []chosen
	for _, p := range []string{"a/run", "b/run", "a/build", "c/run"} {
		list = append(list, chosen{pkg: goPackage{ImportPath: p}})
	}
	var got [][]string
	for _, batch := range batches(list) {
		var names []string
		for _, c := range batch {
			names = append(names, c.pkg.ImportPath)
		}
		got = append(got, names)
	}
	if d := cmp.Diff([][]string{{"a/run", "a/build"}, {"b/run"}, {"c/run"}}, got); d != "" {
		t.Error(d)
	}
}
