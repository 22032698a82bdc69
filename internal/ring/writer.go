package ring

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/natkit/natkit/internal/snapshot"
)

// Store is the directory that a Writer writes to.
type Store interface {
	// Sizes returns the files by their names.
	Sizes() (map[string]int64, error)
	// Create makes a new file.
	Create(name string) (File, error)
	Remove(name string) error
}

// File is a segment that is written to.
type File interface {
	io.WriteCloser
	// Truncate cuts the file to a size, at which the next Write goes on.
	Truncate(size int64) error
	// Sync returns when what was written survives a loss of power.
	Sync() error
}

const (
	// blockBytes is what sizes are rounded up to: what a file takes on the disk.
	blockBytes = 4096
	// LeastBytes is the smallest ring.
	LeastBytes = 8 << 20
	// segments is how many there are in a ring that is full, about: the share that goes at a time.
	segments = 16
	// deltas follow a key snapshot at most.
	deltas = 11
)

// Options specify a ring.
type Options struct {
	// Most is what all segments together take on the disk at most, in bytes.
	Most int64
	// Header is the first line of segments; Schema is set.
	Header Header
}

// Writer appends frames to a ring. It is for one goroutine.
type Writer struct {
	o     Options
	store Store
	// closed are the segments before the one that is written to, the oldest first.
	closed []segmentSize
	// next is the number of the next segment.
	next uint64
	file File
	size int64
	// key is the last key snapshot of this segment, and since is how many snapshots followed it; nil before the first.
	key   map[string][]byte
	since int
	plain *zstd.Encoder
	delta *zstd.Encoder
	// lost are the snapshots that could not be written since the last that could, why is the reason.
	lost uint64
	why  string
	buf  []byte
	body []byte
}

type segmentSize struct {
	name string
	size int64
}

// NewWriter returns a writer that begins a new segment behind those that are there.
func NewWriter(store Store, o Options) (*Writer, error) {
	if o.Most < LeastBytes {
		return nil, fmt.Errorf("a ring of %d bytes: it takes %d at least", o.Most, LeastBytes)
	}
	sizes, err := store.Sizes()
	if err != nil {
		return nil, err
	}
	w := &Writer{o: o, store: store, next: 1}
	w.o.Header.Schema = Schema
	for name, size := range sizes {
		if n, is := segmentNumber(name); is {
			w.closed = append(w.closed, segmentSize{name, size})
			w.next = max(w.next, n+1)
		}
	}
	slices.SortFunc(w.closed, func(a, b segmentSize) int { return inOrder(a.name, b.name) })
	if w.plain, err = newEncoder(nil); err != nil {
		return nil, err
	}
	return w, w.makeRoom(0)
}

// Used is what the ring takes on the disk.
func (w *Writer) Used() int64 {
	used := blocks(w.size)
	for _, s := range w.closed {
		used += blocks(s.size)
	}
	return used
}

func blocks(size int64) int64 { return (size + blockBytes - 1) / blockBytes * blockBytes }

// Snapshot appends a snapshot. An error means that it is not in the ring; the next one may be. How many are missing,
// and why, is an event of the ring as soon as one can be written again.
func (w *Writer) Snapshot(at Stamp, members []snapshot.BundleMember) error {
	err := w.snapshot(at, members)
	if err != nil {
		w.lost++
		w.why = err.Error()
		return fmt.Errorf("record the snapshot: %w", err)
	}
	if w.lost > 0 {
		lost := Event{Event: EventLost, Snapshots: w.lost, Why: w.why}
		w.lost = 0
		return w.Event(at, lost)
	}
	return nil
}

func (w *Writer) snapshot(at Stamp, members []snapshot.BundleMember) error {
	if w.file == nil || w.size >= w.o.Most/segments {
		if err := w.rotate(at); err != nil {
			return err
		}
	}
	flags := byte(0)
	if slices.ContainsFunc(members, func(m snapshot.BundleMember) bool { return m.Name == traceMember }) {
		flags = flagTraced
	}
	if w.key != nil && w.since < deltas {
		w.since++
		w.body = appendMembers(w.body[:0], members, w.key)
		return w.write(KindDelta, flags, at, w.delta.EncodeAll(w.body, nil))
	}
	return w.keySnapshot(at, flags, members)
}

func (w *Writer) keySnapshot(at Stamp, flags byte, members []snapshot.BundleMember) error {
	w.key = nil
	body := appendMembers(nil, members, nil)
	if len(body) > mostBody {
		return fmt.Errorf("it has %d bytes, at most %d fit", len(body), mostBody)
	}
	if err := w.write(KindKey, flags, at, w.plain.EncodeAll(body, nil)); err != nil {
		return err
	}
	parsed, err := parseMembers(body, nil)
	if err != nil {
		return err
	}
	if w.delta != nil {
		w.delta.Close()
	}
	if w.delta, err = newEncoder(body); err != nil {
		return err
	}
	w.key, w.since = byName(parsed), 0
	return w.file.Sync()
}

// Event appends an event, and returns when it survives a loss of power.
func (w *Writer) Event(at Stamp, e Event) error {
	return w.document(at, KindEvent, e, true)
}

// Point appends the numbers of the snapshot before.
func (w *Writer) Point(at Stamp, p Point) error { return w.document(at, KindPoint, p, false) }

