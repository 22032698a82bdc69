package cli

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/testutil"
)

// TestDropsInterruptedAtOnce: an interruption before all is attached is no failure, and
// JSON is a whole document.
func TestDropsInterruptedAtOnce(t *testing.T) {
	testutil.NeedRoot(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var stdout, stderr bytes.Buffer
	if status := Run(ctx, Env{Stdout: &stdout, Stderr: &stderr, Getenv: func(string) string { return "" }}, []string{"drops", "--json"}); status != 0 {
		t.Errorf("status %d: %s", status, &stderr)
	}
	var document struct{ Schema string }
	if err := json.Unmarshal(stdout.Bytes(), &document); err != nil || document.Schema != report.DropsSchema {
		t.Errorf("%v, %+v in %q", err, document, &stdout)
	}
}

func TestDropsAsCSV(t *testing.T) {
	testutil.NeedRoot(t)
	var stdout, stderr bytes.Buffer
	if status := Run(t.Context(), *testEnv(&stdout, &stderr), []string{"drops", "-o", "csv", "--for", "100ms"}); status != 0 {
		t.Errorf("status %d: %s", status, &stderr)
	}
	if lines, err := csv.NewReader(&stdout).ReadAll(); err != nil || len(lines) == 0 || lines[0][0] != "function" {
		t.Errorf("%v, %q", err, lines)
	}
}

// TestNamespaceNamesAge: the number of a namespace that is gone may be another's.
func TestNamespaceNamesAge(t *testing.T) {
	testutil.NeedRoot(t)
	own, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	for _, tt := range []struct {
		age  time.Duration
		kept bool
	}{{namesAge / 100, true}, {2 * namesAge, false}} {
		n := &namespaceNames{names: map[uint64]string{own.Inode(): "gone"}, read: time.Now().Add(-tt.age)}
		if got := n.name(own.Inode()); (got == "gone") != tt.kept {
			t.Errorf("after %s: %q", tt.age, got)
		}
	}
}
