package disk

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Trust refuses a folder that others than root and this user could have written
// to, or could replace by another one: what stands there is carried out as root.
// The error is fs.ErrNotExist where it is missing.
func Trust(dir string) error {
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return fmt.Errorf("%s: it is not a directory but a link or file, so others could lead natkit elsewhere; expected a directory that only you can write to", dir)
	}
	if !ownOrRoot(st) || st.Mode&0o022 != 0 {
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

func ownOrRoot(st unix.Stat_t) bool { return st.Uid == 0 || int(st.Uid) == os.Geteuid() }
