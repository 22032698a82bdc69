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

	"golang.org/x/sys/unix"
)

// All opens every network namespace that a process is in or holds by a file
// descriptor, or that is mounted where a process sees it, each once. What cannot be
// opened is left out. The caller closes the handles; on an error there are none.
func All() ([]*Handle, error) {
	var all []*Handle
	_, err := each(func(h *Handle) error { all = append(all, h); return nil })
	return all, err
}

// Each calls fn with every namespace of All, one after the other, and closes it. The
// error is that of fn, or tells that there are others, which could not be opened.
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
	for p := range s.places() {
		if seen[p.inode] {
			continue
		}
		h, err := open(p.path, p.name)
		opening.note(err)
		if err != nil {
			continue
		}
		if seen[h.inode] { // another one by now
			h.Close()
			continue
		}
		seen[h.inode] = true
		if err := fn(h); err != nil {
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

// search looks for namespaces. missed is the first reason why something could not be
// looked at: what was not found may be there all the same.
type search struct{ missed error }

// note remembers an error, unless it says that the thing ended meanwhile.
func (s *search) note(err error) {
	if s.missed == nil && err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ESRCH) {
		s.missed = err
	}
}

// places are where namespaces are, without opening them: first those that a process is
// in, then those that one holds, then those that are mounted.
func (s *search) places() iter.Seq[place] {
	return func(yield func(place) bool) {
		processes, err := filepath.Glob("/proc/[0-9]*")
		s.note(err)
		for _, steps := range []func(process string) iter.Seq[place]{s.own, s.held, s.mounts()} {
			for _, p := range processes {
				for found := range steps(p) {
					if !yield(found) {
						return
					}
				}
			}
		}
	}
}

func (s *search) own(process string) iter.Seq[place] {
	return func(yield func(place) bool) {
		path := process + "/ns/net"
		if inode := s.link(path); inode != 0 {
			yield(place{path, "pid " + filepath.Base(process), inode})
		}
	}
}

// held are the namespaces that a process holds by file descriptors.
func (s *search) held(process string) iter.Seq[place] {
	return func(yield func(place) bool) {
		dir := process + "/fd"
		fds, err := os.ReadDir(dir)
		s.note(err)
		for _, fd := range fds {
			path := filepath.Join(dir, fd.Name())
			if inode := s.link(path); inode != 0 && !yield(place{path, "held by pid " + filepath.Base(process), inode}) {
				return
			}
		}
	}
}

// link is the inode in a link that reads "net:[inode]"; 0 for others.
func (s *search) link(path string) uint64 {
	target, err := os.Readlink(path)
	s.note(err)
	if target == "/" {
		return s.detached(path)
	}
	return inodeIn(target)
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
// mount namespace of a process; of several processes in one, for the first
// (proc_pid_mountinfo(5): the fourth field is the root, the fifth the place).
func (s *search) mounts() func(process string) iter.Seq[place] {
	seen := map[string]bool{}
	return func(process string) iter.Seq[place] {
		return func(yield func(place) bool) {
			namespace, err := os.Readlink(process + "/ns/mnt")
			s.note(err)
			if err != nil || seen[namespace] {
				return
			}
			text, err := os.ReadFile(process + "/mountinfo")
			s.note(err)
			seen[namespace] = err == nil
			for at, inode := range mountPlaces(string(text)) {
				if !yield(place{process + "/root" + at, filepath.Base(at), inode}) {
					return
				}
			}
		}
	}
}

// mountPlaces are where a mountinfo says that network namespaces are mounted, and their
// inodes.
func mountPlaces(text string) iter.Seq2[string, uint64] {
	return func(yield func(string, uint64) bool) {
		for line := range strings.Lines(text) {
			fields := strings.Fields(line)
			if len(fields) > 4 && inodeIn(fields[3]) != 0 && !yield(unescape(fields[4]), inodeIn(fields[3])) {
				return
			}
		}
	}
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
