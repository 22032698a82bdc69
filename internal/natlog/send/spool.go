//go:build linux

// Package send delivers the records of a NAT log to files, syslog, IPFIX collectors, Kafka and tables. A receiver that is
// slow, away or refuses never holds up who writes the log: what waits is bounded, in memory and in a spool on disk,
// and what does not fit is counted and said in the log itself.
package send

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/natkit/natkit/internal/disk"
	"github.com/natkit/natkit/internal/natlog"
	"github.com/natkit/natkit/internal/permit"
	"golang.org/x/sys/unix"
)

// Bounds of a spool and of its files.
const (
	LeastSpool   = 1 << 20
	MostSpool    = 1 << 40
	leastSegment = 128 << 10
	mostSegment  = 64 << 20
)

// Names in the directory of a spool.
const (
	segmentSuffix = ".jsonl"
	positionName  = "position"
	lockName      = "lock"
)

// Spool keeps lines in files until they are delivered: JSON lines, in the order in which they came. The end of a
// process, by kill -9 too, loses none that Append took; the end of the machine those of the last segment that the kernel had
// not yet written.
//
// What is delivered is noted in a file of its own after each batch, and freed: a batch that was on its way when the process was killed is
// delivered twice.
type Spool struct {
	dir     string
	limit   int64
	segment int64
	lock    *os.File
	// noted has the position, written is how many times it was.
	noted   *os.File
	written uint64

	mu sync.Mutex
	// segments are the files by number, the oldest first; the last one is appended to by out.
	segments []segment
	out      *os.File
	bytes    int64
	// read is how far what was delivered goes.
	read position
	// full: the last lines found no room, in the spool or on the disk.
	full bool
}

type segment struct {
	number uint64
	size   int64
}

// position is behind the last byte that is delivered.
type position struct {
	segment uint64
	offset  int64
}

var errSpoolHeld = errors.New("another natkit uses it; give each output a directory of its own")

// OpenSpool opens a directory, and makes it where it is missing. limit bounds its bytes.
func OpenSpool(dir string, limit int64) (*Spool, error) {
	s := &Spool{dir: dir, limit: limit, segment: min(max(limit/8, leastSegment), mostSegment)}
	if err := s.open(); err != nil {
		return nil, fmt.Errorf("open the spool %s: %w", dir, errors.Join(err, s.Close()))
	}
	return s, nil
}

func (s *Spool) open() error {
	err := permit.Output(s.dir)
	if err == nil {
		err = os.MkdirAll(s.dir, 0o700)
	}
	if err == nil {
		err = disk.Trust(s.dir)
	}
	if err != nil {
		return err
	}
	if s.lock, err = disk.TryLock(filepath.Join(s.dir, lockName)); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			return errSpoolHeld
		}
		return err
	}
	if err := s.list(); err != nil {
		return err
	}
	if err := s.repair(); err != nil {
		return err
	}
	if err := s.readPosition(); err != nil {
		return err
	}
	return s.begin()
}

func (s *Spool) list() error {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		digits, is := strings.CutSuffix(e.Name(), segmentSuffix)
		n, err := strconv.ParseUint(digits, 10, 64)
		info, infoErr := e.Info()
		if !is || err != nil || infoErr != nil || !info.Mode().IsRegular() {
			continue
		}
		s.segments = append(s.segments, segment{n, info.Size()})
		s.bytes += info.Size()
	}
	slices.SortFunc(s.segments, func(a, b segment) int {
		if a.number < b.number {
			return -1
		}
		return 1
	})
	return nil
}

func (s *Spool) path(number uint64) string {
	return filepath.Join(s.dir, fmt.Sprintf("%016d%s", number, segmentSuffix))
}

