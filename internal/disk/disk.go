// Package disk writes files that are there whole or not at all.
package disk

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"syscall"

	"github.com/natkit/natkit/internal/permit"
)

// temporary is what files are called until they are whole. The name ends so that
// no program that reads a folder by suffix (sysctl.d) takes it for one of its own.
const temporary = ".natkit-*.tmp"

// Replace writes a file so that the former or the new one is there, also after a
// crash of the machine: beside it, synced, then renamed. Where it fails, the
// former one is there and nothing else is left. What write returns is returned as
// it is.
func Replace(path string, mode fs.FileMode, write func(io.Writer) error) error {
	return put(path, mode, write, os.Rename)
}

var errNotRegular = errors.New("not a regular file")

// ReadPlain returns the text of a regular file, or one byte more than limit of it. What is something else, such as a
// pipe or a device, is refused before it is opened: that may wait for another program, or do something.
func ReadPlain(path string, limit int) ([]byte, error) {
	text, err := readPlain(path, limit)
	if err != nil {
		return nil, &fs.PathError{Op: "read", Path: path, Err: Cause(err)}
	}
	return text, nil
}

// OpenIn opens a regular file below a directory. What took its place since it was found there to be one, such as a pipe, is
// refused, and opening it does not wait for another program.
func OpenIn(root *os.Root, name string) (*os.File, error) {
	return opened(root.OpenFile(name, os.O_RDONLY|nonBlocking, 0))
}

// opened returns a file that was opened if it is a regular one. A pipe or a device may have taken its place after it was found to
// be one.
func opened(f *os.File, err error) (*os.File, error) {
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(cmp.Or(err, error(&fs.PathError{Op: "open", Path: f.Name(), Err: errNotRegular})), f.Close())
	}
	return f, nil
}

// Plain is a directory of regular files, links to such included: as os.DirFS, but what is something else is not opened, or refused
// where it took the place of a file, and no open of it waits for another program.
func Plain(dir string) fs.FS { return regularFiles{os.DirFS(dir), dir} }

type regularFiles struct {
	fs.FS
	dir string
}

func (p regularFiles) Open(name string) (fs.File, error) {
	info, err := fs.Stat(p.FS, name)
	switch {
	case err != nil:
		return nil, err
	case info.IsDir():
		return p.FS.Open(name)
	case !info.Mode().IsRegular():
		return nil, &fs.PathError{Op: "open", Path: name, Err: errNotRegular}
	}
	return p.open(name)
}

// open opens what was found to be a regular file.
func (p regularFiles) open(name string) (fs.File, error) {
	path, err := filepath.Localize(name)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrInvalid}
	}
	f, err := opened(os.OpenFile(filepath.Join(p.dir, path), os.O_RDONLY|nonBlocking, 0))
	if err != nil {
		return nil, err
	}
	return f, nil
}

func (p regularFiles) Stat(name string) (fs.FileInfo, error)      { return fs.Stat(p.FS, name) }
func (p regularFiles) ReadDir(name string) ([]fs.DirEntry, error) { return fs.ReadDir(p.FS, name) }

// procfs is a name that KernelFS returns.
const procfs = "procfs"

func readPlain(path string, limit int) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		return nil, syscall.EISDIR
	}
	if !info.Mode().IsRegular() {
		return nil, errNotRegular
	}
	f, err := opened(os.OpenFile(path, os.O_RDONLY|nonBlocking, 0))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	// Files of procfs seem regular, and one may wait for what the kernel logs next.
	if KernelFS(f) == procfs {
		return nil, fmt.Errorf("%w: it is of procfs", errNotRegular)
	}
	return io.ReadAll(io.LimitReader(f, int64(limit)+1))
}

// Cause is an error without the path, for a reader who names it.
func Cause(err error) error {
	var at *fs.PathError
	if errors.As(err, &at) {
		return at.Err
	}
	return err
}

// Create is Replace that returns fs.ErrExist where something has the name already,
// a link that leads nowhere included.
func Create(path string, mode fs.FileMode, write func(io.Writer) error) error {
	if _, err := os.Lstat(path); err == nil {
		return &fs.PathError{Op: "create", Path: path, Err: fs.ErrExist}
	}
	return put(path, mode, write, renameNew)
}

