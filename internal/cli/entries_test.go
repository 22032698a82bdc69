package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/testutil"
	"golang.org/x/sys/unix"
)

// A pipe without a writer must not keep natkit from ending.
func TestOpenUntil(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := openUntil(ctx, pipe)
		ended <- err
	}()
	cancel()
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	case <-time.After(testutil.Patience(time.Minute)):
		t.Error("it waits for a writer")
	}
	if w, err := os.OpenFile(pipe, os.O_RDWR, 0); err == nil { // lets go of the reader
		w.Close()
	}
}

// What keeps a list from being written is not the fault of what it was read from.
func TestListThatCannotBeWritten(t *testing.T) {
	table := filepath.Join(t.TempDir(), "table")
	line := "udp 17 29 src=198.18.0.1 dst=203.0.113.1 sport=1024 dport=53 src=203.0.113.1 dst=198.18.0.1 sport=53 dport=1024 mark=0 use=1\n"
	if err := os.WriteFile(table, []byte(strings.Repeat(line, 2*lineBuffer/len(line))), 0o600); err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	env := Env{Stdout: fullDisk{}, Stderr: &stderr, Getenv: func(string) string { return "" }}
	code := Run(t.Context(), env, []string{"conntrack", "list", "--from", table})
	if want := "natkit: write the list: " + unix.ENOSPC.Error() + "\n"; code != exitFailed || stderr.String() != want {
		t.Errorf("exit code %d, %q, want %q", code, &stderr, want)
	}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, unix.ENOSPC }

// What a file is called must not reach the terminal as it is.
func TestNamesOnATerminal(t *testing.T) {
	const name = "table\x1b[2J"
	t.Chdir(t.TempDir())
	for _, write := range []bool{false, true} {
		if write {
			if err := os.WriteFile(name, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		var stdout, stderr bytes.Buffer
		env := Env{Stdout: &stdout, Stderr: &stderr, Getenv: func(string) string { return "" }}
		Run(t.Context(), env, []string{"conntrack", "--from", name})
		if all := stdout.String() + stderr.String(); strings.Contains(all, "\x1b") || !strings.Contains(all, "table␛[2J") {
			t.Errorf("it says %q", all)
		}
	}
}

func TestExitCodeOfAnInterruption(t *testing.T) {
	var stderr bytes.Buffer
	code := exitCode(&stderr, nil, fmt.Errorf("delete conntrack entries: %w", context.Canceled))
	if want := "natkit: delete conntrack entries: interrupted\n"; code != exitFailed || stderr.String() != want {
		t.Errorf("exit code %d, %q, want %q", code, &stderr, want)
	}
}
