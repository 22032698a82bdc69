package document

import (
	"fmt"
	"strings"
)

// Nearest returns the known word that needs the fewest edits to become word, or that
// word begins; the first of several, and "" where all of them are too far away. Upper
// and lower case are the same.
func Nearest(word string, known []string) string {
	word = strings.ToLower(word)
	best, least := "", (len(word)+1)/3+1
	for _, name := range known {
		if d := distance(word, strings.ToLower(name), least); d < least {
			best, least = name, d
		}
	}
	return best
}

// Hint returns `: did you mean "…"?` for an error about an unknown word; "" where no
// known word is near.
func Hint(word string, known []string) string {
	if near := Nearest(word, known); near != "" {
		return fmt.Sprintf(": did you mean %q?", near)
	}
	return ""
}

// distance is the number of letters to insert, delete, replace or swap with the next
// one to get b from a (optimal string alignment); most where it is at least that.
func distance(a, b string, most int) int {
	switch {
	case len(a) >= 3 && len(a) < len(b) && strings.HasPrefix(b, a):
		return 1
	case max(len(a)-len(b), len(b)-len(a)) >= most:
		return most
	}
	before, last := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
		row := make([]int, len(b)+1)
		row[0] = i + 1
		for j := range len(b) {
			same := last[j]
			if a[i] != b[j] {
				same++
			}
			row[j+1] = min(same, last[j+1]+1, row[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}
