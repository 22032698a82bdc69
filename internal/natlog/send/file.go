//go:build linux

package send

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/natkit/natkit/internal/disk"
	"github.com/natkit/natkit/internal/natlog"
	"github.com/natkit/natkit/internal/permit"
	"golang.org/x/sys/unix"
)

// File appends JSON lines to a file.
type File struct {
	path string
	// most is the size from which it is rotated, 0 for never; keep how many older ones stay.
	most int64
	keep int
	file *os.File
	size int64
	// isRegular: it is no pipe or device.
	isRegular bool
	text      []byte
	ends      []int
	// reopen is set by a signal: another program has renamed the file.
	reopen atomic.Bool
	run    written
	// wanted: a list of what is there is to be written, listing: it is wanted or on its way. began is the size before it, listed
	// the one behind it.
	wanted        atomic.Bool
	listing       bool
	began, listed int64
}

// written is the run of which a file has records.
type written struct {
	// begin is its first record, of no kind where there is none; part is how many files it has, until the time of its records.
	begin natlog.Record
	part  int
	until time.Time
}

// steppedBy is by how much a record is older than another one before it only where the clock was set back.
const steppedBy = time.Minute

// has takes a record that is written.
func (w *written) has(r *natlog.Record) {
	switch r.Kind {
	case natlog.Begin:
		*w = written{begin: *r, part: 1, until: r.Time}
	case natlog.Stop:
		*w = written{}
	}
	if r.Time.After(w.until) || w.until.Sub(r.Time) > steppedBy {
		w.until = r.Time
	}
}

// proceeds is the first record of the next file.
func (w *written) proceeds() natlog.Record {
	r := w.begin
	r.Kind, r.Time, r.Started, r.Part = natlog.Continue, w.until, w.begin.Time, w.part+1
	return r
}

// NewFile opens a file. What follows its last whole line is cut: a process that was killed may have left a part of one, which
// is sent again. With most it becomes PATH.1 at that size, and that PATH.2, up to keep. A file that is begun amid a run says so in its
// first line, and wants a list of what is there, so that it can be read without the ones before it.
func NewFile(path string, most int64, keep int) (*File, error) {
	f := &File{path: path, most: most, keep: max(keep, 1)}
	return f, f.open()
}

func (f *File) open() error {
	err := permit.Output(f.path)
	if err == nil {
		err = permit.File(f.path)
	}
	if err != nil {
		return err
	}
	if f.file, err = os.OpenFile(f.path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o640); err != nil {
		return fmt.Errorf("open the log: %w", err)
	}
	f.isRegular, err = f.look()
	if err == nil && f.isRegular {
		if err = disk.Lock(f.file); errors.Is(err, unix.EWOULDBLOCK) {
			err = errHeld
		}
		if err == nil {
			err = f.cut()
		}
	} else {
		f.most = 0
	}
	if err != nil {
		return errors.Join(fmt.Errorf("open the log: %w", err), f.close())
	}
	return nil
}

var errHeld = errors.New("another log is written to this file; give each one a path of its own")

// look reads the size, which another program may have made smaller.
func (f *File) look() (isRegular bool, err error) {
	info, err := f.file.Stat()
	if err != nil {
		return false, err
	}
	f.size = info.Size()
	return info.Mode().IsRegular(), nil
}

// Reopen has the next record go to the file that has the path then, or the first one behind a list that is on its way: logrotate(8)
// sends SIGHUP after it has renamed one.
func (f *File) Reopen() { f.reopen.Store(true) }

// IsListWanted reports whether a list of what is there is to be sent, once for each time.
func (f *File) IsListWanted() bool { return f.wanted.CompareAndSwap(true, false) }

