package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// readArchive gives "name mode content" of each entry, the last one included.
func readArchive(t *testing.T, text []byte) []string {
	t.Helper()
	const header = 110
	var found []string
	for at := 0; at+header <= len(text); {
		field := func(n int) int {
			v, err := strconv.ParseUint(string(text[at+6+8*n:at+14+8*n]), 16, 32)
			if err != nil {
				t.Fatal(err)
			}
			return int(v)
		}
		if magic := string(text[at : at+6]); magic != "070701" {
			t.Fatalf("magic %q at %d", magic, at)
		}
		mode, size, nameSize := field(1), field(6), field(11)
		name := string(text[at+header : at+header+nameSize-1])
		content := roundUp(at + header + nameSize)
		found = append(found, fmt.Sprintf("%s %o %s", name, mode, text[content:content+size]))
		at = roundUp(content + size)
	}
	return found
}

func roundUp(n int) int { return (n + 3) &^ 3 }

// TestTreeWithLinks: a link that leads nowhere is a link there, too.
func TestTreeWithLinks(t *testing.T) {
	root := t.TempDir()
	for name, target := range map[string]string{".#file": "user@host.123", "good": "file"} {
		if err := os.Symlink(target, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	a := archive{}
	if err := a.addTree(root, nil); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]entry{
		".#file": {mode: link | 0o777, text: "user@host.123"},
		"good":   {mode: link | 0o777, text: "file"},
		"file":   {mode: regular | 0o600, from: filepath.Join(root, "file")},
	} {
		if got := a[filepath.Join(root, name)]; got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
}
