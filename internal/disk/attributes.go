//go:build linux

package disk

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// attributes are what a file has beside its text.
type attributes struct {
	mode     fs.FileMode
	uid, gid int
	links    uint64
	// extended are the extended attributes (xattr(7)); ACLs and security labels are among them.
	extended map[string][]byte
}

// original is a file that another one is to take the place of.
type original struct {
	*os.File
	attributes
}

// openForUpdate opens what a path leads to, and refuses what cannot be replaced.
func openForUpdate(path string) (*original, error) {
	target, special, err := Destination(path)
	if err != nil {
		return nil, err
	}
	if special {
		return nil, errNotRegular
	}
	f, err := os.OpenFile(target, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	has, err := attributesOf(f)
	if err == nil && has.links > 1 {
		err = fmt.Errorf("it has %d names (hard links), and only this one would change; make it a file of its own, as by 'cp -a FILE NEW && mv NEW FILE'", has.links)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return &original{f, has}, nil
}

func attributesOf(f *os.File) (attributes, error) {
	info, err := f.Stat()
	if err != nil {
		return attributes{}, err
	}
	if !info.Mode().IsRegular() {
		return attributes{}, errNotRegular
	}
	st := info.Sys().(*syscall.Stat_t)
	all := attributes{mode: info.Mode(), uid: int(st.Uid), gid: int(st.Gid), links: uint64(st.Nlink)}
	all.extended, err = extendedOf(f)
	return all, err
}

// ofContent are those that the kernel makes of what is in a file; those of another text would be wrong
// (Documentation/ABI/testing/ima_policy, evm).
var ofContent = []string{"security.ima", "security.evm"}

func extendedOf(f *os.File) (map[string][]byte, error) {
	names, err := xattr(func(buffer []byte) (int, error) { return unix.Flistxattr(int(f.Fd()), buffer) })
	if errors.Is(err, unix.ENOTSUP) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list its extended attributes: %w", err)
	}
	all := map[string][]byte{}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names), "\x00"), "\x00") {
		if name == "" || slices.Contains(ofContent, name) {
			continue
		}
		value, err := xattr(func(buffer []byte) (int, error) { return unix.Fgetxattr(int(f.Fd()), name, buffer) })
		if err != nil {
			return nil, fmt.Errorf("read its extended attribute %s: %w", name, err)
		}
		all[name] = value
	}
	return all, nil
}

// xattr reads what is at most 64 KiB (XATTR_LIST_MAX, XATTR_SIZE_MAX, include/uapi/linux/limits.h).
func xattr(read func(buffer []byte) (int, error)) ([]byte, error) {
	buffer := make([]byte, 64<<10)
	n, err := read(buffer)
	if err != nil {
		return nil, err
	}
	return bytes.Clone(buffer[:n]), nil
}

// give gives them to a new file, or says which one it cannot have. Permissions come last, and are never wider
// meanwhile.
func (a attributes) give(f *os.File) error {
	if err := f.Chown(a.uid, a.gid); err != nil {
		return fmt.Errorf("its owner and group, %d:%d, cannot be kept: %w; only root can do that", a.uid, a.gid, Cause(err))
	}
	if err := a.extend(f); err != nil {
		return err
	}
	if err := f.Chmod(a.mode); err != nil {
		return err
	}
	info, err := f.Stat()
	if err == nil && info.Mode() != a.mode { // setgid of a group that is not the user's goes without an error
		err = fmt.Errorf("its mode, %v, cannot be kept; only root can do that", a.mode)
	}
	return err
}

func (a attributes) extend(f *os.File) error {
	has, err := extendedOf(f)
	if err != nil {
		return err
	}
	for name, value := range a.extended {
		if now, there := has[name]; there && bytes.Equal(now, value) {
			continue
		}
		if err := unix.Fsetxattr(int(f.Fd()), name, value, 0); err != nil {
			return fmt.Errorf("its extended attribute %s cannot be kept: %w", name, err)
		}
	}
	for name := range has { // an ACL that the directory gives to new files would permit more
		if _, wanted := a.extended[name]; wanted || strings.HasPrefix(name, "security.") {
			continue
		}
		if err := unix.Fremovexattr(int(f.Fd()), name); err != nil {
			return fmt.Errorf("the extended attribute %s of new files in its directory cannot be removed: %w", name, err)
		}
	}
	return nil
}
