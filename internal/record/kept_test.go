//go:build linux

package record

import (
	"errors"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/natkit/natkit/internal/ring"
)

// keep makes a directory of what a trigger of a host kept.
func keep(t *testing.T, dir, host string) {
	t.Helper()
	put(t, filepath.Join(dir, whyName), []byte(`{"schema":"natkit.trigger/1","event":"mark"}`))
	put(t, filepath.Join(dir, ringName), []byte(`{"schema":"natkit.ring/1","host":"`+host+`"}`+"\n"))
	put(t, filepath.Join(dir, bundleName), nil)
}

// TestAlone: what the triggers of one host kept is known without the ring; recordings of several hosts are not that.
func TestAlone(t *testing.T) {
	for name, tt := range map[string]struct {
		make func(t *testing.T, dir string)
		// kept, and alone, are how many there are.
		kept, alone int
		none        bool
	}{
		"empty":  {make: func(*testing.T, string) {}, none: true},
		"a ring": {make: func(t *testing.T, dir string) { put(t, filepath.Join(dir, ringName), nil) }},
		"a ring and kept": {make: func(t *testing.T, dir string) {
			put(t, filepath.Join(dir, ringName), nil)
			keep(t, filepath.Join(dir, keptDir, "one"), "gw")
		}, kept: 1},
		"kept": {make: func(t *testing.T, dir string) {
			keep(t, filepath.Join(dir, keptDir, "one"), "gw")
			keep(t, filepath.Join(dir, keptDir, "two"), "gw")
			put(t, filepath.Join(dir, marksDir, "x"), nil)
			put(t, filepath.Join(dir, lockName), nil)
		}, kept: 2, alone: 2},
		"its kept": {make: func(t *testing.T, dir string) {
			keep(t, filepath.Join(dir, "one"), "gw")
			keep(t, filepath.Join(dir, "two"), "gw")
		}, kept: 2, alone: 2},
		"of two hosts": {make: func(t *testing.T, dir string) {
			keep(t, filepath.Join(dir, "one"), "gw1")
			keep(t, filepath.Join(dir, "two"), "gw2")
		}, none: true},
		"beside bundles": {make: func(t *testing.T, dir string) {
			keep(t, filepath.Join(dir, keptDir, "one"), "gw")
			put(t, filepath.Join(dir, "node-2.tar.gz"), nil)
		}, kept: 1},
		"beside a host": {make: func(t *testing.T, dir string) {
			keep(t, filepath.Join(dir, keptDir, "one"), "gw")
			put(t, filepath.Join(dir, "gw2", ringName), nil)
		}, kept: 1},
	} {
		dir := t.TempDir()
		tt.make(t, dir)
		kept, err := List(dir)
		if alone := Alone(dir); len(kept) != tt.kept || len(alone) != tt.alone || errors.Is(err, ring.ErrNone) != tt.none || err != nil && !tt.none {
			t.Errorf("%s: kept %d, alone %d: %v", name, len(kept), len(alone), err)
		}
	}
	// No pipe is opened: that would wait for a writer.
	dir := t.TempDir()
	for _, name := range []string{"pipe", keptDir} {
		if err := syscall.Mkfifo(filepath.Join(dir, name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{dir, filepath.Join(dir, "pipe"), filepath.Join(dir, "missing")} {
		if _, err := List(name); err == nil || len(Alone(name)) > 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
}
