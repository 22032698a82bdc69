//go:build linux

package disk

import (
	"cmp"
	"errors"
	"io/fs"
	"os"

	"github.com/natkit/natkit/internal/permit"
	"golang.org/x/sys/unix"
)

// CreateLocked makes a file appear whole and locked until it is closed or the process
// ends, however that ends. The error is fs.ErrExist where something has the name already.
func CreateLocked(path string, mode fs.FileMode, text []byte) (*os.File, error) {
	if err := permit.File(path); err != nil {
		return nil, err
	}
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
	if err := permit.File(path); err != nil {
		return nil, err
	}
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
	if err := permit.File(path); err != nil {
		return nil, err
	}
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
