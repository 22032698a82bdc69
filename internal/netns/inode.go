package netns

import (
	"fmt"
	"io/fs"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/privilege"
)

// InodeOf is the inode of ns; of nil, which stands for the calling thread's as
// wherever a socket is opened, that.
func InodeOf(ns *Handle) (uint64, error) {
	if ns != nil {
		return ns.Inode(), nil
	}
	here, err := ofThread("")
	if err != nil {
		return 0, err
	}
	defer here.Close()
	return here.Inode(), nil
}

// OfInode is the namespace with that inode: the calling thread's, or one that a
// process is in, holds or has mounted. Where there is none the error is
// fs.ErrNotExist. To look for another than the thread's own needs CAP_SYS_ADMIN and
// CAP_SYS_PTRACE.
func OfInode(inode uint64) (*Handle, error) {
	here, err := ofThread("")
	if err != nil {
		return nil, err
	}
	if here.Inode() == inode {
		return here, nil
	}
	here.Close()
	err = privilege.Check(
		privilege.Need{Any: []int{unix.CAP_SYS_ADMIN}, Why: fmt.Sprintf("to enter network namespace %d", inode)},
		privilege.Need{Any: []int{unix.CAP_SYS_PTRACE}, Why: "to find it"})
	if err != nil {
		return nil, err
	}
	all, err := All()
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(all, func(h *Handle) bool { return h.Inode() == inode })
	for j, h := range all {
		if j != i {
			h.Close()
		}
	}
	if i < 0 {
		return nil, fmt.Errorf("open network namespace %d: %w: it is gone", inode, fs.ErrNotExist)
	}
	return all[i], nil
}
