package report

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

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

// TestFit breaks no word, keeps the margin, and leaves alone what is no screen.
func TestFit(t *testing.T) {
	text := "a.yaml:2:32: warn: there is no interface eth1 here\n        look at 'ip link' whether it has another name\n"
	want := "a.yaml:2:32: warn: there is no\ninterface eth1 here\n        look at 'ip link'\n          whether it has another\n          name\n"
	if diff := cmp.Diff(want, Style{Columns: 32}.Fit(text)); diff != "" {
		t.Error(diff)
	}
	if got := (Style{}).Fit(text); got != text {
		t.Errorf("into a pipe: %q", got)
	}
}

func TestWrapKeepsPercent(t *testing.T) {
	if diff := cmp.Diff([]string{"used by", "(38.7 %); none"}, Wrap("used by (38.7 %); none", 14)); diff != "" {
		t.Error(diff)
	}
}
