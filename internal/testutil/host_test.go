//go:build linux

package testutil

import (
	"os"
	"path/filepath"
	"testing"
)

// What a test that was killed had changed is put back by the next one, once.
func TestPutBack(t *testing.T) {
	NeedRoot(t)
	LockHost(t)
	value := filepath.Join(t.TempDir(), "value")
	if err := os.WriteFile(value, []byte("2000\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	before := noted()
	if changed := putBack(t, append([]string{value + " 262144"}, before...)); changed != value+" " {
		t.Errorf("changed %q", changed)
	}
	if is, err := os.ReadFile(value); err != nil || string(is) != "262144" {
		t.Errorf("%q, %v", is, err)
	}
	if noted() != nil {
		t.Error("the note is still there")
	}
}
