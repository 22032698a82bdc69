//go:build linux

package record

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/disk"
	"github.com/natkit/natkit/internal/ring"
)

// TestPairLost: a time without snapshots of which the recording is damaged is said to be that.
func TestPairLost(t *testing.T) {
	dir, start := t.TempDir(), time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	w, err := ring.NewWriter(store{dir}, ring.Options{Most: ring.LeastBytes, Header: ring.Header{Run: "one", EverySeconds: 5}})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		at := time.Duration(i) * 5 * time.Second
		if err := w.Snapshot(ring.Stamp{Wall: start.Add(at), Uptime: at}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, ringName)
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if r, err := ring.Open(disk.Plain(dir)); err != nil {
		t.Fatal(err)
	} else if _, _, err := Pair(r, start.Add(-time.Hour)); err == nil || strings.Contains(err.Error(), "damaged") {
		t.Errorf("of a whole one: %v", err)
	}
	clear(data[len(data)/4 : len(data)*3/4])
	put(t, name, data)
	r, err := ring.Open(disk.Plain(dir))
	if err != nil {
		t.Fatal(err)
	}
	const lost = "; the recording is damaged: 00000001.natring: "
	middle := start.Add(250 * time.Second)
	if _, _, err := Pair(r, middle); err == nil || !strings.Contains(err.Error(), lost) {
		t.Error(err)
	}
	if err := Covers(r, middle, middle, middle); err == nil || !strings.Contains(err.Error(), lost) {
		t.Error(err)
	}
}
