package disk

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// KernelFS names the file system of a file, where its files are not on a disk but made by the kernel as they are read:
// some never end, some wait for ever. Else it is empty.
func KernelFS(f *os.File) string {
	var st unix.Statfs_t
	if unix.Fstatfs(int(f.Fd()), &st) != nil {
		return ""
	}
	switch uint32(st.Type) {
	case unix.PROC_SUPER_MAGIC:
		return procfs
	case unix.SYSFS_MAGIC:
		return "sysfs"
	case unix.DEBUGFS_MAGIC, unix.TRACEFS_MAGIC:
		return "debugfs"
	case unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC:
		return "cgroup"
	case unix.BPF_FS_MAGIC:
		return "bpf"
	case unix.SECURITYFS_MAGIC, unix.SELINUX_MAGIC:
		return "securityfs"
	case unix.DEVPTS_SUPER_MAGIC:
		return "devpts"
	case unix.EFIVARFS_MAGIC, unix.PSTOREFS_MAGIC:
		return "firmware"
	case unix.BINFMTFS_MAGIC:
		return "binfmt_misc"
	case unix.NSFS_MAGIC:
		return "nsfs"
	}
	return ""
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
