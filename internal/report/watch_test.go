package report

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/natkit/natkit/internal/diagnose"
)

func TestWatchLines(t *testing.T) {
	since := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	full := diagnose.Standing{ID: "ct-table-full", Severity: diagnose.Critical, Title: "connection table\x1b full", Since: since, Times: 1}
	again := full
	again.Times = 3
	lacks := diagnose.Standing{Title: "read /dev/kmsg: operation not permitted", Since: since, Times: 1}
	at := since.Add(90 * time.Second)
	var b strings.Builder
	for _, e := range []diagnose.Event{
		{At: since, Kind: diagnose.Came, Standing: full},
		{At: at, Kind: diagnose.Changed, Standing: again, Was: diagnose.Warning},
		{At: at, Kind: diagnose.Went, Standing: again},
		{At: since, Kind: diagnose.Unchecked, Standing: lacks, Checks: []string{"a", "b"}},
		{At: at, Kind: diagnose.Checked, Standing: lacks, Checks: []string{"a", "b"}},
	} {
		if err := Event(&b, Style{}, e); err != nil {
			t.Fatal(err)
		}
	}
	end := &diagnose.WatchEnd{At: at, Reports: 9, Seconds: 90, CPUSeconds: 0.45}
	if err := WatchEnd(&b, Style{}, end); err != nil {
		t.Fatal(err)
	}
	end.Findings, end.Incomplete = []diagnose.Standing{again}, []diagnose.Missing{{Why: lacks.Title, Checks: []string{"a", "b"}}}
	if err := WatchEnd(&b, Style{}, end); err != nil {
		t.Fatal(err)
	}
	golden(t, "watch.txt", []byte(b.String()))
}

// TestWatchColours: the severity stands out, and alone.
func TestWatchColours(t *testing.T) {
	var b strings.Builder
	e := diagnose.Event{At: time.Unix(0, 0).UTC(), Kind: diagnose.Came, Standing: diagnose.Standing{ID: "x", Severity: diagnose.Notice, Title: "y", Times: 1}}
	if err := Event(&b, Style{Colour: true}, e); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff("1970-01-01T00:00:00Z came      \x1b[1mnotice  \x1b[0m x: y\n", b.String()); diff != "" {
		t.Error(diff)
	}
}
