// Package disk writes files that are there whole or not at all.
package disk

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
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

// ErrChangedMeanwhile is the error of Update where the file is not as it was read.
var ErrChangedMeanwhile = errors.New("it was changed meanwhile, and is left as it is; try again")

// Update is Replace of a file whose text is known. The new one has its owner, group, mode, ACL and extended attributes;
// where it cannot have all of these, and where the file has other names (hard links), the former one stays. A link is
// followed, as Destination does. Errors do not name the path.
func Update(path string, known, text []byte) error {
	f, err := openForUpdate(path)
	if err != nil {
		return Cause(err)
	}
	defer f.Close()
	write := func(w io.Writer) error {
		if _, err := w.Write(text); err != nil {
			return err
		}
		return f.give(w.(*os.File))
	}
	return put(f.Name(), f.mode, write, func(from, to string) error {
		if errors.Is(Lock(f.File), unix.EWOULDBLOCK) || !IsAt(f.File, to) { // of another Update
			return ErrChangedMeanwhile
		}
		now, err := ReadPlain(to, len(known))
		if err == nil && !bytes.Equal(now, known) {
			err = ErrChangedMeanwhile
		}
		if err == nil {
			err = unix.Rename(from, to)
		}
		if errors.Is(err, unix.EBUSY) {
			err = errors.New("it is a mount of its own, as a volume of a container is; change the file that is mounted here")
		}
		return err
	})
}

// MayUpdate reports beforehand what would keep Update from its work.
func MayUpdate(path string) error {
	f, err := openForUpdate(path)
	if err != nil {
		return Cause(err)
	}
	defer f.Close()
	return MayReplace(f.Name())
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

func readPlain(path string, limit int) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		return nil, unix.EISDIR
	}
	if !info.Mode().IsRegular() {
		return nil, errNotRegular
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, cmp.Or(err, errNotRegular)
	}
	// Files of procfs seem regular, and one may wait for what the kernel logs next.
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err == nil && st.Type == unix.PROC_SUPER_MAGIC {
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

// renameNew renames where the new name is free. NFS and others have no
// RENAME_NOREPLACE; there a second link does the same.
func renameNew(from, to string) error {
	err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) {
		return os.Link(from, to)
	}
	if err != nil {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
	}
	return nil
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
	f, err := beside(path)
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // fails after the rename, as it should
	if err := write(f); err != nil {
		f.Close()
		return naming(path, err)
	}
	err = cmp.Or(f.Chmod(mode), f.Sync())
	if err = cmp.Or(err, f.Close()); err != nil {
		return naming(path, err)
	}
	if err := rename(f.Name(), path); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// Open returns an empty file under the name, to be written to at length, or the pipe or
// device that Destination says to write to in place. What another user planted there
// is replaced, never written to.
func Open(name string, mode fs.FileMode) (*os.File, error) {
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

// CreateLocked makes a file appear whole and locked until it is closed or the process
// ends, however that ends. The error is fs.ErrExist where something has the name already.
func CreateLocked(path string, mode fs.FileMode, text []byte) (*os.File, error) {
	f, err := beside(path)
	if err != nil {
		return nil, err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(text)
	if err = cmp.Or(err, f.Chmod(mode), Lock(f)); err == nil {
		err = os.Link(f.Name(), path) // which does not replace
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Lock fails with EWOULDBLOCK where another process has it.
func Lock(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) }

// IsHeld reports whether a process holds the lock of the file at a path. In doubt one
// does: the work of another process is not undone on a guess.
func IsHeld(path string) bool {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	if err != nil {
		return true
	}
	defer f.Close()
	return unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) != nil
}

// OpenLock opens a lock file, and creates it if it is missing; its group may lock it as
// well. Only a new file is opened with O_CREAT, which the kernel refuses for another
// user's file in a sticky directory (fs.protected_regular=2, may_create_in_sticky). A file
// without write permission can be locked all the same. The error is fs.ErrExist if
// another process created the file meanwhile.
func OpenLock(path string) (*os.File, error) {
	const flags = unix.O_NOFOLLOW | unix.O_NONBLOCK
	f, err := os.OpenFile(path, os.O_RDWR|flags, 0)
	if errors.Is(err, unix.EROFS) || errors.Is(err, fs.ErrPermission) {
		f, err = os.OpenFile(path, os.O_RDONLY|flags, 0)
	}
	if err == nil {
		return plain(f)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if f, err = os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR|flags, 0o600); err != nil {
		return nil, err
	}
	if err := f.Chmod(0o660); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// TryLock opens the file at a path, makes it where it is missing, and locks it. The error
// is unix.EWOULDBLOCK where another process has the lock; the file can be read then.
func TryLock(path string) (*os.File, error) { return lockAt(path, Lock) }

// WaitLock is TryLock that waits until the lock is free.
func WaitLock(path string) (*os.File, error) {
	return lockAt(path, func(f *os.File) error {
		for {
			if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); !errors.Is(err, unix.EINTR) {
				return err
			}
		}
	})
}

func lockAt(path string, lock func(*os.File) error) (*os.File, error) {
	for {
		f, err := OpenLock(path)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if err := lock(f); err != nil {
			return f, err
		}
		if IsAt(f, path) {
			return f, nil
		}
		f.Close() // its holder has removed it at its end
	}
}

// LockExisting is TryLock of a file that must be there: the error is fs.ErrNotExist where it
// is not, also where its holder has removed it.
func LockExisting(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if err := Lock(f); err != nil {
		return f, err
	}
	if !IsAt(f, path) {
		f.Close()
		return nil, &fs.PathError{Op: "lock", Path: path, Err: fs.ErrNotExist}
	}
	return f, nil
}

// IsAt reports whether an open file is still the one of that name.
func IsAt(f *os.File, path string) bool {
	open, errOpen := f.Stat()
	there, errThere := os.Lstat(path)
	return errOpen == nil && errThere == nil && os.SameFile(open, there)
}

// plain returns a file that has one name only: another may be that of a file which who
// linked it here could not have written to (fs.protected_hardlinks=0).
func plain(f *os.File) (*os.File, error) {
	var st unix.Stat_t
	err := unix.Fstat(int(f.Fd()), &st)
	if err == nil && (st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink > 1) {
		err = errors.New("not a plain file with one name; remove it")
	}
	if err != nil {
		f.Close()
		return nil, &fs.PathError{Op: "open", Path: f.Name(), Err: err}
	}
	return f, nil
}

// MayReplace reports whether Replace can begin: the folder is there and may be
// written to.
func MayReplace(path string) error {
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
// A folder that is not there has nothing to lose.
func SyncDir(dir string) error {
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
