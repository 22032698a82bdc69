//go:build linux

package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// All opens every network namespace that a process is in or holds by a file
// descriptor, or that is mounted where a process sees it, each once. What cannot be
// opened is left out. Those of 'ip netns list' come first, by their names. The caller
// closes the handles; on an error there are none.
func All() ([]*Handle, error) {
	var all []*Handle
	_, err := each(func(h *Handle) error { all = append(all, h); return nil })
	return all, err
}

// Each calls fn with every namespace of All, one after the other, and closes it. The
// error is that of fn, or why others could not be opened.
func Each(fn func(*Handle) error) error {
	missed, err := each(func(h *Handle) error {
		defer h.Close()
		return fn(h)
	})
	return errors.Join(err, missed)
}

// each hands over every namespace once. missed is why one could not be opened.
func each(fn func(*Handle) error) (missed, err error) {
	s, opening := &search{}, &search{}
	seen := map[uint64]bool{}
	take := func(h *Handle) error {
		if seen[h.inode] { // it has two names, or is another one by now
			return h.Close()
		}
		seen[h.inode] = true
		return fn(h)
	}
	for _, name := range Names() { // which people gave
		if h, err := Named(name); err == nil {
			if err := take(h); err != nil {
				return nil, err
			}
		}
	}
	for p := range s.places() {
		if seen[p.inode] {
			continue
		}
		h, err := open(p.path, p.name)
		if opening.note(err); err != nil {
			continue
		}
		if err := take(h); err != nil {
			return nil, err
		}
	}
	if len(seen) == 0 {
		return nil, fmt.Errorf("list network namespaces: none found in /proc: %w", errors.Join(s.missed, opening.missed))
	}
	return opening.missed, nil
}

// place is where a namespace can be opened.
type place struct {
	path, name string
	inode      uint64
}

// search finds namespaces. missed is the first reason why something could not be read:
// what was not found may exist all the same.
type search struct {
	missed error
	// until is when it ends, if that is set.
	until time.Time
}

// note records an error, unless it means that the thing ended meanwhile.
func (s *search) note(err error) {
	if s.missed == nil && err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ESRCH) && !ofFirst(err, onlyInitial) {
		s.missed = err
	}
}

// ofFirst reports whether an error is that the first process may not be looked at, as a security module may
// keep even root from, where that hides nothing: it is in the initial namespace, as this thread is, and others
// that it holds have processes of their own (units of systemd).
func ofFirst(err error, sign string) bool {
	var at *fs.PathError
	if !errors.As(err, &at) || !strings.HasPrefix(at.Path, "/proc/1/") || !errors.Is(err, fs.ErrPermission) {
		return false
	}
	_, err = os.Stat(sign)
	return err == nil
}

// places returns the paths of namespaces, without opening them: first those that a process is
// in, then those that another thread of one is in, then those that one holds, then those
// that are mounted.
// Each is looked for when the ones before it have been taken, so that they have changed
// little.
func (s *search) places() iter.Seq[place] {
	return func(yield func(place) bool) {
		seen := map[string]bool{}
		mounts := func(task string) []place { return s.mounts(task, seen) }
		processes := s.numbers("/proc")
		if !s.walk(processes, s.own, yield) {
			return
		}
		threads := s.threads(processes)
		_ = s.walk(threads, s.own, yield) && s.walk(processes, s.held, yield) && s.walk(threads, s.heldApart, yield) &&
			s.walk(processes, mounts, yield) && s.walk(threads, mounts, yield)
	}
}

// walk yields the places that a step finds of each task, until yield returns false or the time is over.
func (s *search) walk(tasks []string, step func(task string) []place, yield func(place) bool) bool {
	for _, t := range tasks {
		if s.late() {
			return false
		}
		for _, p := range step(t) {
			if !yield(p) {
				return false
			}
		}
	}
	return true
}

// late reports whether the time of the search is over.
func (s *search) late() bool { return !s.until.IsZero() && time.Now().After(s.until) }

// own is the namespace that a task is in.
func (s *search) own(task string) []place {
	at, _ := s.at(task+"/ns/net", "pid "+filepath.Base(task))
	return at
}

// at is the place of a path, if it leads to a network namespace.
func (s *search) at(path, name string) ([]place, error) {
	inode, err := s.link(path)
	if inode == 0 {
		return nil, err
	}
	return []place{{path, name, inode}}, nil
}

// numbers are the entries of a directory whose names are numbers, as those of tasks.
func (s *search) numbers(dir string) (paths []string) {
	entries, err := os.ReadDir(dir)
	s.note(err)
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err == nil {
			paths = append(paths, filepath.Join(dir, e.Name()))
		}
	}
	return paths
}

