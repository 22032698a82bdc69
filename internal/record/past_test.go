//go:build linux

package record

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/ring"
	"github.com/natkit/natkit/internal/state"
	"github.com/natkit/natkit/internal/testutil"
)

// TestPast: the course of a recording that is under way has what was in the table, and what is added to it later; another namespace
// has none.
func TestPast(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.ShareHost(t)
	ns := testutil.Namespace(t)
	insertFlows(t, ns, 0, 500)
	o := options(t, ns)
	o.Drops = true
	stop := start(t, o)
	waitSnapshots(t, o.Dir, 3)
	past, began := NewPast(o.Dir), time.Now().Add(-time.Hour)
	own := &state.Namespace{Name: ns.Name(), Inode: ns.Inode()}
	entries := func() []state.Value {
		h, err := past.History(own, began, time.Now().Add(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		for name, values := range h.Series {
			if len(values) != len(h.Times) {
				t.Errorf("%s has %d values at %d times", name, len(values), len(h.Times))
			}
		}
		if last := len(h.Times) - 1; last > 0 && math.IsNaN(float64(h.Series[state.SeriesDrop][last])) || h.Series[state.SeriesLimit][last] <= 0 {
			t.Errorf("%+v", h.Series)
		}
		return h.Series[state.SeriesEntries]
	}
	first := entries()
	if len(first) < 2 || first[len(first)-1] != 500 {
		t.Fatalf("%v", first)
	}
	insertFlows(t, ns, 500, 800)
	testutil.Eventually(t, "the new entries", func() bool { all := entries(); return all[len(all)-1] == 800 })
	stop()
	if all := entries(); all[0] != 500 || len(all) < len(first) {
		t.Errorf("what was read before is not there: %v", all)
	}
	if _, err := past.History(&state.Namespace{Name: "other", Inode: 1}, began, time.Now()); err == nil || !strings.Contains(err.Error(), "another network namespace") {
		t.Errorf("of another namespace: %v", err)
	}
	if _, err := past.History(own, began, began.Add(time.Minute)); err == nil || !strings.Contains(err.Error(), "has nothing from") {
		t.Errorf("of a time before: %v", err)
	}
}

// recordedPast is a directory with three points of a namespace, a minute apart.
func recordedPast(t *testing.T) (dir string, at time.Time) {
	t.Helper()
	dir, at = t.TempDir(), time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	w, err := ring.NewWriter(store{dir}, ring.Options{Most: ring.LeastBytes, Header: ring.Header{Run: "one"}})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		p := ring.Point{NetnsInode: 7, Values: map[string]float64{state.SeriesEntries: float64(i)}}
		err = errors.Join(err, w.Point(ring.Stamp{Wall: at.Add(time.Duration(i) * time.Minute)}, p))
	}
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return dir, at
}

// TestPastOf: of a recording that is torn, of a later form, or not there, what there is, and one line that says why there is none.
func TestPastOf(t *testing.T) {
	own := &state.Namespace{Inode: 7}
	for name, tt := range map[string]struct {
		change func(t *testing.T, dir, segment string, data []byte)
		points int
		err    string
	}{
		"whole": {func(*testing.T, string, string, []byte) {}, 3, ""},
		"torn": {func(t *testing.T, _, segment string, data []byte) {
			put(t, segment, data[:len(data)-5])
		}, 2, "00000001.natring: 72 bytes at its end are no whole part"},
		"60 %": {func(t *testing.T, _, segment string, data []byte) {
			put(t, segment, data[:len(data)*6/10])
		}, 1, "at its end are no whole part: what a crash left"},
		"damaged within": {func(t *testing.T, _, segment string, data []byte) {
			data[len(data)-100] ^= 1 // of the second of three
			put(t, segment, data)
		}, 2, "is damaged: 00000001.natring: "},
		"damaged": {func(t *testing.T, _, segment string, data []byte) {
			data[len(data)-5] ^= 1
			put(t, segment, data)
		}, 2, "are damaged, and left out"},
		"beside a file that is none": {func(t *testing.T, dir, _ string, _ []byte) {
			put(t, filepath.Join(dir, "00000002.natring"), []byte("nothing"))
		}, 3, "is damaged: 00000002.natring: not read: it does not begin with the line of a segment"},
		"later": {func(t *testing.T, _, segment string, data []byte) {
			put(t, segment, []byte(strings.Replace(string(data), ring.Schema, "natkit.ring/9", 1)))
		}, 0, "natkit.ring/9"},
		"empty": {func(t *testing.T, _, segment string, _ []byte) { put(t, segment, nil) }, 0, "no whole snapshot"},
		"a pipe": {func(t *testing.T, _, segment string, _ []byte) {
			if err := errors.Join(os.Remove(segment), syscall.Mkfifo(segment, 0o600)); err != nil {
				t.Fatal(err)
			}
		}, 0, "00000001.natring: not read: it is not a regular file, and was not opened"},
		"none": {func(t *testing.T, _, segment string, _ []byte) {
			if err := os.Remove(segment); err != nil {
				t.Fatal(err)
			}
		}, 0, "no recording in "},
		"no directory": {func(t *testing.T, dir, _ string, _ []byte) {
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
		}, 0, "no recording in "},
	} {
		t.Run(name, func(t *testing.T) {
			dir, at := recordedPast(t)
			segment := filepath.Join(dir, "00000001.natring")
			data, err := os.ReadFile(segment)
			if err != nil {
				t.Fatal(err)
			}
			tt.change(t, dir, segment, data)
			h, err := NewPast(dir).History(own, at, at.Add(time.Hour))
			if len(h.Times) != tt.points || (err != nil) != (tt.err != "") || err != nil && (!strings.Contains(err.Error(), tt.err) || strings.Contains(err.Error(), "\n")) {
				t.Fatalf("%d points, %v", len(h.Times), err)
			}
			if tt.points > 0 && (h.Series[state.SeriesEntries][0] != 0 || !math.IsNaN(float64(h.Series[state.SeriesNew][0]))) {
				t.Errorf("%+v", h)
			}
		})
	}
}

func put(t *testing.T, name string, data []byte) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o700), os.WriteFile(name, data, 0o600)); err != nil {
		t.Fatal(err)
	}
}

