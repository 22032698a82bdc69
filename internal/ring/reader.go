package ring

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// Frame is one frame of a segment, without its payload.
type Frame struct {
	Kind Kind
	Stamp
	// Bytes is its size in the segment.
	Bytes int64
	// segment and offset are where it is, key is the offset of the snapshot that it needs.
	segment *Segment
	offset  int64
	key     int64
	flags   byte
}

// Traced reports whether the outcomes of services are in a snapshot.
func (f *Frame) Traced() bool { return f.flags&flagTraced != 0 }

// Segment returns the segment of the frame.
func (f *Frame) Segment() *Segment { return f.segment }

// IsSnapshot reports whether the frame is one.
func (f *Frame) IsSnapshot() bool { return f.Kind == KindKey || f.Kind == KindDelta }

// Segment is one file of a ring.
type Segment struct {
	Name string
	Header
	Bytes  int64
	Frames []Frame
	// Lost is what is lost before whole frames.
	Lost Damage
	// Torn is how many bytes at its end are no whole frame.
	Torn int64
	// Err is why nothing of it can be read.
	Err error
	// read is the offset behind the last whole frame, 0 before the first line was read; key is that of the last key snapshot.
	read, key int64
	// lostKey is whether the key snapshot of what comes next may be lost.
	lostKey bool
	// last is the time of the last whole snapshot, also where that is left out.
	last time.Time
	// broken is whether what is torn has the length of a whole frame.
	broken bool
	// state is that of the file when it was read.
	state fileState
}

// fileState is as before in a file to which nothing was written.
type fileState struct {
	size     int64
	modified time.Time
}

// Ring is a ring that is read. Files of it may be missing.
type Ring struct {
	fsys     fs.FS
	Segments []*Segment
	// Copies are files that are passed over.
	Copies []Copy
	plain  unpacker
	// unpacked is the last key snapshot that was unpacked, of that segment and offset.
	unpacked struct {
		segment *Segment
		offset  int64
		body    []byte
		members map[string][]byte
		deltas  unpacker
	}
}

// ErrNone is the error of Open where there is no segment.
var ErrNone = errors.New("no recording of 'natkit record' (*" + Suffix + ")")

// Is reports whether a directory has segments.
func Is(fsys fs.FS) bool {
	names, err := names(fsys)
	return err == nil && len(names) > 0
}

// HostOf is the host that a ring is of, by the first segment that says so; empty where none does.
func HostOf(fsys fs.FS) string {
	all, _ := names(fsys)
	for _, name := range all {
		f, _, err := openSegment(fsys, name)
		if err != nil {
			continue
		}
		s := Segment{Name: name}
		_, err = s.readHeader(bufio.NewReaderSize(f, mostLine))
		f.Close()
		if err == nil && s.Host != "" {
			return s.Host
		}
	}
	return ""
}

func names(fsys fs.FS) (all []string, err error) {
	entries, err := fs.ReadDir(fsys, ".")
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if _, is := segmentNumber(e.Name()); is {
			all = append(all, e.Name())
		}
	}
	slices.SortFunc(all, inOrder)
	return all, nil
}

// Open reads what is in a ring, and checks every frame. Damaged segments are part of the result; the error is for a
// directory without segments and for one that a newer natkit wrote.
func Open(fsys fs.FS) (*Ring, error) { return OpenSince(fsys, time.Time{}) }

// OpenSince is Open without the segments that are older.
func OpenSince(fsys fs.FS, since time.Time) (*Ring, error) {
	r := &Ring{fsys: fsys}
	if err := r.Refresh(since); err != nil {
		return nil, err
	}
	return r, nil
}

// Refresh reads what was added, and what is newer than since and was not read before. What was read is not read again.
func (r *Ring) Refresh(since time.Time) error {
	names, err := names(r.fsys)
	if err != nil {
		return err
	}
	if len(names) == 0 {
		return ErrNone
	}
	r.unpacked.segment = nil // its file may be another one now
	known := map[string]*Segment{}
	for _, s := range r.Segments {
		known[s.Name] = s
	}
	for _, c := range r.Copies {
		known[c.segment.Name] = c.segment
	}
	starts := make([]time.Time, len(names))
	for i, name := range names {
		switch s := known[name]; {
		case since.IsZero():
		case s == nil:
			starts[i] = begins(r.fsys, name)
		case len(s.Frames) > 0:
			starts[i] = s.Frames[0].Wall
		}
	}
	var all []*Segment
	for i, name := range names {
		s := known[name]
		switch {
		case s == nil && isOlder(starts, i, since):
			continue
		case s == nil:
			s = &Segment{Name: name}
		}
		err := s.scan(r.fsys)
		switch {
		case errors.Is(err, fs.ErrNotExist): // the recorder has removed it meanwhile
			continue
		case errors.As(err, new(newer)):
			return err
		}
		s.Err = err
		all = append(all, s)
	}
	r.Segments, r.Copies = passOver(all)
	return nil
}

