package ring

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/natkit/natkit/internal/snapshot"
)

// memory is a directory in memory that has room for so many bytes, without a bound where that is 0.
type memory struct {
	files map[string]*memoryFile
	room  int64
	// broken has Truncate fail.
	broken bool
	most   int64
}

func newMemory() *memory { return &memory{files: map[string]*memoryFile{}} }

func (m *memory) used() (n int64) {
	for _, f := range m.files {
		n += blocks(int64(f.Len()))
	}
	return n
}

func (m *memory) Sizes() (map[string]int64, error) {
	sizes := map[string]int64{}
	for name, f := range m.files {
		sizes[name] = int64(f.Len())
	}
	return sizes, nil
}

func (m *memory) Create(name string) (File, error) {
	if m.files[name] != nil {
		return nil, fs.ErrExist
	}
	f := &memoryFile{of: m}
	m.files[name] = f
	return f, nil
}

func (m *memory) Remove(name string) error {
	delete(m.files, name)
	return nil
}

func (m *memory) fs() fstest.MapFS {
	all := fstest.MapFS{}
	for name, f := range m.files {
		all[name] = &fstest.MapFile{Data: f.Bytes()}
	}
	return all
}

type memoryFile struct {
	bytes.Buffer
	of *memory
}

var errFull = errors.New("no space left on device")

func (f *memoryFile) Write(b []byte) (int, error) {
	n := len(b)
	if room := f.of.room; room > 0 {
		others := f.of.used() - blocks(int64(f.Len()))
		n = int(min(int64(n), max(0, room-others-int64(f.Len()))))
	}
	f.Buffer.Write(b[:n])
	f.of.most = max(f.of.most, f.of.used())
	if n < len(b) {
		return n, errFull
	}
	return n, nil
}

func (f *memoryFile) Truncate(size int64) error {
	if f.of.broken {
		return errors.New("the device is gone")
	}
	f.Buffer.Truncate(int(size))
	return nil
}
func (f *memoryFile) Sync() error  { return nil }
func (f *memoryFile) Close() error { return nil }

var start = time.Date(2026, 3, 1, 10, 0, 0, 0, time.UTC)

const every = 5 * time.Second

func at(n int) Stamp {
	return Stamp{start.Add(time.Duration(n) * every), time.Hour + time.Duration(n)*every}
}

// members are those of a snapshot: some never change, some always do.
func members(n int) []snapshot.BundleMember {
	return []snapshot.BundleMember{
		{Name: "files/proc/meminfo", Data: []byte("MemTotal: 1 kB\n")},
		{Name: "files/proc/net/snmp", Data: fmt.Appendf(nil, "Tcp: InSegs %d\n", 1000+n)},
		{Name: "empty"},
		{Name: fmt.Sprintf("only/%d", n), Data: []byte{byte(n)}},
		{Name: "table/000000", Data: bytes.Repeat([]byte{1, 2, 3, byte(n)}, 200)},
	}
}

