package cli

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
)

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
