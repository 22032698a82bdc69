package cli

import (
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/ruleset"
)

// A note is one line that can be read, whatever the rule is.
func TestNoteLineIsBounded(t *testing.T) {
	long := strings.Repeat("a", 1<<20)
	for _, n := range []ruleset.Note{
		{Line: 3, Text: long, Kind: ruleset.Untranslated, Reason: "has " + long, Rules: 1},
		{Kind: ruleset.Untranslated, Reason: long, Rules: 2},
	} {
		if got := len(noteLine(n)); got > 2000 {
			t.Errorf("%d bytes", got)
		}
	}
	if got := noteLine(ruleset.Note{Kind: ruleset.Untranslated, Reason: "too many", Rules: 1}); got != "not translated: too many" {
		t.Error(got)
	}
}
