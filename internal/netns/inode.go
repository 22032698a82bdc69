//go:build linux

package netns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// ID identifies a network namespace.
type ID struct {
	// Inode is given to another one as soon as the namespace is gone.
	Inode uint64
	// Cookie is no other's before the next boot; 0 where it is not known (before
	// Linux 5.14).
	Cookie uint64
	// SeenFrom is the PID namespace (inode) of who noted this, and through whose
	// processes the namespace can be found; 0 where it is not known.
	SeenFrom uint64
}

// Is reports whether both are the same, as far as their cookies are known.
func (id ID) Is(other ID) bool {
	return id.Inode == other.Inode && (id.Cookie == 0 || other.Cookie == 0 || id.Cookie == other.Cookie)
}

// IDOf identifies ns; of nil, which stands for the calling thread's as wherever a
// socket is opened, that.
func IDOf(ns *Handle) (id ID, err error) {
	here, err := ofThread("")
	if err != nil {
		return ID{}, err
	}
	defer here.Close()
	if ns == nil || ns.inode == here.inode { // which takes no right to enter
		id.Inode = here.inode
		id.Cookie, err = cookie()
		return id, err
	}
	id.Inode = ns.inode
	err = ns.Do(func() error { id.Cookie, err = cookie(); return err })
	return id, err
}

// InodeOf is the inode of ns; of nil, which stands for the calling thread's, that.
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

// cookie returns a number that no other namespace of this boot has, of the calling
// thread's; 0 where the kernel has none (SO_NETNS_COOKIE, Linux 5.14).
func cookie() (uint64, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("identify the network namespace: %w", err)
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if errors.Is(err, unix.ENOPROTOOPT) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("identify the network namespace: %w", err)
	}
	return cookie, nil
}

// OfInode is Open where only the inode is known.
func OfInode(inode uint64) (*Handle, error) { return Open(ID{Inode: inode}) }

// Open is the namespace of that identity: the calling thread's, or one that a process is
// in, holds or has mounted. It stays that one until Close. The error is fs.ErrNotExist
// only where there is none any more, and not where that is unknown. From Linux 6.18 on
// one with a cookie is found also where only a socket or a descriptor on its way keeps it;
// before, such a one cannot be seen. To find another than the thread's own needs
// CAP_SYS_ADMIN and CAP_SYS_PTRACE.
func Open(id ID) (*Handle, error) {
	here, err := ofThread("")
	if err != nil {
		return nil, err
	}
	if here.inode == id.Inode {
		return here.checked(id)
	}
	here.Close()
	err = CheckPrivilege(
		Need{Any: []int{unix.CAP_SYS_ADMIN}, Why: fmt.Sprintf("to enter network namespace %d", id.Inode)},
		Need{Any: []int{unix.CAP_SYS_PTRACE}, Why: "to find it"})
	if err != nil {
		return nil, err
	}
	if id.Cookie != 0 {
		if h, err := byHandle(id); err == nil || errors.Is(err, fs.ErrNotExist) && opensAll() {
			return h, err
		}
	}
	s := &search{}
	for range 2 { // a process listed may have ended, and its child begun after the listing
		if h := s.find(id.Inode); h != nil {
			return h.checked(id)
		}
	}
	return nil, id.missing(s.missed)
}

// find opens the namespace of that inode in the first place where it is; nil where it is
// not found.
func (s *search) find(inode uint64) *Handle {
	for p := range s.places() {
		if p.inode != inode {
			continue
		}
		h, err := open(p.path, p.name)
		s.note(err)
		if err == nil && h.inode == inode {
			return h
		}
		h.Close()
	}
	return nil
}

const (
	nsfsRoot       = -10003 // FD_NSFS_ROOT (include/uapi/linux/fcntl.h)
	nsfsHandleType = 0xf1   // FILEID_NSFS (include/linux/exportfs.h)
)

