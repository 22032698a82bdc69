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
	text []byte
	ends []int
	// reopen is set by a signal: another program has renamed the file.
	reopen atomic.Bool
}

// NewFile opens a file. What follows its last whole line is cut: a process that was killed may have left a part of one, which
// is sent again. With most it becomes PATH.1 at that size, and that PATH.2, up to keep.
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
	isRegular, err := f.look()
	if err == nil && isRegular {
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

// Reopen has the next record go to the file that has the path then: logrotate(8) sends SIGHUP after it has renamed one.
func (f *File) Reopen() { f.reopen.Store(true) }

// Send appends records: of a disk that becomes full, the first ones.
func (f *File) Send(_ context.Context, records []natlog.Record) (int, error) {
	if err := f.ready(); err != nil {
		return 0, err
	}
	f.text, f.ends = f.text[:0], f.ends[:0]
	for i := range records {
		f.text = records[i].AppendJSON(f.text)
		f.ends = append(f.ends, len(f.text))
	}
	n, err := f.file.Write(f.text)
	f.size += int64(n)
	if err == nil {
		return len(records), nil
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
	case f.reopen.Swap(false) && f.file != nil:
		if err := f.close(); err != nil {
			return err
		}
	case f.file != nil && f.most > 0 && f.size >= f.most:
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
