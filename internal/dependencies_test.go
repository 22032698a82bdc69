package internal_test

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestDependenciesAreExplained: each module that go.mod, or that of a tool, requires directly stands
// in docs/dependencies.md, and no other.
func TestDependenciesAreExplained(t *testing.T) {
	files, err := filepath.Glob("../tools/*/go.mod")
	if err != nil || len(files) == 0 {
		t.Fatalf("no modules of tools: %v", err)
	}
	var mod []byte
	for _, name := range append(files, "../go.mod") {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		mod = append(mod, text...)
	}
	doc, err := os.ReadFile("../docs/dependencies.md")
	if err != nil {
		t.Fatal(err)
	}
	required := map[string]bool{}
	own := []byte("github.com/natkit/natkit ") // which tools require
	for _, m := range regexp.MustCompile(`(?m)^(?:require )?\t?([a-zA-Z0-9.-]+\.[a-z]+/\S+) v\S+( // indirect)?$`).FindAllSubmatch(bytes.ReplaceAll(mod, own, nil), -1) {
		required[string(m[1])] = true
		if len(m[2]) == 0 && !strings.Contains(string(doc), string(m[1])+" ") && !strings.Contains(string(doc), string(m[1])+",") {
			t.Errorf("docs/dependencies.md does not say what %s is for", m[1])
		}
	}
	if len(required) < 5 {
		t.Fatalf("found only %d requirements in go.mod: the search is broken", len(required))
	}
	for _, m := range regexp.MustCompile(`(?m)^\| ((?:github\.com|golang\.org|charm\.land)/\S+) \|`).FindAllSubmatch(doc, -1) {
		if !required[string(m[1])] {
			t.Errorf("docs/dependencies.md explains %s, which go.mod does not require", m[1])
		}
	}
}