// threads are those of the processes besides their leaders: they may be in other
// namespaces, and live on where the leader has ended.
func (s *search) threads(processes []string) (threads []string) {
	for _, p := range processes {
		if s.late() {
			break
		}
		for _, t := range s.numbers(p + "/task") {
			if filepath.Base(t) != filepath.Base(p) {
				threads = append(threads, t)
			}
		}
	}
	return threads
}

// held are the namespaces that a task holds by file descriptors.
func (s *search) held(task string) (all []place) {
	dir := task + "/fd"
	fds, err := os.ReadDir(dir)
	s.note(err)
	for _, fd := range fds {
		at, err := s.at(filepath.Join(dir, fd.Name()), "held by pid "+filepath.Base(task))
		if errors.Is(err, fs.ErrPermission) { // the task's others are denied as well
			break
		}
		all = append(all, at...)
	}
	return all
}

// heldApart are those that a thread holds whose descriptors are not its leader's.
func (s *search) heldApart(thread string) []place {
	if sharesFiles(thread) {
		return nil
	}
	return s.held(thread)
}

// sharesFiles reports whether a thread has its leader's descriptors; false also where the
// kernel does not say (CONFIG_KCMP), and where the leader has ended.
func sharesFiles(thread string) bool {
	tid, _ := strconv.Atoi(filepath.Base(thread))
	leader, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(thread))))
	differs, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(leader), uintptr(tid), kcmpFiles, 0, 0, 0)
	return errno == 0 && differs == 0
}

const kcmpFiles = 2 // KCMP_FILES (include/uapi/linux/kcmp.h)

// link is the inode in a link that reads "net:[inode]"; 0 for others. The error is noted.
func (s *search) link(path string) (inode uint64, err error) {
	target, err := os.Readlink(path)
	s.note(err)
	if target == "/" {
		return s.detached(path), nil
	}
	return inodeIn(target), err
}

// detached is the inode behind a descriptor that was opened by way of a mount which is no
// more: that of a network namespace, or 0.
func (s *search) detached(path string) uint64 {
	var here, there unix.Statx_t
	err := errors.Join(unix.Statx(unix.AT_FDCWD, "/proc/self/ns/net", 0, unix.STATX_INO, &here),
		unix.Statx(unix.AT_FDCWD, path, unix.AT_STATX_DONT_SYNC, unix.STATX_INO, &there))
	if err != nil || there.Dev_major != here.Dev_major || there.Dev_minor != here.Dev_minor {
		s.note(err)
		return 0
	}
	h, err := open(path, "")
	if errors.Is(err, errOther) { // another kind of namespace
		return 0
	}
	s.note(err)
	defer h.Close()
	if err != nil {
		return there.Ino
	}
	return h.inode
}

func inodeIn(text string) uint64 {
	number, ok := strings.CutPrefix(text, "net:[")
	if !ok {
		return 0
	}
	inode, _ := strconv.ParseUint(strings.TrimSuffix(number, "]"), 10, 64)
	return inode
}

// mounts are the namespaces that are kept by a mount, as `ip netns add` does, in the
// mount namespace of a task; of several tasks in one, for the first.
func (s *search) mounts(task string, seen map[string]bool) (all []place) {
	namespace, err := os.Readlink(task + "/ns/mnt")
	s.note(err)
	if err != nil || seen[namespace] {
		return nil
	}
	text, ok := s.mountinfo(task)
	seen[namespace] = ok
	for _, m := range mountPlaces(text) {
		m.path = task + "/root" + m.path
		all = append(all, m)
	}
	return all
}

// mountinfo returns a task's mountinfo; ok is false where it cannot be read or the task
// ends, for which the kernel returns EINVAL.
func (s *search) mountinfo(task string) (text string, ok bool) {
	b, err := os.ReadFile(task + "/mountinfo")
	if !errors.Is(err, unix.EINVAL) {
		s.note(err)
	}
	return string(b), err == nil
}

// mountPlaces returns the mount points of network namespaces in a mountinfo
// (proc_pid_mountinfo(5): the fourth field is the root, the fifth the place).
func mountPlaces(text string) (all []place) {
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); len(fields) > 4 && inodeIn(fields[3]) != 0 {
			at := unescape(fields[4])
			all = append(all, place{at, filepath.Base(at), inodeIn(fields[3])})
		}
	}
	return all
}

// unescape reads a path of mountinfo, in which \040 is a blank.
func unescape(path string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(path)
}

// CloseAll closes handles.
func CloseAll(handles []*Handle) {
	for _, h := range handles {
		h.Close()
	}
}
