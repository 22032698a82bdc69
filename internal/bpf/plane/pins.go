package plane

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/disk"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/permit"
)

// systemRoot is where systemd mounts a bpf file system, of which systemPart is natkit's. At ownRoot natkit mounts one
// where there is none, and its service has its part of the system's.
const (
	systemRoot = "/sys/fs/bpf"
	systemPart = "natkit"
	ownRoot    = "/run/natkit/bpf"
	// changeLock is held by who pins, or removes pins.
	changeLock = "/run/natkit/bpf.lock"
)

// Pins are what is attached in one network namespace, as files of a bpf file system, by which it stays attached when
// natkit has ended: a link for each hook ("in-7" is the way in of interface 7), and in a directory with a number for each
// Load its programs and those of its maps that are read again.
type Pins struct{ name string }

// PinsOf are those of a name.
func PinsOf(name string) Pins { return Pins{name} }

// PinsIn returns the pins of a network namespace; nil is the one that the thread is in.
func PinsIn(ns *netns.Handle) (Pins, error) {
	id, err := netns.IDOf(ns)
	return PinsOf(NameOf(id)), err
}

// NameOf is the name of a network namespace's pins.
func NameOf(id netns.ID) string { return fmt.Sprintf("netns-%d-%d", id.Inode, id.Cookie) }

// Dir is the directory where they lie, or will lie.
func (p Pins) Dir() string {
	s, err := p.open(false)
	if err != nil {
		return filepath.Join(ownRoot, p.name)
	}
	defer s.close()
	return s.path
}

// shelf is the directory of pins.
type shelf struct {
	// root is the directory of the bpf file system that dir is in; both are empty where none is mounted.
	root, dir string
	// held keeps root, which is its descriptor, where the mounts of this process are not those that last.
	held *os.File
	// path is dir for people.
	path string
}

func shelfIn(root, name string) *shelf {
	dir := filepath.Join(root, name)
	return &shelf{root: root, dir: dir, path: dir}
}

// open finds the directory, which need not be there; with mount also where no bpf file system is mounted yet.
func (p Pins) open(mount bool) (s *shelf, err error) {
	if root := mounted(); root != "" {
		return shelfIn(root, p.name), nil
	}
	s = &shelf{path: filepath.Join(ownRoot, p.name)}
	err = amongLastingMounts(func(others bool) (err error) {
		root := mounted()
		if root == "" && mount {
			root, err = ownRoot, mountOwn()
		}
		if root == "" || err != nil {
			return err
		}
		s = shelfIn(root, p.name)
		if others {
			err = s.hold(p.name)
		}
		return err
	})
	if !mount && errors.Is(err, fs.ErrPermission) {
		return s, nil // nothing there can be this user's
	}
	return s, err
}

// alone runs fn while no other natkit pins or removes pins, in any network namespace: they share the file system, which the
// first one mounts and the last one unmounts. A service whose /run is not its own shares the system's, which stays mounted.
func alone(fn func() error) error {
	if err := permit.Change("change pinned eBPF programs"); err != nil {
		return err
	}
	var lock *os.File
	err := os.MkdirAll(filepath.Dir(changeLock), 0o700)
	if err == nil {
		lock, err = disk.WaitLock(changeLock)
	}
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS) {
		return fn()
	}
	if err != nil {
		return fmt.Errorf("lock the pinned programs: %w", disk.Cause(err))
	}
	defer lock.Close()
	defer os.Remove(changeLock)
	return fn()
}

// close lets go of it.
func (s *shelf) close() {
	if s.held != nil {
		s.held.Close()
	}
}

// hold makes the pins reachable by a descriptor, from where their root is not mounted.
func (s *shelf) hold(name string) error {
	above, part := s.root, "."
	if s.root == filepath.Join(systemRoot, systemPart) { // need not be there yet
		above, part = systemRoot, systemPart
	}
	fd, err := unix.Open(above, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", above, err)
	}
	s.held = os.NewFile(uintptr(fd), above)
	s.root = filepath.Join("/proc/self/fd", strconv.Itoa(fd), part)
	s.dir = filepath.Join(s.root, name)
	return nil
}

