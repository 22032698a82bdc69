//go:build linux

package disk

import (
	"bytes"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

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