// repair cuts the last segment behind its last whole line: a process that was killed may have left a part of one.
func (s *Spool) repair() error {
	if len(s.segments) == 0 {
		return nil
	}
	last := &s.segments[len(s.segments)-1]
	f, err := os.OpenFile(s.path(last.number), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	whole, err := wholeLines(f, last.size)
	if err != nil || whole == last.size {
		return err
	}
	s.bytes -= last.size - whole
	last.size = whole
	return f.Truncate(whole)
}

// wholeLines is how many of the first size bytes of a file are whole lines.
func wholeLines(f io.ReaderAt, size int64) (int64, error) {
	const block = 64 << 10
	b := make([]byte, block)
	for to := size; to > 0; {
		from := max(to-block, 0)
		n, err := f.ReadAt(b[:to-from], from)
		if err != nil && err != io.EOF {
			return 0, err
		}
		if i := bytes.LastIndexByte(b[:n], '\n'); i >= 0 {
			return from + int64(i) + 1, nil
		}
		to = from
	}
	return 0, nil
}

// slotForm is a position in the file of that name, which has two: one after the other is written in place, so that a full disk
// has room for it, and that the machine's end amid one leaves the other. It is the count of writes, the position, and a sum.
const slotForm = "%020d %020d %020d %08x\n"

var slotSize = int64(len(slot(0, position{})))

func slot(written uint64, p position) []byte {
	sum := crc32.ChecksumIEEE(fmt.Appendf(nil, "%d %d %d", written, p.segment, p.offset))
	return fmt.Appendf(nil, slotForm, written, p.segment, p.offset, sum)
}

// readPosition reads the file; without a whole slot all is delivered again.
func (s *Spool) readPosition() (err error) {
	path := filepath.Join(s.dir, positionName)
	if err := permit.File(path); err != nil {
		return err
	}
	if s.noted, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600); err != nil {
		return err
	}
	text := make([]byte, 2*slotSize)
	n, err := s.noted.ReadAt(text, 0)
	if err != nil && err != io.EOF {
		return err
	}
	for b := range slices.Chunk(text[:n], int(slotSize)) {
		var written uint64
		var p position
		var sum uint32
		if _, err := fmt.Sscanf(string(b), "%d %d %d %x\n", &written, &p.segment, &p.offset, &sum); err == nil && written >= s.written && bytes.Equal(b, slot(written, p)) {
			s.read, s.written = p, written
		}
	}
	if s.written == 0 { // of an earlier natkit
		var p position
		if _, err := fmt.Sscanf(string(text[:n]), "%d %d\n", &p.segment, &p.offset); err == nil && p.offset >= 0 {
			s.read = p
		}
	}
	return s.removeDelivered()
}

// writePosition is not synced: the end of the process does not undo it, and that of the machine has some delivered twice.
func (s *Spool) writePosition() error {
	at := int64((s.written+1)%2) * slotSize
	if _, err := s.noted.WriteAt(slot(s.written+1, s.read), at); err != nil {
		return err
	}
	s.written++
	return nil
}

// begin makes a segment to append to.
func (s *Spool) begin() error {
	number := s.read.segment
	if n := len(s.segments); n > 0 {
		number = max(number, s.segments[n-1].number)
	}
	number++
	if err := permit.File(s.dir); err != nil {
		return err
	}
	f, err := os.OpenFile(s.path(number), os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	if s.out != nil {
		if err := errors.Join(s.out.Sync(), s.out.Close()); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	s.out, s.segments = f, append(s.segments, segment{number: number})
	return nil
}

// Append takes whole lines, all of them or none: false where there is no room.
func (s *Spool) Append(lines []byte) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ok, err := s.append(lines)
	s.full = !ok
	return ok, err
}

func (s *Spool) append(lines []byte) (bool, error) {
	if s.bytes+int64(len(lines)) > s.limit {
		return false, nil
	}
	last := &s.segments[len(s.segments)-1]
	if last.size > 0 && last.size+int64(len(lines)) > s.segment {
		if err := s.begin(); err != nil {
			return false, err
		}
		last = &s.segments[len(s.segments)-1]
	}
	n, err := s.out.Write(lines)
	if n < len(lines) && n > 0 { // a full disk takes a part: that must not be followed by another line
		err = errors.Join(err, s.out.Truncate(last.size))
		n = 0
	}
	last.size += int64(n)
	s.bytes += int64(n)
	return err == nil, err
}

// IsPressed reports whether the room of the spool is used by half, or found to be too small.
func (s *Spool) IsPressed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.full || s.bytes > s.limit/2
}

