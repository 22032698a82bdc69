package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestSummary feeds a real `go test -json` of a module with one test of each fate.
func TestSummary(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "go.mod", "module github.com/natkit/natkit/probe\n\ngo 1.26\n")
	write(t, dir, "good/good_test.go", "package good\n\nimport \"testing\"\n\nfunc TestFine(t *testing.T) { t.Log(\"noise\") }\n")
	write(t, dir, "bad/bad_test.go", `package bad

import "testing"

func TestWrong(t *testing.T)  { t.Error("seven is not eight") }
func TestAbsent(t *testing.T) { t.Skip("needs the moon: at night") }
`)
	write(t, dir, "broken/broken_test.go", "package broken\n\nfunc x() { undefined() }\n")
	write(t, dir, "panics/panics_test.go", "package panics\n\nimport \"testing\"\n\nfunc TestPanics(t *testing.T) { panic(\"ouch\") }\n")

	cmd := exec.Command("go", "test", "-json", "-vet=off", "./...")
	cmd.Dir = dir
	events, err := cmd.Output()
	if err == nil {
		t.Fatal("go test passed; it should fail")
	}
	var out bytes.Buffer
	if err := summarise(bytes.NewReader(events), &out, false); err != nil {
		t.Fatal(err)
	}
	got := out.String()
	for _, want := range []string{
		"ok    probe/good",
		"FAIL  probe/bad",
		"seven is not eight",
		"skipped, needs the moon: at night:\n    probe/bad.TestAbsent\n",
		"undefined: undefined",
		"panic: ouch",
		"1 tests passed, 2 failed, 1 skipped",
		"3 packages failed",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the summary lacks %q:\n%s", want, got)
		}
	}
	if strings.Contains(got, "noise") {
		t.Errorf("the summary repeats the output of a test that passed:\n%s", got)
	}
}

func TestNoTestIsAnError(t *testing.T) {
	var out bytes.Buffer
	events := `{"Action":"start","Package":"a"}` + "\n" + `{"Action":"pass","Package":"a"}` + "\n"
	if err := summarise(strings.NewReader(events), &out, false); err == nil {
		t.Errorf("no error: %s", &out)
	}
}

// TestTimes: how long a package waited for another one before its first test is not its
// time, and the slowest comes first.
func TestTimes(t *testing.T) {
	const events = `{"Time":"2026-01-01T10:00:00Z","Action":"start","Package":"quick"}
{"Time":"2026-01-01T10:00:00Z","Action":"start","Package":"slow"}
{"Time":"2026-01-01T10:00:01Z","Action":"run","Package":"slow","Test":"TestA"}
{"Time":"2026-01-01T10:00:02Z","Action":"pass","Package":"slow","Test":"TestA"}
{"Time":"2026-01-01T10:00:02Z","Action":"run","Package":"slow","Test":"TestB"}
{"Time":"2026-01-01T10:00:08.5Z","Action":"pass","Package":"slow","Test":"TestB"}
{"Time":"2026-01-01T10:00:08.5Z","Action":"pass","Package":"slow"}
{"Time":"2026-01-01T10:00:09Z","Action":"run","Package":"quick","Test":"TestC"}
{"Time":"2026-01-01T10:00:09.25Z","Action":"fail","Package":"quick","Test":"TestC"}
{"Time":"2026-01-01T10:00:09.25Z","Action":"fail","Package":"quick"}
`
	var out bytes.Buffer
	if err := summarise(strings.NewReader(events), &out, false); err != nil {
		t.Fatal(err)
	}
	const want = "time of each package:\n     7.5 s  slow\n     0.2 s  quick\n2 tests passed, 1 failed, 0 skipped; 8s of package time\n1 packages failed\n"
	if got := out.String(); !strings.HasSuffix(got, want) {
		t.Errorf("got\n%s\nwant at its end\n%s", got, want)
	}
}

func TestReason(t *testing.T) {
	for _, tt := range []struct {
		name   string
		output []string
		want   string
	}{
		{"with place", []string{"=== RUN   TestX\n", "    testutil.go:24: needs root (namespaces)\n", "--- SKIP: TestX (0.00s)\n"}, "needs root (namespaces)"},
		{"none", []string{"=== RUN   TestX\n", "--- SKIP: TestX (0.00s)\n"}, "no reason given"},
		{"last of several", []string{"    a_test.go:1: tried\n", "    a_test.go:2: gave up\n"}, "gave up"},
	} {
		if got := reason(tt.output); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
