package ring

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"slices"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/natkit/natkit/internal/snapshot"
)

func ringOf(data []byte) fstest.MapFS { return fstest.MapFS{segmentName(1): {Data: data}} }

// damagedRing has 15 snapshots, of which 0 and 12 are keys, with an event behind each.
func damagedRing(t *testing.T) (data []byte, frames []Frame) {
	t.Helper()
	store := newMemory()
	w := write(t, store, LeastBytes, "one", 0, 0)
	for n := range 15 {
		if err := w.Snapshot(at(n), members(n)); err != nil {
			t.Fatal(err)
		}
		if err := w.Event(at(n), Event{Event: EventMark}); err != nil {
			t.Fatal(err)
		}
	}
	frames = open(t, store.fs()).Segments[0].Frames
	if len(frames) != 30 || frames[24].Kind != KindKey {
		t.Fatalf("%d frames", len(frames))
	}
	return slices.Clone(store.files[segmentName(1)].Bytes()), frames
}

// wantLost compares what is read where the frame with an index is lost: all others, but for snapshots of which it is the key.
func wantLost(t *testing.T, data []byte, frames []Frame, lost int) {
	t.Helper()
	r := open(t, ringOf(data))
	var want, got []int64
	needing := 0
	for i, f := range frames {
		switch {
		case i == lost:
		case f.Kind == KindDelta && frames[lost].Kind == KindKey && f.key == frames[lost].offset:
			needing++
		default:
			want = append(want, f.offset)
		}
	}
	for _, f := range r.Segments[0].Frames {
		got = append(got, f.offset)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("frame %d is damaged: %s", lost, diff)
	}
	c := r.Contents()
	f := frames[lost]
	damaged := []DamagedSegment{{Segment: segmentName(1), Lost: Damage{Places: 1, Bytes: f.Bytes, First: f.offset, Snapshots: needing}}}
	if diff := cmp.Diff(damaged, c.Damaged); diff != "" {
		t.Fatalf("frame %d is damaged: %s", lost, diff)
	}
}

// TestDamagedFrame: a frame with a wrong byte anywhere is lost, those behind it are read, but for snapshots that need it, and
// nothing is read with another key than its own.
func TestDamagedFrame(t *testing.T) {
	data, frames := damagedRing(t)
	for i, f := range frames[:len(frames)-1] {
		for place := f.offset; place < f.offset+f.Bytes; place++ {
			if place > f.offset+headerBytes && place%11 > 0 {
				continue
			}
			for _, flip := range []byte{3, 0x80, 0xff} { // 3 makes a key of a delta, and the reverse
				damaged := slices.Clone(data)
				damaged[place] ^= flip
				wantLost(t, damaged, frames, i)
			}
		}
		damaged := slices.Clone(data)
		clear(damaged[f.offset+headerBytes : f.offset+f.Bytes])
		wantLost(t, damaged, frames, i)
	}
	damaged := slices.Clone(data)
	damaged[frames[5].offset+40] ^= 1
	wantMembers(t, open(t, ringOf(damaged)))
	// Of the last one the length may be what is wrong: then it is torn.
	last := frames[len(frames)-1]
	damaged = slices.Clone(data)
	damaged[last.offset+30] ^= 1
	wantLost(t, damaged, frames, len(frames)-1)
	damaged[last.offset+2] = 1
	if s := open(t, ringOf(damaged)).Segments[0]; s.Torn != last.Bytes || s.broken || len(s.Frames) != len(frames)-1 {
		t.Errorf("%+v", s)
	}
}

// TestDamagedKey: where a key snapshot may be among what is lost, no snapshot is read until the next key, and that is said.
func TestDamagedKey(t *testing.T) {
	data, frames := damagedRing(t)
	for _, with := range []byte{0, 0xff, 2} {
		for from := 2; from < 22; from += 3 {
			damaged := slices.Clone(data)
			first, last := frames[from], frames[from+1]
			for i := first.offset + 4; i < last.offset+last.Bytes; i++ {
				damaged[i] = with
			}
			r := open(t, ringOf(damaged))
			wantMembers(t, r)
			for _, f := range r.Snapshots() {
				if f.offset > first.offset && f.offset < frames[24].offset {
					t.Fatalf("from frame %d: a snapshot at byte %d is read", from, f.offset)
				}
			}
			left := 0
			for _, f := range frames[from+2 : 24] {
				if f.Kind == KindDelta {
					left++
				}
			}
			want := Damage{Places: 1, Bytes: last.offset + last.Bytes - first.offset, First: first.offset, Snapshots: left}
			if diff := cmp.Diff(want, r.Segments[0].Lost); diff != "" {
				t.Fatalf("from frame %d: %s", from, diff)
			}
		}
	}
}

// TestDamagedWhileWritten: what is damaged is counted once, and what looked damaged at the end is read once it is whole.
func TestDamagedWhileWritten(t *testing.T) {
	data, frames := damagedRing(t)
	damaged := slices.Clone(data)
	damaged[frames[5].offset+40] ^= 1
	files := ringOf(nil)
	var r *Ring
	for i, f := range frames {
		for _, end := range []int64{f.offset + f.Bytes - 1, f.offset + f.Bytes} {
			files[segmentName(1)].Data = damaged[:end]
			if r == nil {
				r = open(t, files)
			} else if err := r.Refresh(start); err != nil {
				t.Fatal(err)
			}
		}
		want := i + 1
		if i >= 5 {
			want = i
		}
		if s := r.Segments[0]; len(s.Frames) != want || i > 5 && (s.Lost.Places != 1 || s.Torn != 0) {
			t.Fatalf("after frame %d: %d frames, %+v, %d torn", i, len(s.Frames), s.Lost, s.Torn)
		}
	}
}

