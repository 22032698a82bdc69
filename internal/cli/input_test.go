package cli

import (
	"context"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/testutil"
)

// TestInputEndsWithItsContext: a pipe that nobody writes to keeps nobody from ^C.
func TestInputEndsWithItsContext(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"gateway", "check", "--offline", "-"}, {"gateway", "check", "--offline", fifo},
		{"gateway", "import", "-"}, {"gateway", "import", fifo},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		silent, w := io.Pipe()
		bound := time.AfterFunc(testutil.Patience(10*time.Second), func() { w.Close() })
		var said strings.Builder
		go cancel()
		if status := Run(ctx, Env{Stdin: silent, Stdout: io.Discard, Stderr: &said}, args); status != exitFailed || !strings.Contains(said.String(), "interrupted") {
			t.Errorf("%s: %d, %s", strings.Join(args, " "), status, &said)
		}
		bound.Stop()
		w.Close()
	}
}

func TestInputRefusesATerminal(t *testing.T) {
	for _, args := range [][]string{{"gateway", "check", "--offline", "-"}, {"gateway", "import", "-"}} {
		var said strings.Builder
		env := Env{Stdin: strings.NewReader(""), StdinTerminal: true, Stdout: io.Discard, Stderr: &said}
		if status := Run(t.Context(), env, args); status != exitUsage || !strings.Contains(said.String(), "standard input is a terminal: pipe ") {
			t.Errorf("%s: %d, %s", strings.Join(args, " "), status, &said)
		}
	}
}
