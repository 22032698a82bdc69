// Package disk writes files that are there whole or not at all.
package disk

import (
	"cmp"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// temporary is what files are called until they are whole. The name ends so that
// no program that reads a folder by suffix (sysctl.d) takes it for one of its own.
const temporary = ".natkit-*.tmp"

// Replace writes a file so that the former or the new one is there, also after a
// crash of the machine: beside it, synced, then renamed. Where it fails, the
// former one is there and nothing else is left. What write returns is returned as
// it is.
func Replace(path string, mode fs.FileMode, write func(io.Writer) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), temporary)
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // fails after the rename, as it should
	if err := write(f); err != nil {
		f.Close()
		return err
	}
	err = cmp.Or(f.Chmod(mode), f.Sync())
	if err = cmp.Or(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// MayReplace tells whether Replace can begin: the folder is there and may be
// written to.
func MayReplace(path string) error {
	f, err := os.CreateTemp(filepath.Dir(path), temporary)
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
// Nobody else may be replacing files there. Failing is no harm.
func RemoveLeftovers(dir string) {
	paths, _ := filepath.Glob(filepath.Join(dir, temporary))
	for _, path := range paths {
		os.Remove(path)
	}
}