// byHandle asks the kernel for the namespace, which Linux answers from 6.18 on: its
// number among all namespaces is the cookie (struct nsfs_file_handle,
// include/uapi/linux/nsfs.h). fs.ErrNotExist is certain where opensAll; after other errors
// it has to be searched for.
func byHandle(id ID) (*Handle, error) {
	b := binary.NativeEndian.AppendUint64(nil, id.Cookie)
	b = binary.NativeEndian.AppendUint32(b, unix.CLONE_NEWNET)
	b = binary.NativeEndian.AppendUint32(b, uint32(id.Inode))
	name := fmt.Sprintf("netns %d", id.Inode)
	fd, err := unix.OpenByHandleAt(nsfsRoot, unix.NewFileHandle(nsfsHandleType, b), unix.O_RDONLY|unix.O_CLOEXEC)
	if errors.Is(err, unix.ESTALE) {
		return nil, gone(fmt.Sprintf("network namespace %d is gone", id.Inode))
	}
	if err != nil {
		return nil, err
	}
	h := &Handle{file: os.NewFile(uintptr(fd), name), name: name}
	if err := h.identify(); err != nil {
		h.Close()
		return nil, err
	}
	return h, nil
}

// Certain refuses the namespace that Open found where only a number was noted, as
// earlier versions did, though the kernel has a cookie: the number may be
// another's by now.
func (id ID) Certain(h *Handle) error {
	if id.Cookie != 0 {
		return nil
	}
	have, err := IDOf(h)
	if err == nil && have.Cookie != 0 {
		err = errUncertain
	}
	return err
}

var errUncertain = errors.New("an older natkit noted only the number of its network namespace, which may be another's by now")

// initialUserNamespace is the inode that the first user namespace always has
// (PROC_USER_INIT_INO, include/linux/proc_ns.h).
const initialUserNamespace = "user:[4026531837]"

// opensAll reports whether root may open every namespace by its handle. Elsewhere the
// kernel also returns ESTALE for what may not be opened (do_handle_to_path, fs/fhandle.c).
func opensAll() bool {
	user, err := os.Readlink("/proc/self/ns/user")
	return err == nil && user == initialUserNamespace && SeesAll()
}

// checked is h, if it is the one of that identity.
func (h *Handle) checked(id ID) (*Handle, error) {
	if id.Cookie == 0 {
		return h, nil
	}
	have, err := IDOf(h)
	switch {
	case err == nil && have.Cookie == id.Cookie:
		return h, nil
	case err == nil && have.Cookie == 0:
		err = errors.New("this kernel does not report whether it is still the same one")
	case err == nil:
		err = gone(fmt.Sprintf("network namespace %d is gone, and another one has its number", id.Inode))
	}
	h.Close()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return nil, fmt.Errorf("network namespace %d: %w", id.Inode, err)
}

// initialPIDNamespace is the inode that the first PID namespace always has
// (PROC_PID_INIT_INO, include/linux/proc_ns.h).
const initialPIDNamespace = "pid:[4026531836]"

func pidNamespace() (string, error) { return os.Readlink("/proc/self/ns/pid") }

// SeesAll reports whether the processes of all PID namespaces can be seen from this one.
// Where they cannot, a namespace that All does not find may be there all the same.
func SeesAll() bool {
	here, err := pidNamespace()
	return err == nil && here == initialPIDNamespace
}

// missing is why a namespace was not found.
func (id ID) missing(missed error) error {
	here, err := pidNamespace()
	if missed = errors.Join(missed, err); missed != nil {
		return fmt.Errorf("open network namespace %d: it may still exist, as not all processes could be searched: %w", id.Inode, missed)
	}
	if id.SeenFrom != 0 && here != initialPIDNamespace && here != fmt.Sprintf("pid:[%d]", id.SeenFrom) {
		return fmt.Errorf("open network namespace %d: it cannot be seen from this PID namespace; run natkit on the host", id.Inode)
	}
	return gone(fmt.Sprintf("network namespace %d is gone", id.Inode))
}

// gone is fs.ErrNotExist in other words.
type gone string

func (g gone) Error() string        { return string(g) }
func (g gone) Is(target error) bool { return target == fs.ErrNotExist }