// Unread is why no segment can be read; nil where one can.
func (r *Ring) Unread() error {
	if slices.ContainsFunc(r.Segments, func(s *Segment) bool { return s.Err == nil }) || len(r.Segments) == 0 {
		return nil
	}
	others := ""
	if n := len(r.Segments) - 1; n > 0 {
		others = ", nor can " + units.Plural(n, "other segment", "other segments")
	}
	return fmt.Errorf("%s cannot be read: %w%s", r.Segments[0].Name, r.Segments[0].Err, others)
}

// newer is the error for a form that this natkit does not read.
type newer struct{ Header }

func (n newer) Error() string {
	by := "the natkit that wrote it"
	if n.WrittenBy != "" {
		by = fmt.Sprintf("natkit %.40q or later", n.WrittenBy)
	}
	return fmt.Sprintf("its form is %.40q, and this natkit reads %s: use %s", n.Schema, Schema, by)
}

// errNotRegular is the error for what has the name of a segment and is none.
var errNotRegular = errors.New("it is not a regular file, and was not opened")

// openSegment opens a regular file. Of anything else, such as a pipe, opening or reading may wait for another program.
func openSegment(fsys fs.FS, name string) (f fs.File, now fileState, err error) {
	info, err := fs.Stat(fsys, name)
	if err != nil {
		return nil, now, err
	}
	if !info.Mode().IsRegular() {
		return nil, now, errNotRegular
	}
	if f, err = fsys.Open(name); err != nil {
		return nil, now, err
	}
	if info, err = f.Stat(); err == nil && !info.Mode().IsRegular() {
		err = errNotRegular
	}
	if err != nil {
		return nil, now, errors.Join(err, f.Close())
	}
	return f, fileState{info.Size(), info.ModTime()}, nil
}

// scan reads the segment from where it was read to.
func (s *Segment) scan(fsys fs.FS) error {
	f, now, err := openSegment(fsys, s.Name)
	if err != nil {
		return err
	}
	defer f.Close()
	in := bufio.NewReaderSize(f, 1<<16)
	before := s.Run
	at, err := s.readHeader(in)
	if err != nil {
		s.Bytes = now.size
		return err
	}
	if s.read == 0 || s.Run != before || now.size < s.read { // it may be another one of that name
		s.Frames, s.Lost, s.read, s.key, s.lostKey, s.last = nil, Damage{}, at, 0, false, time.Time{}
	} else if now == s.state {
		return nil
	}
	s.Bytes, s.state = now.size, now
	return s.readFrames(newScanner(f, in, now.size))
}

// seek moves a file that was read from to an offset.
func seek(f fs.File, offset int64) error {
	seeker, ok := f.(io.Seeker)
	if !ok {
		return fmt.Errorf("read at byte %d: the file has no offsets", offset)
	}
	_, err := seeker.Seek(offset, io.SeekStart)
	return err
}

func (s *Segment) readHeader(in *bufio.Reader) (offset int64, err error) {
	line, err := in.ReadSlice('\n')
	if err != nil || len(line) > mostLine {
		return 0, errors.New("it does not begin with the line of a segment")
	}
	s.Header = Header{}
	if err := json.Unmarshal(line, &s.Header); err != nil || !strings.HasPrefix(s.Schema, "natkit.ring/") {
		return 0, errors.New("it does not begin with the line of a segment")
	}
	if s.Schema != Schema {
		return 0, newer{s.Header}
	}
	return int64(len(line)), nil
}

