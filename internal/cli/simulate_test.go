package cli

import (
	"bytes"
	"context"
	"os"
	"testing"

	"github.com/natkit/natkit/internal/simulate"
)

func TestTimeWaitOf(t *testing.T) {
	for release, want := range map[string]string{
		"2.6": simulate.KernelWheel, "2.6.32-754.el6": simulate.KernelWheel, "3.10": simulate.KernelWheel, "3.18.9": simulate.KernelWheel, "4.0": simulate.KernelWheel,
		"3.10.0-957.el7": simulate.KernelWheel, "3.10.0-1127": simulate.KernelWheelRearm, "3.10.0-1160.92.1.el7.x86_64": simulate.KernelWheelRearm,
		"4.1": simulate.KernelTimer, "4.1+": simulate.KernelTimer, "4": simulate.KernelWheel, "5.4.0-1127": simulate.KernelTimer, "6.18.44-fc": simulate.KernelTimer,
	} {
		if got, err := timeWaitOf(release); err != nil || got != want {
			t.Errorf("%s: %s, %v; want %s", release, got, err, want)
		}
	}
	for _, release := range []string{"", "new", "3.x", "-3", "1.0"} {
		if got, err := timeWaitOf(release); err == nil {
			t.Errorf("%q: %s, no error", release, got)
		}
	}
}

// TestSimulateInterrupted: nothing half comes out.
func TestSimulateInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var stdout, stderr bytes.Buffer
	page := t.TempDir() + "/page.html"
	code := Run(ctx, Env{Stdout: &stdout, Stderr: &stderr, Getenv: func(string) string { return "" }},
		[]string{"simulate", "--preset", "old-kernel", "--html", page})
	if want := "natkit: simulate: interrupted; there is no result\n"; code != exitFailed || stdout.Len() > 0 || stderr.String() != want {
		t.Errorf("exit code %d, stdout %q, stderr %q", code, &stdout, &stderr)
	}
	if _, err := os.Stat(page); err == nil {
		t.Error("a page was written")
	}
}