// Drops appends what was dropped since the snapshot before.
func (w *Writer) Drops(at Stamp, d *snapshot.Drops) error { return w.document(at, KindDrops, d, false) }

func (w *Writer) document(at Stamp, kind Kind, v any, sync bool) error {
	data, err := json.Marshal(v)
	if err == nil {
		err = w.append(at, kind, w.plain.EncodeAll(data, nil))
	}
	if err == nil && sync {
		err = w.file.Sync()
	}
	if err != nil {
		return fmt.Errorf("record the event: %w", err)
	}
	return nil
}

// Packets appends headers of packets.
func (w *Writer) Packets(at Stamp, p *Packets) error {
	if err := w.append(at, KindPackets, w.plain.EncodeAll(p.encode(nil), nil)); err != nil {
		return fmt.Errorf("record headers of packets: %w", err)
	}
	return nil
}

// Dropped appends headers of packets that the kernel dropped.
func (w *Writer) Dropped(at Stamp, d *Dropped) error {
	if err := w.append(at, KindDropped, w.plain.EncodeAll(d.encode(nil), nil)); err != nil {
		return fmt.Errorf("record headers of dropped packets: %w", err)
	}
	return nil
}

// append writes what needs no key snapshot.
func (w *Writer) append(at Stamp, kind Kind, payload []byte) error {
	if w.file == nil {
		if err := w.rotate(at); err != nil {
			return err
		}
	}
	return w.write(kind, 0, at, payload)
}

// write appends a frame, whole or not at all. Where the disk is full it gives up older segments, down to half of the ring:
// what another program fills the disk with is not to cost all that was recorded.
func (w *Writer) write(kind Kind, flags byte, at Stamp, payload []byte) error {
	w.buf = appendFrame(w.buf[:0], kind, flags, at, payload)
	if most := min(w.o.Most/4, mostPayload); int64(len(w.buf)) > most {
		return fmt.Errorf("it has %d bytes, and at most %d of a ring of this size", len(w.buf), most)
	}
	if err := w.makeRoom(int64(len(w.buf))); err != nil {
		return err
	}
	for {
		err := w.put(w.buf)
		if err == nil || len(w.closed) == 0 || w.Used() <= w.o.Most/2 {
			return err
		}
		if errRemove := w.removeOldest(); errRemove != nil {
			return errors.Join(err, errRemove)
		}
		if w.file == nil {
			return err
		}
	}
}

// put leaves nothing of what it could not write whole.
func (w *Writer) put(data []byte) error {
	n, err := w.file.Write(data)
	if err == nil && n < len(data) {
		err = io.ErrShortWrite
	}
	if err == nil {
		w.size += int64(n)
		return nil
	}
	if errCut := w.file.Truncate(w.size); errCut != nil { // a reader drops the torn tail
		w.size += int64(n)
		w.close()
	}
	return err
}

// close ends the segment.
func (w *Writer) close() {
	if w.file != nil {
		_ = w.file.Sync()
		_ = w.file.Close()
		w.closed = append(w.closed, segmentSize{segmentName(w.next - 1), w.size})
	}
	w.file, w.size, w.key = nil, 0, nil
}

// rotate begins another segment.
func (w *Writer) rotate(at Stamp) error {
	w.close()
	line, err := json.Marshal(w.o.Header)
	if err != nil {
		return err
	}
	line = append(line, '\n')
	if len(line) > mostLine {
		return fmt.Errorf("begin a segment: its first line has %d bytes, at most %d fit", len(line), mostLine)
	}
	if err := w.makeRoom(int64(len(line))); err != nil {
		return err
	}
	if w.file, err = w.store.Create(segmentName(w.next)); err != nil {
		return err
	}
	w.next++
	return w.begin(line)
}

// begin writes the first line of a segment, and leaves no segment without one.
func (w *Writer) begin(line []byte) error {
	err := w.put(line)
	for err != nil && w.file != nil && len(w.closed) > 0 && w.Used() > w.o.Most/2 {
		if errRemove := w.removeOldest(); errRemove != nil {
			return errors.Join(err, errRemove)
		}
		err = w.put(line)
	}
	if err != nil && w.file != nil {
		_ = w.file.Close()
		w.file = nil
		_ = w.store.Remove(segmentName(w.next - 1))
	}
	return err
}

// makeRoom removes the oldest segments until n more bytes are within the bound.
func (w *Writer) makeRoom(n int64) error {
	for len(w.closed) > 0 && w.Used()-blocks(w.size)+blocks(w.size+n) > w.o.Most {
		if err := w.removeOldest(); err != nil {
			return err
		}
	}
	return nil
}

func (w *Writer) removeOldest() error {
	if err := w.store.Remove(w.closed[0].name); err != nil {
		return err
	}
	w.closed = w.closed[1:]
	return nil
}

// Close ends the ring. What was written is there, also after a loss of power.
func (w *Writer) Close() error {
	if w.delta != nil {
		w.delta.Close()
	}
	w.plain.Close()
	if w.file == nil {
		return nil
	}
	return errors.Join(w.file.Sync(), w.file.Close())
}

// SyncEvery is how often what was written survives a loss of power: with each key snapshot.
func SyncEvery(every time.Duration) time.Duration { return (deltas + 1) * every }