// mounted returns natkit's directory of the bpf file system that is mounted. Its own one comes first: what is pinned there
// has to be found also when the system's is mounted later.
func mounted() string {
	switch {
	case isBPF(ownRoot):
		return ownRoot
	case isBPF(systemRoot):
		return filepath.Join(systemRoot, systemPart)
	}
	return ""
}

func isBPF(dir string) bool {
	var s unix.Statfs_t
	return unix.Statfs(dir, &s) == nil && s.Type == unix.BPF_FS_MAGIC
}

func mountOwn() error {
	if err := permit.Change("mount a bpf file system"); err != nil {
		return err
	}
	if err := os.MkdirAll(ownRoot, 0o700); err != nil {
		return fmt.Errorf("make a directory for a bpf file system: %w", netns.Denied(err, netns.WriteAll))
	}
	if err := unix.Mount("bpf", ownRoot, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=700"); err != nil {
		_ = os.Remove(ownRoot)
		return fmt.Errorf("mount a bpf file system at %s: %w", ownRoot, netns.Denied(err, netns.SysAdmin))
	}
	return nil
}

// leave removes the directory of all pins where nothing is in it, and natkit's own file system.
func (s *shelf) leave() {
	if filepath.Dir(s.path) == ownRoot {
		s.close() // it is not busy
		_ = amongLastingMounts(func(bool) error { return unmountOwn() })
		return
	}
	var is unix.Stat_t
	if unix.Stat(s.root, &is) == nil && int(is.Uid) == os.Geteuid() { // that of a service stays
		_ = os.Remove(s.root)
	}
}

// handOver gives what root has made to the service that has the file system, if there is one.
func (s *shelf) handOver() {
	var is unix.Stat_t
	if unix.Stat(s.root, &is) != nil || int(is.Uid) == os.Geteuid() {
		return
	}
	_ = filepath.WalkDir(s.dir, func(path string, _ fs.DirEntry, err error) error {
		if err == nil {
			err = os.Lchown(path, int(is.Uid), int(is.Gid))
		}
		return err
	})
}

// unmountOwn fails where another natkit has pinned something meanwhile.
func unmountOwn() error {
	all, err := os.ReadDir(ownRoot)
	if err != nil || !isBPF(ownRoot) || slices.ContainsFunc(all, fs.DirEntry.IsDir) { // progs.debug is the kernel's
		return err
	}
	if err := unix.Unmount(ownRoot, unix.UMOUNT_NOFOLLOW); err != nil {
		return err
	}
	return os.Remove(ownRoot)
}

// amongLastingMounts runs fn where mounts stay when this process ends: in the mount namespace of process 1. What 'ip netns
// exec' starts, and a service, has another one; others reports that fn runs among others than this process's.
func amongLastingMounts(fn func(others bool) error) error {
	const lasting = "/proc/1/ns/mnt"
	its, err := os.Readlink(lasting)
	own, ownErr := os.Readlink("/proc/thread-self/ns/mnt")
	if err != nil || ownErr != nil || its == own {
		return fn(false) // what cannot be read cannot be entered
	}
	return netns.OnThread(func() error {
		ns, err := os.Open(lasting)
		if err == nil {
			defer ns.Close()
			err = unix.Unshare(unix.CLONE_FS)
		}
		if err == nil {
			err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS)
		}
		if err != nil {
			return fmt.Errorf("enter the mounts of process 1: %w", netns.Denied(err, netns.SysAdmin))
		}
		return fn(true)
	})
}

func (s *shelf) at(names ...string) string {
	return filepath.Join(append([]string{s.dir}, names...)...)
}

// list returns the names of the links, and the numbers of what was loaded.
func (s *shelf) list() (links []string, loads []int, err error) {
	if s.dir == "" {
		return nil, nil, nil
	}
	all, err := os.ReadDir(s.dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) { // systemd's file system is root's alone
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("list pinned programs: %w", err)
	}
	for _, e := range all {
		if !e.IsDir() {
			links = append(links, e.Name())
		} else if n, err := strconv.Atoi(e.Name()); err == nil {
			loads = append(loads, n)
		}
	}
	slices.Sort(loads)
	return links, loads, nil
}
