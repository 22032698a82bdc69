//go:build linux

package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/natkit/natkit/internal/permit"
	"golang.org/x/sys/unix"
)

// Trust refuses a folder in which others than root and this user could have put
// something in the place of what these wrote, or could replace it by another one: what
// stands there is carried out as root. A sticky one may be a group's, too: whose each
// file is has to be asked then. The error is fs.ErrNotExist where it is missing.
func Trust(dir string) error {
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return fmt.Errorf("%s: it is not a directory but a link or file, so others could lead natkit elsewhere; expected a directory that only you can write to", dir)
	}
	if !ownOrRoot(st) || st.Mode&0o002 != 0 || st.Mode&0o020 != 0 && st.Mode&unix.S_ISVTX == 0 {
		return fmt.Errorf("%s: owned by uid %d with mode %04o, so others could forge what is undone; expected a directory that only you can write to",
			dir, st.Uid, st.Mode&0o7777)
	}
	parent := filepath.Dir(dir)
	if err := unix.Stat(parent, &st); err != nil {
		return fmt.Errorf("%s: %w", parent, err)
	}
	// In a sticky directory only the owners of a thing and of the directory may
	// rename it.
	if !ownOrRoot(st) || st.Mode&0o022 != 0 && st.Mode&unix.S_ISVTX == 0 {
		return fmt.Errorf("%s: %s is owned by uid %d with mode %04o, so others could put another one there; expected a directory that only you can write to",
			dir, parent, st.Uid, st.Mode&0o7777)
	}
	return nil
}

// MakeTrusted makes a folder that only its owner may enter where it is missing, and refuses
// one that Trust refuses.
func MakeTrusted(dir string) error {
	if err := permit.File(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return Trust(dir)
}

func ownOrRoot(st unix.Stat_t) bool { return st.Uid == 0 || int(st.Uid) == os.Geteuid() }