// TestPastWritten: an end that is no whole part is no damage while a recorder may be writing it.
func TestPastWritten(t *testing.T) {
	dir, at := recordedPast(t)
	segment := filepath.Join(dir, "00000001.natring")
	data, err := os.ReadFile(segment)
	if err != nil {
		t.Fatal(err)
	}
	put(t, segment, data[:len(data)-5])
	own := &state.Namespace{Inode: 7}
	for to, damaged := range map[time.Duration]bool{2 * time.Minute: false, time.Hour: true} {
		if h, err := NewPast(dir).History(own, at, at.Add(to)); len(h.Times) != 2 || (err != nil) != damaged {
			t.Errorf("%v later: %d points, %v", to, len(h.Times), err)
		}
	}
}

// TestPastAgain: a directory that is emptied and recorded into anew has the new recording alone, also where a segment has the same name.
func TestPastAgain(t *testing.T) {
	dir, at := recordedPast(t)
	past, own := NewPast(dir), &state.Namespace{Inode: 7}
	if h, err := past.History(own, at, at.Add(time.Hour)); err != nil || len(h.Times) != 3 {
		t.Fatalf("%d points, %v", len(h.Times), err)
	}
	if err := os.Remove(filepath.Join(dir, "00000001.natring")); err != nil {
		t.Fatal(err)
	}
	w, err := ring.NewWriter(store{dir}, ring.Options{Most: ring.LeastBytes, Header: ring.Header{Run: "two"}})
	if err != nil {
		t.Fatal(err)
	}
	p := ring.Point{NetnsInode: 7, Values: map[string]float64{state.SeriesEntries: 42}}
	if err := errors.Join(w.Point(ring.Stamp{Wall: at}, p), w.Close()); err != nil {
		t.Fatal(err)
	}
	if h, err := past.History(own, at, at.Add(time.Hour)); err != nil || len(h.Times) != 1 || h.Series[state.SeriesEntries][0] != 42 {
		t.Errorf("%+v, %v", h, err)
	}
}

// TestLostBetween: what is damaged counts for the times that it may be of, and for no others.
func TestLostBetween(t *testing.T) {
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	at := func(minutes int) time.Time { return start.Add(time.Duration(minutes) * time.Minute) }
	segment := func(name string, minutes ...int) *ring.Segment {
		s := &ring.Segment{Name: name}
		for _, m := range minutes {
			s.Frames = append(s.Frames, ring.Frame{Stamp: ring.Stamp{Wall: at(m)}})
		}
		return s
	}
	inside := segment("inside", 20, 30)
	inside.Lost = ring.Damage{Places: 1, Bytes: 9, First: 7}
	torn, unread, end := segment("torn", 40, 50), segment("unread"), segment("end", 80, 90)
	torn.Torn, end.Torn, unread.Err = 3, 1, errors.New("why")
	segments := []*ring.Segment{segment("whole", 0, 10), inside, torn, unread, end}
	for name, tt := range map[string]struct {
		from, to, now int
		want          string
	}{
		"before":                            {0, 5, 200, ""},
		"behind the last of the one before": {11, 12, 200, "inside: 9 bytes at byte 7 are damaged, and left out"},
		"inside":                            {25, 26, 200, "inside: 9 bytes at byte 7 are damaged, and left out"},
		"before what is torn":               {41, 45, 200, ""},
		"at what is torn":                   {45, 50, 200, "torn: 3 bytes at its end are no whole part: what a crash left, or a recorder is writing, and in 1 other segment"},
		"where nothing is read":             {60, 70, 200, "torn: 3 bytes at its end are no whole part: what a crash left, or a recorder is writing, and in 1 other segment"},
		"in the last":                       {81, 85, 200, ""},
		"at its end":                        {85, 90, 200, "end: 1 byte at its end is no whole part: what a crash left, or a recorder is writing"},
		"at its end while it is written":    {85, 90, 91, ""},
		"all":                               {0, 90, 200, "inside: 9 bytes at byte 7 are damaged, and left out, and in 3 other segments"},
	} {
		if got := lostBetween(segments, at(tt.from), at(tt.to), at(tt.now)); got != tt.want {
			t.Errorf("%s: got  %s\nwant %s", name, got, tt.want)
		}
	}
}