// naming replaces a temporary name in an error by that of the file it was for.
func naming(path string, err error) error {
	var at *fs.PathError
	if errors.As(err, &at) {
		if temp, _ := filepath.Match(temporary, filepath.Base(at.Path)); temp {
			at.Path = path
		}
	}
	return err
}

// beside makes a file with a temporary name in the folder of another one.
func beside(path string) (*os.File, error) {
	f, err := os.CreateTemp(filepath.Dir(path), temporary)
	if err != nil {
		return nil, &fs.PathError{Op: "create a file in", Path: filepath.Dir(path), Err: Cause(err)}
	}
	return f, nil
}

// put writes a file under a temporary name and has it renamed.
func put(path string, mode fs.FileMode, write func(io.Writer) error, rename func(from, to string) error) error {
	p, err := begin(path, mode, rename)
	if err != nil {
		return err
	}
	defer p.Abort()
	if err := write(p.file); err != nil {
		return naming(path, err)
	}
	return p.Commit()
}

// Pending is a file that has its name once it is whole.
type Pending struct {
	file   *os.File
	path   string
	mode   fs.FileMode
	rename func(from, to string) error
	synced bool
}

// Begin is Replace in steps: it makes a file that is beside the one it replaces, until Commit gives it the name. One of
// Commit and Abort has to be called.
func Begin(path string, mode fs.FileMode) (*Pending, error) { return begin(path, mode, os.Rename) }

func begin(path string, mode fs.FileMode, rename func(from, to string) error) (*Pending, error) {
	if err := permit.File(path); err != nil {
		return nil, err
	}
	f, err := beside(path)
	if err != nil {
		return nil, err
	}
	return &Pending{file: f, path: path, mode: mode, rename: rename}, nil
}

// Write appends to the file. Errors name the file that it is to be.
func (p *Pending) Write(b []byte) (int, error) {
	n, err := p.file.Write(b)
	return n, naming(p.path, err)
}

// Sync ends the file: what can fail for want of room has failed after it.
func (p *Pending) Sync() error {
	if p.synced {
		return nil
	}
	err := cmp.Or(p.file.Chmod(p.mode), p.file.Sync())
	if err = cmp.Or(err, p.file.Close()); err != nil {
		return naming(p.path, err)
	}
	p.synced = true
	return nil
}

// Commit gives the file its name. Where it fails, nothing is left.
func (p *Pending) Commit() error {
	defer p.Abort()
	if err := p.Sync(); err != nil {
		return err
	}
	if err := p.rename(p.file.Name(), p.path); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(p.path))
}

// Abort removes what was written; after Commit it does nothing.
func (p *Pending) Abort() {
	p.file.Close()           // fails after Commit has closed it,
	os.Remove(p.file.Name()) // and so does this after the rename
}

// Open returns an empty file under the name, to be written to at length, or the pipe or
// device that Destination says to write to in place. What another user planted there
// is replaced, never written to.
func Open(name string, mode fs.FileMode) (*os.File, error) {
	if err := permit.File(name); err != nil {
		return nil, err
	}
	path, special, err := Destination(name)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	if special {
		return os.OpenFile(path, os.O_WRONLY, 0)
	}
	f, err := beside(path)
	if err != nil {
		return nil, err
	}
	if err := cmp.Or(f.Chmod(mode), os.Rename(f.Name(), path)); err != nil {
		f.Close()
		os.Remove(f.Name())
		return nil, err
	}
	return f, nil
}

// MayReplace reports whether Replace can begin: the folder is there and may be
// written to.
func MayReplace(path string) error {
	if err := permit.File(path); err != nil {
		return err
	}
	f, err := beside(path)
	if err != nil {
		return err
	}
	return cmp.Or(f.Close(), os.Remove(f.Name()))
}

// Text is for Replace where the whole content is at hand.
func Text[T string | []byte](text T) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := w.Write([]byte(text))
		return err
	}
}

// SyncDir makes what was created, renamed or removed in a folder survive a crash.
// A folder that is not there has nothing to lose. Windows has no such call for folders.
func SyncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	d, err := os.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// RemoveLeftovers deletes what a Replace that was killed has left in a folder.
// No other process may be replacing files there. Failing is no harm.
func RemoveLeftovers(dir string) {
	paths, _ := filepath.Glob(filepath.Join(dir, temporary))
	for _, path := range paths {
		os.Remove(path)
	}
}
