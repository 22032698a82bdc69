//go:build unix

package ring

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestSpecialFiles: what is no regular file is not opened, which would wait for ever, and is named; the rest is read. A symbolic
// link to a segment is one.
func TestSpecialFiles(t *testing.T) {
	store := newMemory()
	write(t, store, LeastBytes, "one", 0, 3)
	dir, other := t.TempDir(), filepath.Join(t.TempDir(), "segment")
	if err := os.WriteFile(other, store.files[segmentName(1)].Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	in := func(n uint64) string { return filepath.Join(dir, segmentName(n)) }
	for _, err := range []error{syscall.Mkfifo(in(1), 0o600), os.Symlink(other, in(2)), os.Symlink(in(1), in(3)), os.Mkdir(in(4), 0o700)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	r := open(t, os.DirFS(dir))
	if diff := cmp.Diff(sequence(0, 3), numbers(r)); diff != "" {
		t.Error(diff)
	}
	wantMembers(t, r)
	c := r.Contents()
	var want []DamagedSegment
	for _, n := range []uint64{1, 3, 4} {
		want = append(want, DamagedSegment{Segment: segmentName(n), Error: errNotRegular.Error()})
	}
	if diff := cmp.Diff(want, c.Damaged); diff != "" || c.Damaged[0].Text() != "not read: it is not a regular file, and was not opened" {
		t.Errorf("%s%s", diff, c.Damaged[0].Text())
	}
}
