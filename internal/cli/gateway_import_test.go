package cli

import (
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/gateway/convert"
)

// A note is one line that can be read, whatever the rule is.
func TestNoteLineIsBounded(t *testing.T) {
	long := strings.Repeat("a", 1<<20)
	for _, n := range []convert.Note{
		{Line: 3, Text: long, Kind: convert.Untranslated, Reason: "has " + long, Rules: 1},
		{Kind: convert.Untranslated, Reason: long, Rules: 2},
	} {
		if got := len(noteLine(n)); got > 2000 {
			t.Errorf("%d bytes", got)
		}
	}
	if got := noteLine(convert.Note{Kind: convert.Untranslated, Reason: "too many", Rules: 1}); got != "not translated: too many" {
		t.Error(got)
	}
}
