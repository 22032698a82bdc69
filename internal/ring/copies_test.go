package ring

import (
	"slices"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// TestCopies: what is in a directory twice counts once, whatever its number; of several the one that has most.
func TestCopies(t *testing.T) {
	store := newMemory()
	write(t, store, LeastBytes, "one", 0, 30)
	write(t, store, LeastBytes, "two", 100, 130)
	first, second := store.files[segmentName(1)].Bytes(), store.files[segmentName(2)].Bytes()
	whole := open(t, store.fs())
	damaged := slices.Clone(first)
	damaged[whole.Segments[0].Frames[3].offset+headerBytes]++
	beginning := first[:whole.Segments[0].Frames[20].offset]
	for name, tt := range map[string]struct {
		files fstest.MapFS
		want  []Copy
	}{
		"behind":  {fstest.MapFS{segmentName(1): {Data: first}, segmentName(2): {Data: second}, segmentName(9): {Data: first}}, []Copy{{Segment: segmentName(9), Of: segmentName(1)}}},
		"begun":   {fstest.MapFS{segmentName(1): {Data: first}, segmentName(2): {Data: second}, segmentName(9): {Data: beginning}}, []Copy{{Segment: segmentName(9), Of: segmentName(1)}}},
		"damaged": {fstest.MapFS{segmentName(1): {Data: damaged}, segmentName(2): {Data: second}, segmentName(9): {Data: first}}, []Copy{{Segment: segmentName(1), Of: segmentName(9)}}},
		"both": {fstest.MapFS{segmentName(1): {Data: beginning}, segmentName(2): {Data: second}, segmentName(8): {Data: second}, segmentName(9): {Data: first}},
			[]Copy{{Segment: segmentName(8), Of: segmentName(2)}, {Segment: segmentName(1), Of: segmentName(9)}}},
	} {
		r := open(t, tt.files)
		if diff := cmp.Diff(tt.want, r.Copies, cmpopts.IgnoreUnexported(Copy{})); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if diff := cmp.Diff(numbers(whole), numbers(r)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		c, want := r.Contents(), whole.Contents()
		if c.Snapshots != want.Snapshots || c.Segments != 2 || len(c.Gaps) != 1 || c.Bytes != want.Bytes || len(c.Damaged) != 0 {
			t.Errorf("%s: %+v", name, c)
		}
		wantMembers(t, r)
		// A copy of the first has the last number, and is not the newest.
		recent, err := OpenSince(tt.files, at(110).Wall)
		if got := numbers(recent); err != nil || !slices.Equal(got, numbers(whole)[30:]) {
			t.Errorf("%s: since the second: %v, %v", name, got, err)
		}
		if err := recent.Refresh(at(0).Wall); err != nil || !slices.Equal(numbers(recent), numbers(whole)) {
			t.Errorf("%s: again: %v, %v", name, numbers(recent), err)
		}
	}
}

// TestCopyLacks: of two that are damaged in different places the frames of one are missing, and counted.
func TestCopyLacks(t *testing.T) {
	store := newMemory()
	write(t, store, LeastBytes, "one", 0, 30)
	data := store.files[segmentName(1)].Bytes()
	frames := open(t, store.fs()).Segments[0].Frames
	one, two := slices.Clone(data), slices.Clone(data)
	one[frames[3].offset+headerBytes]++
	for _, i := range []int{5, 6} {
		two[frames[i].offset+headerBytes]++
	}
	r := open(t, fstest.MapFS{segmentName(1): {Data: two}, segmentName(2): {Data: one}})
	if len(r.Segments) != 1 || r.Segments[0].Name != segmentName(2) || len(r.Copies) != 1 ||
		r.Copies[0].Text() != "00000001.natring: a copy of 00000002.natring, passed over, with 1 part that 00000002.natring lacks" {
		t.Errorf("%+v", r.Copies)
	}
}