// readFrames reads from where the segment was read to. What is damaged is passed over where a whole frame follows; at the end it
// is read again the next time, as a recorder may be writing it.
func (s *Segment) readFrames(in *scanner) error {
	s.broken = false
	for {
		f, head, whole := in.frame(s.read)
		if !whole && head != nil {
			offset := s.read
			if f, whole = in.next(offset, head); whole {
				s.Lost.add(offset, f.offset-offset)
				if in.mayBeKey(offset, head, f.offset) {
					s.key, s.lostKey = 0, true
				}
			} else {
				_, length, _ := parseFrame(head)
				s.broken = in.fits(offset, length)
			}
		}
		if !whole {
			break
		}
		s.add(f)
	}
	s.Torn = max(0, s.Bytes-s.read)
	return in.err
}

// add adds a whole frame.
func (s *Segment) add(f Frame) {
	f.segment = s
	if f.Kind == KindKey {
		s.key, s.lostKey = f.offset, false
	}
	f.key = s.key
	if f.IsSnapshot() {
		s.last = f.Wall
	}
	s.read = f.offset + f.Bytes
	switch {
	case f.Kind != KindDelta || s.key > 0:
		s.Frames = append(s.Frames, f)
	case s.lostKey: // without a key it is of no use
		s.Lost.Snapshots++
	}
}

// All returns the frames in the order in which they were written.
func (r *Ring) All() iter.Seq[*Frame] {
	return func(yield func(*Frame) bool) {
		for _, s := range r.Segments {
			for i := range s.Frames {
				if !yield(&s.Frames[i]) {
					return
				}
			}
		}
	}
}

// Snapshots returns those frames that are snapshots.
func (r *Ring) Snapshots() (all []*Frame) {
	for f := range r.All() {
		if f.IsSnapshot() {
			all = append(all, f)
		}
	}
	return all
}

