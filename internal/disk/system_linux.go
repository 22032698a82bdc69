package disk

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// nonBlocking keeps an open of a pipe from waiting for its writer.
const nonBlocking = unix.O_NONBLOCK

func isOfProcfs(f *os.File) bool {
	var st unix.Statfs_t
	return unix.Fstatfs(int(f.Fd()), &st) == nil && st.Type == unix.PROC_SUPER_MAGIC
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
