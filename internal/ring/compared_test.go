package ring

import (
	"slices"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/natkit/natkit/internal/snapshot"
)

// TestCompared: the newest two snapshots in succession are described: whether they are the end, and whether they lie as far apart as
// usual.
func TestCompared(t *testing.T) {
	type result struct{ newest, far, jumped bool }
	later := func(n int, wall, uptime time.Duration) Stamp {
		return Stamp{at(n).Wall.Add(wall), at(n).Uptime + uptime}
	}
	for name, tt := range map[string]struct {
		last []Stamp
		// run is of the last ones.
		run  string
		want result
	}{
		"usual":          {[]Stamp{at(10)}, "one", result{newest: true}},
		"late":           {[]Stamp{later(10, 20*time.Second, 20*time.Second)}, "one", result{newest: true, far: true}},
		"slept":          {[]Stamp{later(10, 8*time.Hour, 0)}, "one", result{newest: true, jumped: true}},
		"set back":       {[]Stamp{later(10, -8*time.Hour, 0)}, "one", result{newest: true, jumped: true}},
		"a gap":          {[]Stamp{later(10, time.Hour, time.Hour)}, "one", result{}},
		"slept in a gap": {[]Stamp{later(10, 8*time.Hour, time.Hour)}, "one", result{}},
		"restarted":      {[]Stamp{later(10, time.Hour, time.Hour)}, "two", result{}},
		"back, a gap":    {[]Stamp{later(10, -time.Hour, time.Hour)}, "two", result{}},
		"two again":      {[]Stamp{later(10, time.Hour, time.Hour), later(11, time.Hour, time.Hour)}, "two", result{newest: true}},
	} {
		store := newMemory()
		w := write(t, store, LeastBytes, "one", 0, 10)
		if tt.run != "one" {
			w = write(t, store, LeastBytes, tt.run, 0, 0)
		}
		for i, stamp := range tt.last {
			if err := w.Snapshot(stamp, members(10+i)); err != nil {
				t.Fatal(err)
			}
		}
		r := open(t, store.fs())
		before, after, err := r.Newest()
		if err != nil {
			t.Fatal(err)
		}
		c := r.Compared(before, after)
		want := &snapshot.Compared{From: before.Wall, To: after.Wall, RecordingTo: tt.last[len(tt.last)-1].Wall, FarApart: tt.want.far, ClockJumped: tt.want.jumped,
			UptimeSeconds: (after.Uptime - before.Uptime).Seconds(), UsualSeconds: every.Seconds()}
		if diff := cmp.Diff(want, c); diff != "" || r.IsLast(after) != tt.want.newest {
			t.Errorf("%s: newest %v: %s", name, r.IsLast(after), diff)
		}
	}
}

// TestLastLeftOut: a snapshot that is left out, as the one that it needs is lost, is the end of the recording still.
func TestLastLeftOut(t *testing.T) {
	store := newMemory()
	write(t, store, LeastBytes, "one", 0, 10)
	write(t, store, LeastBytes, "two", 20, 25)
	second := slices.Clone(store.files[segmentName(2)].Bytes())
	second[open(t, store.fs()).Segments[1].Frames[0].offset+headerBytes]++
	r := open(t, fstest.MapFS{segmentName(1): {Data: store.files[segmentName(1)].Bytes()}, segmentName(2): {Data: second}})
	_, after, err := r.Newest()
	if err != nil || !after.Wall.Equal(at(9).Wall) || r.IsLast(after) || !r.Last().Equal(at(24).Wall) {
		t.Errorf("%v: last %s", err, r.Last())
	}
}
