package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

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
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return Trust(dir)
}

// Destination returns what writing to a name writes to: the name itself, or what links
// lead to. A link, pipe or device that another user put into a sticky, world-writable
// directory is not followed or opened but replaced, as it is there to mislead: the
// kernel refuses the same where fs.protected_symlinks and fs.protected_fifos are set
// (may_follow_link, fs/namei.c). special reports a pipe or device to be written to
// in place.
func Destination(name string) (target string, special bool, err error) {
	const longestChain = 40 // MAXSYMLINKS, include/linux/namei.h
	for range longestChain {
		// What .. leads to depends on what the directories on the way really are.
		dir, file := filepath.Split(name)
		real, err := filepath.EvalSymlinks(dir)
		if errors.Is(err, fs.ErrNotExist) {
			return name, false, nil
		}
		if err != nil {
			return name, false, err
		}
		name = filepath.Join(real, file)
		info, err := os.Lstat(name)
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				err = nil
			}
			return name, false, err
		}
		mode := info.Mode()
		switch {
		case mode.IsDir():
			return "", false, unix.EISDIR
		case mode.IsRegular():
			return name, false, nil
		}
		if planted, err := isPlanted(name, info); planted || err != nil {
			return name, false, err
		}
		if mode&fs.ModeSymlink == 0 {
			return name, true, nil
		}
		if strings.HasPrefix(filepath.Dir(name), "/proc/") { // an open file, whose name may be none: pipe:[123]
			info, err := os.Stat(name)
			return name, err == nil && !info.IsDir(), err
		}
		to, err := os.Readlink(name)
		if err != nil {
			return "", false, err
		}
		if !filepath.IsAbs(to) {
			to = real + "/" + to
		}
		name = to
	}
	return "", false, unix.ELOOP
}

// isPlanted reports whether another user put this into a sticky, world-writable
// directory. A file of the directory's owner is as trusted as the directory.
func isPlanted(name string, info fs.FileInfo) (bool, error) {
	var dir unix.Stat_t
	if err := unix.Stat(filepath.Dir(name), &dir); err != nil {
		return false, &fs.PathError{Op: "stat", Path: filepath.Dir(name), Err: err}
	}
	const shared = unix.S_ISVTX | unix.S_IWOTH
	owner := info.Sys().(*syscall.Stat_t).Uid
	return dir.Mode&shared == shared && int(owner) != os.Geteuid() && owner != dir.Uid, nil
}

func ownOrRoot(st unix.Stat_t) bool { return st.Uid == 0 || int(st.Uid) == os.Geteuid() }