// batchBytes is how much of the spool is delivered at once.
const batchBytes = 256 << 10

// Next returns the records behind a position, and where they end; none where there are none. damaged is how many lines
// among them are none.
func (s *Spool) Next(at position, into []natlog.Record) (records []natlog.Record, behind position, damaged int, err error) {
	text, behind, err := s.nextText(at)
	records = into[:0]
	for line := range bytes.Lines(text) {
		r, err := natlog.ParseJSON(bytes.TrimSuffix(line, []byte("\n")))
		if err != nil {
			damaged++
			continue
		}
		records = append(records, r)
	}
	return records, behind, damaged, err
}

func (s *Spool) nextText(at position) ([]byte, position, error) {
	s.mu.Lock()
	segments := slices.Clone(s.segments)
	s.mu.Unlock()
	for _, g := range segments {
		if g.number < at.segment {
			continue
		}
		if g.number > at.segment {
			at = position{segment: g.number}
		}
		if at.offset >= g.size {
			continue
		}
		f, err := os.Open(s.path(g.number))
		if err != nil {
			return nil, at, err
		}
		defer f.Close()
		b := make([]byte, min(g.size-at.offset, batchBytes))
		n, err := f.ReadAt(b, at.offset)
		if err != nil && err != io.EOF {
			return nil, at, err
		}
		b = b[:n]
		if i := bytes.LastIndexByte(b, '\n'); i >= 0 {
			b = b[:i+1]
		} // else a line that is longer than a batch: it is damaged
		at.offset += int64(len(b))
		return b, at, nil
	}
	return nil, at, nil
}

// Position is how far what was delivered goes.
func (s *Spool) Position() position {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.read
}

// Delivered notes how far what was delivered goes, and frees what lies before that.
func (s *Spool) Delivered(behind position) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.read = behind
	if err := permit.File(s.dir); err != nil {
		return err
	}
	_ = s.leave() // without it there is as much room as before
	if err := s.removeDelivered(); err != nil {
		return err
	}
	return s.writePosition()
}

// leave begins another segment where all of the last one is delivered, so that it can be removed: when it is large, or room is
// needed.
func (s *Spool) leave() error {
	last := s.segments[len(s.segments)-1]
	if s.out == nil || last.number != s.read.segment || s.read.offset < last.size || last.size == 0 || last.size < leastSegment && !s.full {
		return nil
	}
	return s.begin()
}

// removeDelivered removes segments of which all is delivered, but for the one that is appended to.
func (s *Spool) removeDelivered() error {
	for len(s.segments) > 0 {
		first := s.segments[0]
		isLast := len(s.segments) == 1 && s.out != nil
		if isLast || first.number > s.read.segment || first.number == s.read.segment && s.read.offset < first.size {
			return nil
		}
		if err := permit.File(s.dir); err != nil {
			return err
		}
		if err := os.Remove(s.path(first.number)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		s.bytes -= first.size
		s.segments = s.segments[1:]
	}
	return nil
}

// Waiting is how many bytes are not delivered.
func (s *Spool) Waiting() (bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.segments {
		switch {
		case g.number > s.read.segment:
			bytes += g.size
		case g.number == s.read.segment:
			bytes += max(g.size-s.read.offset, 0)
		}
	}
	return bytes
}

// Close leaves what is not delivered for the next one that opens it.
func (s *Spool) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	if s.out != nil {
		errs = append(errs, s.out.Sync(), s.out.Close())
		s.out = nil
	}
	if s.noted != nil {
		errs = append(errs, s.noted.Close())
		s.noted = nil
	}
	if s.lock != nil {
		errs = append(errs, s.lock.Close())
		s.lock = nil
	}
	return errors.Join(errs...)
}