// TestUndecoded: parts with the right checksum that cannot be read are damage, and what stands beside them is shown.
func TestUndecoded(t *testing.T) {
	store := newMemory()
	w := write(t, store, LeastBytes, "one", 0, 2)
	if err := errors.Join(w.Event(at(2), Event{Event: EventMark, Text: "before"}), w.Drops(at(2), &snapshot.Drops{Packets: 4})); err != nil {
		t.Fatal(err)
	}
	data := slices.Clone(store.files[segmentName(1)].Bytes())
	first, bytes, places := int64(len(data)), int64(0), 0
	for _, kind := range []Kind{KindEvent, KindPackets, KindDrops, KindDropped} {
		for _, payload := range []string{"no zstd", "", string(packed(t, "{"))} {
			before := len(data)
			data = appendFrame(data, kind, 0, at(3), []byte(payload))
			bytes, places = bytes+int64(len(data)-before), places+1
		}
	}
	whole := len(data)
	data = appendFrame(data, KindEvent, 0, at(4), packed(t, `{"event":"mark","text":"behind"}`))
	c := open(t, ringOf(data)).Contents()
	var marks []string
	for _, e := range c.Events {
		marks = append(marks, e.Text)
	}
	if diff := cmp.Diff([]string{"before", "behind"}, marks); diff != "" || c.Snapshots != 2 || c.Dropped != 4 {
		t.Errorf("%d snapshots, %d packets dropped: %s", c.Snapshots, c.Dropped, diff)
	}
	want := []DamagedSegment{{Segment: segmentName(1), Lost: Damage{Places: places, Bytes: bytes, First: first}}}
	if diff := cmp.Diff(want, c.Damaged); diff != "" {
		t.Error(diff)
	}
	// What is wrong otherwise is added to it.
	want[0].Lost = Damage{Places: places + 1, Bytes: bytes + int64(len(data)-whole), First: first}
	data[len(data)-1] ^= 1
	data = appendFrame(data, KindEvent, 0, at(4), packed(t, `{"event":"mark"}`))
	if diff := cmp.Diff(want, open(t, ringOf(data)).Contents().Damaged); diff != "" {
		t.Error(diff)
	}
}

// packed is the payload of a body.
func packed(t *testing.T, body string) []byte {
	t.Helper()
	encoder, err := newEncoder(nil)
	if err != nil {
		t.Fatal(err)
	}
	return encoder.EncodeAll([]byte(body), nil)
}

func TestDamagedText(t *testing.T) {
	for want, d := range map[string]DamagedSegment{
		"not read: why": {TornBytes: 3, Error: "why"},
		"1 byte at its end is no whole part: what a crash left, or a recorder is writing": {TornBytes: 1},
		"1 byte at byte 7 is damaged, and left out":                                       {Lost: Damage{Places: 1, Bytes: 1, First: 7}},
		"60 bytes at byte 7 are damaged, and left out":                                    {Lost: Damage{Places: 1, Bytes: 60, First: 7}},
		"60 bytes in 2 places, the first at byte 7, are damaged, and left out, with 1 snapshot that needs what is lost; 2 bytes at its end are no whole part: what a crash left, or a recorder is writing": {TornBytes: 2, Lost: Damage{Places: 2, Bytes: 60, First: 7, Snapshots: 1}},
	} {
		if got := d.Text(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

// counting counts what is read of files.
type counting struct {
	fstest.MapFS
	bytes *int64
}

type countingFile struct {
	fs.File
	bytes *int64
}

func (c counting) Open(name string) (fs.File, error) {
	f, err := c.MapFS.Open(name)
	return countingFile{f, c.bytes}, err
}

func (f countingFile) Read(b []byte) (int, error) {
	n, err := f.File.Read(b)
	*f.bytes += int64(n)
	return n, err
}

func (f countingFile) Seek(offset int64, whence int) (int64, error) {
	return f.File.(io.Seeker).Seek(offset, whence)
}

// TestHostile: a file of what seems to begin a frame everywhere is not read again from each of its bytes.
func TestHostile(t *testing.T) {
	const size = 4 << 20
	mayBegin := func(length uint32) []byte {
		head := make([]byte, headerBytes)
		binary.LittleEndian.PutUint32(head, length)
		head[8] = byte(KindDelta)
		return head
	}
	for name, tt := range map[string]struct {
		again []byte
		whole int
	}{
		"empty": {mayBegin(0), 0}, "short": {mayBegin(1000), 0}, "half": {mayBegin(size / 2), 0},
		// A frame of a kind that a later natkit has is found by the length of the one before it alone.
		"pairs": {appendFrame(mayBegin(0), 200, 0, at(1), nil), size / (2 * headerBytes)},
	} {
		data := append([]byte(`{"schema":"natkit.ring/1"}`+"\n"), bytes.Repeat(tt.again, size/len(tt.again))...)
		read := int64(0)
		files := counting{ringOf(data), &read}
		r := open(t, files)
		if s := r.Segments[0]; len(s.Frames) != tt.whole || (s.Torn == 0) != (tt.whole > 0) {
			t.Errorf("%s: %d frames, %d torn", name, len(s.Frames), s.Torn)
		}
		if most := int64(2 * (vainTimes + 2) * len(data)); read > most {
			t.Errorf("%s: %d bytes are read of %d", name, read, len(data))
		}
		// Nothing was written since: it is not read again.
		read = 0
		if err := r.Refresh(start); err != nil || read > step {
			t.Errorf("%s: again %d bytes: %v", name, read, err)
		}
	}
}
