package main

import (
	"fmt"
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
