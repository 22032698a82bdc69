package cli

import (
	"fmt"
	"io"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// screen is a terminal of so many columns; 0 is one that does not know how wide it is.
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