// Send appends records: of a disk that becomes full, the first ones.
func (f *File) Send(_ context.Context, records []natlog.Record) (int, error) {
	if err := f.ready(); err != nil {
		return 0, err
	}
	f.text, f.ends = f.text[:0], f.ends[:0]
	proceeds := f.size == 0 && f.isRegular && f.run.begin.Kind != ""
	if proceeds {
		r := f.run.proceeds()
		f.text = r.AppendJSON(f.text)
	}
	for i := range records {
		f.text = records[i].AppendJSON(f.text)
		f.ends = append(f.ends, len(f.text))
	}
	whole, err := f.append()
	if proceeds && f.size > 0 {
		f.run.part++
		f.list()
		f.wanted.Store(f.listing)
	}
	for i := range records[:whole] {
		f.has(&records[i])
	}
	return whole, err
}

// list begins a list, where the run has any.
func (f *File) list() { f.listing, f.began = f.run.begin.Without == "", f.size }

// has takes a record that is written.
func (f *File) has(r *natlog.Record) {
	f.run.has(r)
	switch {
	case r.Kind == natlog.Begin:
		f.list()
		f.wanted.Store(false)
	case f.listing && (r.Kind == natlog.Listed || r.Kind == natlog.Lost || r.Kind == natlog.Stop):
		f.listing, f.listed = false, f.size
	}
}

// isFull reports whether the file is to be rotated: not before its list is whole, and as much was written after it.
func (f *File) isFull() bool {
	return f.most > 0 && f.size >= f.most && !f.listing && f.size-f.listed >= f.listed-f.began
}

// append writes text, and returns how many of the records in it are in the file.
func (f *File) append() (whole int, err error) {
	n, err := f.file.Write(f.text)
	f.size += int64(n)
	if err == nil {
		return len(f.ends), nil
	}
	whole, found := slices.BinarySearch(f.ends, n)
	if found {
		whole++
	}
	if n > 0 {
		if cutErr := f.cut(); cutErr != nil {
			err = errors.Join(err, cutErr, f.close())
		}
	}
	return whole, err
}

// cut removes what follows the last whole line of a file.
func (f *File) cut() error {
	isRegular, err := f.look()
	if err != nil || !isRegular {
		return err
	}
	whole, err := wholeLines(f.file, f.size)
	if err != nil || whole == f.size {
		return err
	}
	f.size = whole
	return f.file.Truncate(whole)
}

// ready opens the file where it is not open, and rotates it where it is large.
func (f *File) ready() error {
	switch {
	case f.file != nil && !f.listing && f.reopen.Swap(false): // a list stays in one file
		if err := f.close(); err != nil {
			return err
		}
	case f.file != nil && f.isFull():
		if err := f.rotate(); err != nil {
			return err
		}
	}
	if f.file == nil {
		return f.open()
	}
	return nil
}

func (f *File) close() error {
	file := f.file
	f.file = nil
	return file.Close()
}

func (f *File) rotate() error {
	if err := permit.File(f.path); err != nil {
		return err
	}
	if err := f.close(); err != nil {
		return err
	}
	for n := f.keep; n > 0; n-- {
		from := f.path
		if n > 1 {
			from = fmt.Sprintf("%s.%d", f.path, n-1)
		}
		if err := os.Rename(from, fmt.Sprintf("%s.%d", f.path, n)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("rotate the log: %w", err)
		}
	}
	f.began, f.listed = 0, 0
	return nil
}

// Close writes the file to the disk.
func (f *File) Close() error {
	if f.file == nil {
		return nil
	}
	return errors.Join(f.file.Sync(), f.close())
}

// Stream writes JSON lines to standard output.
type Stream struct {
	W    io.Writer
	text []byte
}

// Send writes the records.
func (s *Stream) Send(_ context.Context, records []natlog.Record) (int, error) {
	s.text = s.text[:0]
	for i := range records {
		s.text = records[i].AppendJSON(s.text)
	}
	if _, err := s.W.Write(s.text); err != nil {
		return 0, err
	}
	return len(records), nil
}

// Close does nothing.
func (*Stream) Close() error { return nil }
