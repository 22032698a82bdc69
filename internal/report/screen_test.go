package report

import "testing"

func TestTruncate(t *testing.T) {
	for _, tt := range []struct {
		text  string
		width int
		want  string
	}{
		{"gateway", 9, "gateway"}, {"gateway", 7, "gateway"}, {"gateway", 4, "gat…"}, {"gateway", 2, "g…"}, {"gateway", 1, "…"},
		{"gateway", 0, ""}, {"gateway", -1, ""}, {"g", 1, "g"}, {"", 0, ""}, {"网络网络", 5, "网络…"}, {"网络", 3, "网…"}, {"网", 1, "…"},
	} {
		if got := Truncate(tt.text, tt.width); got != tt.want {
			t.Errorf("Truncate(%q, %d) = %q, want %q", tt.text, tt.width, got, tt.want)
		}
	}
}
