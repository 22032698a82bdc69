package disk

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestReplace(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.conf")
	check := func(want string, mode fs.FileMode) {
		t.Helper()
		got, err := os.ReadFile(path)
		info, statErr := os.Stat(path)
		if err != nil || statErr != nil || string(got) != want || info.Mode() != mode {
			t.Errorf("%q, %v, %v, %v; want %q of mode %v", got, err, info, statErr, want, mode)
		}
		entries, err := os.ReadDir(dir)
		if err != nil || len(entries) != 1 {
			t.Errorf("left beside it: %v, %v", entries, err)
		}
	}
	if err := Replace(path, 0o600, Text("first")); err != nil {
		t.Fatal(err)
	}
	check("first", 0o600)
	if err := Replace(path, 0o644, Text([]byte("second"))); err != nil {
		t.Fatal(err)
	}
	check("second", 0o644)

	cause := errors.New("no space left")
	err := Replace(path, 0o600, func(w io.Writer) error {
		if _, err := io.WriteString(w, "half"); err != nil {
			return err
		}
		return cause
	})
	if err != cause {
		t.Errorf("got error %v, want %v itself", err, cause)
	}
	check("second", 0o644)

	if err := Replace(filepath.Join(dir, "none", "b"), 0o600, Text("")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("in a folder that is not there: %v", err)
	}
	if err := Replace(dir, 0o600, Text("")); err == nil {
		t.Error("a folder was replaced")
	}
	check("second", 0o644)
}

func TestRemoveLeftovers(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{".natkit-123.tmp", "t0001.json", ".natkit-kept"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	RemoveLeftovers(dir)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if diff := cmp.Diff([]string{".natkit-kept", "t0001.json"}, names); diff != "" {
		t.Error(diff)
	}
	if err := SyncDir(filepath.Join(dir, "none")); err != nil {
		t.Error(err)
	}
}
