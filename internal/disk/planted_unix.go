//go:build unix

package disk

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// nonBlocking keeps an open of a pipe from waiting for its writer.
const nonBlocking = unix.O_NONBLOCK

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
