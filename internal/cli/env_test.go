package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/natkit/natkit/internal/testutil"
	"golang.org/x/sys/unix"
)

// screen returns a terminal with the given number of columns; 0: it does not report a width.
func screen(t *testing.T, columns uint16) *os.File {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo-terminal: %v", err)
	}
	t.Cleanup(func() { master.Close() })
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: columns, Row: 24})
	}
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { slave.Close() })
	return slave
}

// TestColumns: the terminal, then COLUMNS, then nothing.
func TestColumns(t *testing.T) {
	for _, tc := range []struct {
		stdout  io.Writer
		columns string
		want    int
	}{
		{screen(t, 60), "", 60},
		{screen(t, 200), "80", 200},
		{screen(t, 0), "80", 80},
		{io.Discard, "120", 120},
		{io.Discard, "", 0},
		{io.Discard, "wide", 0},
		{io.Discard, "-1", 0},
		{screen(t, 7), "", leastColumns},
	} {
		_, terminal := tc.stdout.(*os.File)
		env := Env{Stdout: tc.stdout, StdoutTerminal: terminal, Getenv: func(name string) string {
			return map[string]string{"COLUMNS": tc.columns}[name]
		}}
		if got := env.style().Columns; got != tc.want {
			t.Errorf("terminal %v, COLUMNS %q: %d columns, want %d", terminal, tc.columns, got, tc.want)
		}
	}
}

// TestInputEndsWithItsContext: a pipe without a writer does not block ^C.
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

func writeText(text string) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := io.WriteString(w, text)
		return err
	}
}

func TestWriteWhole(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	check := func(name, want string) {
		t.Helper()
		got, err := os.ReadFile(path(name))
		info, statErr := os.Stat(path(name))
		if err != nil || statErr != nil || string(got) != want || info.Mode() != 0o600 {
			t.Errorf("%s = %q, %v, %v, want %q of mode 0600", name, got, err, info, want)
		}
		if left, _ := filepath.Glob(path(".natkit-*")); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	}
	if err := writeWhole(path("a"), 0o600, writeText("first")); err != nil {
		t.Fatal(err)
	}
	check("a", "first")
	if err := os.Chmod(path("a"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := writeWhole(path("a"), 0o600, writeText("second")); err != nil {
		t.Fatal(err)
	}
	check("a", "second")

	cause := errors.New("disk full")
	err := writeWhole(path("a"), 0o600, func(w io.Writer) error {
		if _, err := io.WriteString(w, "half"); err != nil {
			return err
		}
		return cause
	})
	if !errors.Is(err, cause) {
		t.Errorf("writeWhole = %v", err)
	}
	check("a", "second")

	// A link is followed, not replaced.
	if err := os.Symlink("a", path("link")); err != nil {
		t.Fatal(err)
	}
	if err := writeWhole(path("link"), 0o600, writeText("third")); err != nil {
		t.Fatal(err)
	}
	check("a", "third")
	if info, err := os.Lstat(path("link")); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link became %v, %v", info, err)
	}
}

func TestWriteWholeKeepsDevices(t *testing.T) {
	before, err := os.Stat(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	if err := writeWhole(os.DevNull, 0o600, writeText("gone")); err != nil {
		t.Fatal(err)
	}
	after, err := os.Stat(os.DevNull)
	if err != nil || after.Mode() != before.Mode() || !os.SameFile(before, after) {
		t.Fatalf("%s became %v, %v", os.DevNull, after, err)
	}
}

func TestMayWrite(t *testing.T) {
	dir := t.TempDir()
	for name, want := range map[string]bool{"new": true, "none/new": false, "": false} {
		if err := mayWrite(filepath.Join(dir, name)); (err == nil) != want {
			t.Errorf("mayWrite(%q) = %v", name, err)
		}
	}
	if err := mayWrite(os.DevNull); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestInterruptibleReadsAll(t *testing.T) {
	want := bytes.Repeat([]byte("0123456789abcdef"), 3*chunkSize/16+5)
	for name, from := range map[string]io.Reader{
		"at once":         bytes.NewReader(want),
		"halves":          iotest.HalfReader(bytes.NewReader(want)),
		"error with data": iotest.DataErrReader(bytes.NewReader(want)),
	} {
		got, err := io.ReadAll(until(t.Context(), from))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes, %v; want %d", name, len(got), err, len(want))
		}
	}
	cause := errors.New("cause")
	if _, err := io.ReadAll(until(t.Context(), iotest.ErrReader(cause))); !errors.Is(err, cause) {
		t.Errorf("got %v", err)
	}
}

func TestInterruptibleEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	silent, w := io.Pipe()
	defer w.Close()
	go cancel()
	if _, err := until(ctx, silent).Read(make([]byte, 1)); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
