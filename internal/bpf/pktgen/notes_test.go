package pktgen

import (
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/load/packets"
)

// wantNotes wants each text in some note of a result.
func wantNotes(t testing.TB, r *packets.Result, texts ...string) {
	t.Helper()
	all := strings.Join(r.Notes, "\n")
	for _, text := range texts {
		if !strings.Contains(all, text) {
			t.Errorf("no note says %q: %q", text, r.Notes)
		}
	}
}