func write(t testing.TB, store Store, most int64, run string, from, to int) *Writer {
	t.Helper()
	w, err := NewWriter(store, Options{Most: most, Header: Header{WrittenBy: "1.2", Run: run, EverySeconds: every.Seconds()}})
	if err != nil {
		t.Fatal(err)
	}
	for n := from; n < to; n++ {
		if err := w.Snapshot(at(n), members(n)); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

func open(t testing.TB, fsys fs.FS) *Ring {
	t.Helper()
	r, err := Open(fsys)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func numbers(r *Ring) (all []int) {
	for _, f := range r.Snapshots() {
		all = append(all, int(f.Wall.Sub(start)/every))
	}
	return all
}

func sequence(from, to int) (all []int) {
	for n := from; n < to; n++ {
		all = append(all, n)
	}
	return all
}

func wantMembers(t testing.TB, r *Ring) {
	t.Helper()
	for _, f := range r.Snapshots() {
		got, err := r.Members(f)
		if err != nil {
			t.Fatal(err)
		}
		want := members(int(f.Wall.Sub(start) / every))
		for i := range got {
			got[i].Data = append([]byte(nil), got[i].Data...)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("snapshot of %s: %s", f.Wall, diff)
		}
	}
}

// TestRing: all that is written is read, over several key snapshots, runs and kinds of frames.
func TestRing(t *testing.T) {
	store := newMemory()
	first := write(t, store, LeastBytes, "one", 0, 30)
	mark := Event{Event: EventMark, Text: "users call"}
	if err := first.Event(at(30), mark); err != nil {
		t.Fatal(err)
	}
	packets := &Packets{Sample: 4, SampleICMP: 2, NotKept: 7, Lost: 1, List: []Packet{{At: start, Interface: "eth0", Sent: true, Length: 60, Data: []byte{0x45, 1}}}}
	if err := first.Packets(at(30), packets); err != nil {
		t.Fatal(err)
	}
	if err := first.Drops(at(30), &snapshot.Drops{Packets: 3}); err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	write(t, store, LeastBytes, "two", 100, 102) // not closed: killed
	r := open(t, store.fs())
	if diff := cmp.Diff(append(sequence(0, 30), 100, 101), numbers(r)); diff != "" {
		t.Fatal(diff)
	}
	wantMembers(t, r)
	c := r.Contents()
	want := &Contents{Schema: ContentsSchema, WrittenBy: "1.2", EverySeconds: 5, From: at(0).Wall, To: at(101).Wall, Snapshots: 32, Bytes: c.Bytes, Segments: 2,
		Events: []RecordedEvent{{at(30).Wall, mark}}, Gaps: []Gap{{at(29).Wall, at(100).Wall, GapRestarted}}, Damaged: []DamagedSegment{},
		Packets: PacketContents{Kept: 1, NotKept: 7, Lost: 1, Sampled: 4, SampledICMP: 2}, Dropped: 3, DropsKnown: true}
	if diff := cmp.Diff(want, c); diff != "" {
		t.Error(diff)
	}
	for f := range r.All() {
		if f.Kind == KindPackets {
			if got, err := r.Packets(f); err != nil || !cmp.Equal(packets, got) {
				t.Errorf("%v: %s", err, cmp.Diff(packets, got))
			}
		}
	}
}

// TestTorn: a segment cut at any byte has all frames that are whole, and no other; what follows in the next segment is
// there.
func TestTorn(t *testing.T) {
	store := newMemory()
	write(t, store, LeastBytes, "one", 0, 4)
	whole := open(t, store.fs())
	data := slices.Clone(store.files[segmentName(1)].Bytes())
	write(t, store, LeastBytes, "two", 9, 10)
	for size := range len(data) {
		store.files[segmentName(1)].Reset()
		store.files[segmentName(1)].Buffer.Write(data[:size])
		r := open(t, store.fs())
		var want []int
		end := int64(bytes.IndexByte(data, '\n') + 1)
		for i, f := range whole.Segments[0].Frames {
			if end += f.Bytes; end <= int64(size) {
				want = append(want, i)
			}
		}
		if diff := cmp.Diff(append(want, 9), numbers(r)); diff != "" {
			t.Fatalf("cut at %d of %d bytes: %s", size, len(data), diff)
		}
		if size%16 == 0 {
			wantMembers(t, r)
		}
		if s := r.Segments[0]; s.Err == nil && s.Torn == 0 && len(want) > 0 && int64(size) != s.Frames[len(s.Frames)-1].offset+s.Frames[len(s.Frames)-1].Bytes {
			t.Fatalf("cut at %d of %d bytes: not reported", size, len(data))
		}
	}
}

// noise is members that no compression makes smaller.
func noise(bytes int, seed uint64) []snapshot.BundleMember {
	source := rand.New(rand.NewPCG(seed, 1))
	data := make([]byte, bytes)
	for i := range data {
		data[i] = byte(source.Uint32())
	}
	return []snapshot.BundleMember{{Name: "noise", Data: data}}
}

// TestBound: a ring never takes more than its bound, whatever is written, keeps most of what the bound allows, and what is
// left is the newest.
func TestBound(t *testing.T) {
	store := newMemory()
	w, err := NewWriter(store, Options{Most: LeastBytes, Header: Header{Run: "one", EverySeconds: 5}})
	if err != nil {
		t.Fatal(err)
	}
	const snapshots = 200
	source := rand.New(rand.NewPCG(1, 2))
	for n := range snapshots {
		if err := w.Snapshot(at(n), noise(source.IntN(400_000), uint64(n))); err != nil {
			t.Fatal(err)
		}
		if err := w.Event(at(n), Event{Event: EventMark, Text: strings.Repeat("m", source.IntN(1000))}); err != nil {
			t.Fatal(err)
		}
	}
	if store.most > LeastBytes || store.most < LeastBytes*3/4 {
		t.Errorf("%d bytes of %d at most", store.most, LeastBytes)
	}
	if w.Used() != store.used() {
		t.Errorf("the writer counts %d bytes, there are %d", w.Used(), store.used())
	}
	got := numbers(open(t, store.fs()))
	if diff := cmp.Diff(sequence(snapshots-len(got), snapshots), got); diff != "" {
		t.Error(diff)
	}
	// What is too large is refused, and the next one is there.
	if err := w.Snapshot(at(snapshots), noise(LeastBytes/2, 9)); err == nil || !strings.Contains(err.Error(), "at most 2097152") {
		t.Errorf("too large: %v", err)
	}
	if err := w.Snapshot(at(snapshots+1), members(snapshots+1)); err != nil {
		t.Fatal(err)
	}
	// Another writer with a smaller bound, as after a change of --ring, removes what is too much.
	bigger := newMemory()
	write(t, bigger, 4*LeastBytes, "one", 0, 1)
	for n := range 60 {
		bigger.files[segmentName(uint64(10+n))] = &memoryFile{of: bigger, Buffer: *bytes.NewBuffer(make([]byte, 1<<20))}
	}
	if _, err := NewWriter(bigger, Options{Most: LeastBytes}); err != nil || bigger.used() > LeastBytes {
		t.Errorf("%d bytes: %v", bigger.used(), err)
	}
}

// TestFull: on a full disk the ring makes room of its own down to half of its bound, then waits, counts what is missing,
// and goes on when there is room again.
func TestFull(t *testing.T) {
	for _, broken := range []bool{false, true} {
		store := newMemory()
		store.room, store.broken = LeastBytes*3/4, broken
		w, err := NewWriter(store, Options{Most: LeastBytes, Header: Header{Run: "one", EverySeconds: 5}})
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for ; n < 60; n++ {
			if err := w.Snapshot(at(n), noise(300_000, uint64(n))); err != nil && !broken {
				t.Fatalf("snapshot %d: %v", n, err)
			}
		}
		if store.most > store.room || store.used() < LeastBytes/2-1<<20 {
			t.Errorf("it takes %d of %d bytes", store.used(), store.room)
		}
		store.room = store.used() // another program took the rest, and more
		for range 20 {
			before := store.used()
			_ = w.Snapshot(at(n), noise(300_000, uint64(n)))
			n++
			store.room -= max(0, before-store.used())
		}
		if err := w.Snapshot(at(n), noise(300_000, uint64(n))); !errors.Is(err, errFull) {
			t.Errorf("on a full disk: %v", err)
		}
		if store.used() < LeastBytes/2-1<<20 {
			t.Errorf("only %d bytes are left of the ring", store.used())
		}
		store.room, store.broken = 0, false
		n++
		if err := w.Snapshot(at(n), members(n)); err != nil {
			t.Fatal(err)
		}
		r := open(t, store.fs())
		wantNewest(t, r, n)
		c := r.Contents()
		last := c.Events[len(c.Events)-1]
		if last.Event.Event != EventLost || last.Snapshots == 0 || !strings.Contains(last.Why, errFull.Error()) {
			t.Errorf("what is missing: %+v", last)
		}
	}
}

func wantNewest(t *testing.T, r *Ring, n int) {
	t.Helper()
	all := r.Snapshots()
	got, err := r.Members(all[len(all)-1])
	if err != nil {
		t.Fatal(err)
	}
	if i := slices.IndexFunc(got, func(m snapshot.BundleMember) bool { return m.Name == fmt.Sprintf("only/%d", n) }); i < 0 {
		t.Errorf("the newest snapshot is not number %d", n)
	}
}

// TestClock: a clock that is set back or ahead is a gap, and a time that came twice is the later one.
func TestClock(t *testing.T) {
	store := newMemory()
	w := write(t, store, LeastBytes, "one", 0, 100)
	uptime := at(99).Uptime
	back := func(n int) Stamp { return Stamp{at(50 + n).Wall, uptime + time.Duration(n+1)*every} }
	for n := range 30 {
		if err := w.Snapshot(back(n), members(1000+n)); err != nil {
			t.Fatal(err)
		}
	}
	r := open(t, store.fs())
	c := r.Contents()
	if diff := cmp.Diff([]Gap{{at(99).Wall, at(50).Wall, GapClockBack}}, c.Gaps); diff != "" {
		t.Error(diff)
	}
	for _, tt := range []struct {
		at    time.Time
		first string // the member that the first of the pair has alone
	}{
		{at(10).Wall, "only/9"}, {at(60).Wall, "only/1009"}, {at(60).Wall.Add(2 * time.Second), "only/1010"}, {at(90).Wall, "only/89"},
	} {
		before, after, err := r.Pair(tt.at)
		if err != nil {
			t.Fatal(err)
		}
		got, err := r.Members(before)
		if err != nil {
			t.Fatal(err)
		}
		if got[3].Name != tt.first || after.Uptime-before.Uptime != every {
			t.Errorf("at %s: %s", tt.at, got[3].Name)
		}
	}
}

// TestPair: a time that is in no recording is refused with what there is.
func TestPair(t *testing.T) {
	store := newMemory()
	write(t, store, LeastBytes, "one", 0, 10)
	write(t, store, LeastBytes, "two", 100, 110)
	r := open(t, store.fs())
	for _, tt := range []struct {
		at   time.Time
		want string
	}{
		{start.Add(-time.Hour), "nothing was recorded at 2026-03-01T09:00:00Z: the first snapshot is of 2026-03-01T10:00:00Z"},
		{start.Add(4 * time.Minute), "nothing was recorded at 2026-03-01T10:04:00Z: the nearest snapshots are of 2026-03-01T10:00:45Z and 2026-03-01T10:08:20Z"},
		{start.Add(time.Hour), "nothing was recorded at 2026-03-01T11:00:00Z: the last snapshot is of 2026-03-01T10:09:05Z"},
	} {
		if _, _, err := r.Pair(tt.at); err == nil || err.Error() != tt.want {
			t.Errorf("at %s: %v", tt.at, err)
		}
	}
	// The first snapshot of a run has none before it.
	if before, after, err := r.Pair(at(100).Wall); err != nil || before.Wall != at(100).Wall || after.Wall != at(101).Wall {
		t.Errorf("at the start: %v, %v: %v", before, after, err)
	}
}

// TestNewer: a ring of a newer natkit is refused in one line.
func TestNewer(t *testing.T) {
	ringOf := func(line string) fs.FS { return fstest.MapFS{segmentName(3): {Data: []byte(line)}} }
	for line, want := range map[string]string{
		`{"schema":"natkit.ring/2","written_by":"9.1"}` + "\nwhatever": `its form is "natkit.ring/2", and this natkit reads natkit.ring/1: use natkit "9.1" or later`,
		`{"schema":"natkit.ring/2"}` + "\n":                            `its form is "natkit.ring/2", and this natkit reads natkit.ring/1: use the natkit that wrote it`,
	} {
		if _, err := Open(ringOf(line)); err == nil || err.Error() != want {
			t.Errorf("%s: %v", line, err)
		}
	}
	r := open(t, ringOf("something else\n"))
	if r.Segments[0].Err == nil {
		t.Error("a segment that is none is read")
	}
	if _, err := Open(fstest.MapFS{"notes.txt": {}}); !errors.Is(err, ErrNone) {
		t.Errorf("no ring: %v", err)
	}
}

// TestCopy: a part of a ring is a ring.
func TestCopy(t *testing.T) {
	store := newMemory()
	w := write(t, store, LeastBytes, "one", 0, 40)
	if err := w.Event(at(25), Event{Event: EventTrigger, ID: "ct-table-full"}); err != nil {
		t.Fatal(err)
	}
	r := open(t, store.fs())
	for from := range 39 {
		var b bytes.Buffer
		n, err := r.Copy(&b, at(from).Wall, at(from+1).Wall)
		if err != nil {
			t.Fatal(err)
		}
		part := open(t, fstest.MapFS{segmentName(1): {Data: b.Bytes()}})
		got := numbers(part)
		if len(got) != n || len(got) < 2 || got[len(got)-1] != from+1 || got[len(got)-2] != from {
			t.Errorf("from %d: %d snapshots, %v", from, n, got)
		}
		wantMembers(t, part)
	}
}

func FuzzOpen(f *testing.F) {
	store := newMemory()
	w := write(f, store, LeastBytes, "one", 0, 3)
	if err := errors.Join(w.Event(at(3), Event{Event: EventMark}), w.Packets(at(3), &Packets{List: []Packet{{At: start, Data: []byte{0x45}}}}), w.Drops(at(3), &snapshot.Drops{}), w.Dropped(at(3), droppedPackets())); err != nil {
		f.Fatal(err)
	}
	data := store.files[segmentName(1)].Bytes()
	f.Add(data)
	f.Add(data[:len(data)-3])
	damaged := slices.Clone(data)
	damaged[len(data)/2] ^= 1
	f.Add(damaged)
	f.Add([]byte(`{"schema":"natkit.ring/1"}` + "\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := Open(fstest.MapFS{segmentName(1): {Data: data}})
		if err != nil {
			return
		}
		frames := int64(0)
		for f := range r.All() {
			frames += f.Bytes
			if f.IsSnapshot() {
				if members, err := r.Members(f); err != nil && members != nil {
					t.Fatal("an error, and members")
				}
			}
		}
		if s := r.Segments[0]; s.Err == nil && frames+s.Torn+s.Lost.Bytes > int64(len(data)) {
			t.Fatalf("%d bytes of frames, %d torn and %d damaged ones in %d", frames, s.Torn, s.Lost.Bytes, len(data))
		}
		r.Contents()
		_, _, _ = r.Newest()
	})
}

// FuzzFrames has what fuzzing cannot make: the right checksums.
func FuzzFrames(f *testing.F) {
	store := newMemory()
	write(f, store, LeastBytes, "one", 0, 2)
	r := open(f, store.fs())
	for _, frame := range r.Snapshots() {
		payload, err := r.payload(frame.segment, frame.offset)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(byte(frame.Kind), payload, payload)
	}
	f.Fuzz(func(t *testing.T, kind byte, key, payload []byte) {
		data := []byte(`{"schema":"natkit.ring/1"}` + "\n")
		data = appendFrame(data, KindKey, 0, at(0), key)
		data = appendFrame(data, Kind(kind), 0, at(1), payload)
		r, err := Open(fstest.MapFS{segmentName(1): {Data: data}})
		if err != nil || len(r.Segments[0].Frames) != 2 {
			t.Fatalf("%v: %+v", err, r.Segments)
		}
		unread := 0
		for f := range r.All() {
			_, _ = r.Members(f)
			_, errEvent := r.Event(f)
			_, errPackets := r.Packets(f)
			_, errDrops := r.Drops(f)
			_, _ = r.Point(f)
			d, errDropped := r.Dropped(f)
			if errDropped == nil {
				d.Flows()
			}
			_, _ = r.DropsUntil(f)
			if (map[Kind]error{KindEvent: errEvent, KindPackets: errPackets, KindDrops: errDrops, KindDropped: errDropped})[f.Kind] != nil {
				unread++
			}
		}
		c := r.Contents()
		if len(c.Damaged) != min(unread, 1) || unread > 0 && c.Damaged[0].Lost.Places != unread {
			t.Fatalf("%d parts cannot be read, and damaged are %+v", unread, c.Damaged)
		}
	})
}

// TestUnpack: what an encoder writes comes back, of any size; a payload that announces more than its blocks hold is refused before
// there is room for it.
func TestUnpack(t *testing.T) {
	noise := make([]byte, 1<<20)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(noise)
	for _, dict := range [][]byte{nil, noise[:100_000]} {
		encoder, err := newEncoder(dict)
		if err != nil {
			t.Fatal(err)
		}
		u := unpacker{dict: dict}
		for _, body := range [][]byte{{}, {1}, make([]byte, 5<<20), noise, noise[:100_000], slices.Concat(noise[:300], make([]byte, 300_000))} {
			payload := encoder.EncodeAll(body, nil)
			if got, err := u.unpack(payload); err != nil || !bytes.Equal(got, body) {
				t.Errorf("%d bytes of %d: %v", len(got), len(body), err)
			}
			if got, err := u.unpack(append(payload, 0)); err == nil {
				t.Errorf("%d bytes with one more behind", len(got))
			}
		}
	}
	// Magic, a content of 50 MiB as one segment, and one raw block of 5 bytes.
	lie := []byte{0x28, 0xb5, 0x2f, 0xfd, 0xa0, 0, 0, 0x20, 0x03, 5<<3 | 1, 0, 0, 1, 2, 3, 4, 5}
	if got, err := new(unpacker).unpack(lie); !errors.Is(err, errUnpacked) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}