// payload reads that of the frame at an offset.
func (r *Ring) payload(s *Segment, offset int64) ([]byte, error) {
	f, _, err := openSegment(r.fsys, s.Name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := seek(f, offset); err != nil {
		return nil, err
	}
	header := make([]byte, headerBytes)
	if _, err := io.ReadFull(f, header); err != nil {
		return nil, err
	}
	_, length, crc := parseFrame(header)
	if length > mostPayload {
		return nil, errors.New("its length is damaged")
	}
	payload := make([]byte, length)
	if _, err := io.ReadFull(f, payload); err != nil {
		return nil, err
	}
	if checksum(header, payload) != crc {
		return nil, errors.New("its checksum is wrong")
	}
	return payload, nil
}

// in explains an error.
func (f *Frame) in(err error) error {
	return fmt.Errorf("%s, at byte %d: %w", f.segment.Name, f.offset, err)
}

// Members returns those of a snapshot; they must not be changed.
func (r *Ring) Members(f *Frame) ([]snapshot.BundleMember, error) {
	if err := r.unpackKey(f); err != nil {
		return nil, f.in(err)
	}
	if f.Kind == KindKey {
		members, err := parseMembers(r.unpacked.body, nil)
		if err != nil {
			return nil, f.in(err)
		}
		return members, nil
	}
	payload, err := r.payload(f.segment, f.offset)
	if err != nil {
		return nil, f.in(err)
	}
	body, err := r.unpacked.deltas.unpack(payload)
	if err != nil {
		return nil, f.in(err)
	}
	members, err := parseMembers(body, r.unpacked.members)
	if err != nil {
		return nil, f.in(err)
	}
	return members, nil
}

func (r *Ring) unpackKey(f *Frame) error {
	u := &r.unpacked
	if u.segment == f.segment && u.offset == f.key {
		return nil
	}
	payload, err := r.payload(f.segment, f.key)
	if err != nil {
		return err
	}
	body, err := r.plain.unpack(payload)
	if err != nil {
		return err
	}
	members, err := parseMembers(body, nil)
	if err != nil {
		return err
	}
	u.segment, u.offset, u.body, u.members = f.segment, f.key, body, byName(members)
	u.deltas = unpacker{dict: body}
	return nil
}

// Event returns that of a frame.
func (r *Ring) Event(f *Frame) (e Event, err error) {
	err = r.document(f, &e)
	return e, err
}

// Point returns that of a frame.
func (r *Ring) Point(f *Frame) (p Point, err error) {
	err = r.document(f, &p)
	return p, err
}

// Drops returns those of a frame.
func (r *Ring) Drops(f *Frame) (*snapshot.Drops, error) {
	d := &snapshot.Drops{}
	if err := r.document(f, d); err != nil {
		return nil, err
	}
	return d, nil
}

// DropsUntil returns the drops between the snapshot before and this one, with the flows of those whose headers were kept; nil
// where they were not recorded.
func (r *Ring) DropsUntil(f *Frame) (drops *snapshot.Drops, err error) {
	var flows []snapshot.DropFlow
	for i := range f.segment.Frames {
		d := &f.segment.Frames[i]
		if !d.Wall.Equal(f.Wall) {
			continue
		}
		switch d.Kind {
		case KindDrops:
			drops, err = r.Drops(d)
		case KindDropped:
			var dropped *Dropped
			if dropped, err = r.Dropped(d); err == nil {
				flows = dropped.Flows()
			}
		}
		if err != nil {
			return nil, err
		}
	}
	if drops != nil {
		drops.Flows = flows
	}
	return drops, nil
}

func (r *Ring) document(f *Frame, v any) error {
	body, err := r.body(f)
	if err != nil {
		return err
	}
	if err := json.NewDecoder(bytes.NewReader(body)).Decode(v); err != nil {
		return f.in(err)
	}
	return nil
}

// Packets returns those of a frame.
func (r *Ring) Packets(f *Frame) (*Packets, error) {
	body, err := r.body(f)
	if err != nil {
		return nil, err
	}
	p, err := parsePackets(body)
	if err != nil {
		return nil, f.in(err)
	}
	return p, nil
}

// Dropped returns those of a frame.
func (r *Ring) Dropped(f *Frame) (*Dropped, error) {
	body, err := r.body(f)
	if err != nil {
		return nil, err
	}
	d, err := parseDropped(body)
	if err != nil {
		return nil, f.in(err)
	}
	return d, nil
}

func (r *Ring) body(f *Frame) ([]byte, error) {
	payload, err := r.payload(f.segment, f.offset)
	if err == nil {
		payload, err = r.plain.unpack(payload)
	}
	if err != nil {
		return nil, f.in(err)
	}
	return payload, nil
}

// Copy writes what was recorded from one time to another as a segment of its own, and returns how many snapshots it has.
// It begins with the key snapshot before. Where a clock was set back, all that has a time between both is in it.
func (r *Ring) Copy(w io.Writer, from, to time.Time) (snapshots int, err error) {
	var last *Segment
	var line []byte
	copied := int64(0) // the offset of the key that was copied last
	for f := range r.All() {
		if f.Wall.Before(from) || f.Wall.After(to) {
			continue
		}
		if last == nil {
			if line, err = json.Marshal(f.segment.Header); err != nil {
				return 0, err
			}
			if _, err = w.Write(append(line, '\n')); err != nil {
				return 0, err
			}
		}
		if f.segment != last {
			last, copied = f.segment, 0
		}
		if f.Kind == KindDelta && copied != f.key {
			if err := r.copyFrame(w, f.segment, f.key); err != nil {
				return snapshots, f.in(err)
			}
			copied = f.key
			snapshots++
		}
		if err := r.copyFrame(w, f.segment, f.offset); err != nil {
			return snapshots, f.in(err)
		}
		if f.Kind == KindKey {
			copied = f.offset
		}
		if f.IsSnapshot() {
			snapshots++
		}
	}
	return snapshots, nil
}

func (r *Ring) copyFrame(w io.Writer, s *Segment, offset int64) error {
	payload, err := r.payload(s, offset)
	if err != nil {
		return err
	}
	f, err := r.header(s, offset)
	if err != nil {
		return err
	}
	_, err = w.Write(appendFrame(nil, f.Kind, f.flags, f.Stamp, payload))
	return err
}

func (r *Ring) header(s *Segment, offset int64) (Frame, error) {
	for _, f := range s.Frames {
		if f.offset == offset {
			return f, nil
		}
	}
	return Frame{}, errors.New("the snapshot that it needs is missing")
}

// Bytes is what Copy writes at least, and little less than it does: the snapshots before the first one are not counted.
func (r *Ring) Bytes(from, to time.Time) (bytes int64) {
	for f := range r.All() {
		if !f.Wall.Before(from) && !f.Wall.After(to) {
			bytes += f.Bytes
		}
	}
	return bytes
}
