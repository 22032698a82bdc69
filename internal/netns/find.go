//go:build linux

package netns

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Found is a network namespace that was found and not opened.
type Found struct {
	Inode uint64
	// Name is that of 'ip netns list'. PID is a process, or a thread of one, in it. Path is
	// another place where it can be opened: a mount, or a descriptor of a process. Each may be
	// missing.
	Name string
	PID  int
	Path string
}

// Find lists the namespaces of All, each once, without opening any. cut is true where the time was over
// before all processes and mounts were searched. Those that only a thread is in, or a descriptor
// keeps, are few and take longest to find: they come last, as far as there is time. missed is why
// something could not be read, and others may be there.
func Find(until time.Time) (found []Found, cut bool, missed error) {
	s := &search{until: until}
	at := map[uint64]int{}
	take := func(p place) bool {
		i, known := at[p.inode]
		if !known {
			i = len(found)
			at[p.inode] = i
			found = append(found, Found{Inode: p.inode})
		}
		found[i].add(p)
		return true
	}
	seen := map[string]bool{}
	mounts := func(task string) []place { return s.mounts(task, seen) }
	processes := s.numbers("/proc")
	if !s.walk([]string{self}, mounts, take) || !s.walk(processes, s.own, take) || !s.walk(processes, mounts, take) {
		return found, true, s.missed
	}
	threads := s.threads(processes)
	_ = s.walk(threads, s.own, take) && s.walk(processes, s.held, take) &&
		s.walk(threads, s.heldApart, take) && s.walk(threads, mounts, take)
	return found, false, s.missed
}

const self = "/proc/self"

// add notes a place of the namespace, unless one of its kind is known. The first process in it is
// most likely the one that it was made for.
func (f *Found) add(p place) {
	task, in := strings.CutSuffix(p.path, "/ns/net")
	here, ours := strings.CutPrefix(p.path, self+"/root")
	switch {
	case in && f.PID == 0:
		f.PID, _ = strconv.Atoi(filepath.Base(task))
	case in:
	case ours && slices.Contains(namedDirs, filepath.Dir(here)) && f.Name == "":
		f.Name = filepath.Base(here)
	case ours && f.Path == "":
		f.Path = here
	case !ours && f.Path == "":
		f.Path = p.path
	}
}

// Open opens the namespace, if it is there still: the error is fs.ErrNotExist otherwise.
func (f Found) Open() (h *Handle, err error) {
	err = gone(fmt.Sprintf("network namespace %d is gone", f.Inode))
	for _, open := range []struct {
		known bool
		by    func() (*Handle, error)
	}{
		{f.Name != "", func() (*Handle, error) { return Named(f.Name) }},
		{f.PID != 0, func() (*Handle, error) { return OfPID(f.PID) }},
		{f.Path != "", func() (*Handle, error) { return At(f.Path, f.Path) }},
	} {
		if !open.known {
			continue
		}
		h, openErr := open.by()
		if openErr == nil && h.inode == f.Inode {
			return h, nil
		}
		h.Close()
		reused := errors.Is(openErr, errOther) && descriptor.MatchString(f.Path) // it was closed, and its number is another file's
		if openErr != nil && !reused {
			err = openErr
		}
	}
	return nil, err
}

// descriptor is the path of a file descriptor of a process.
var descriptor = regexp.MustCompile(`^/proc/\d+/fd/\d+$`)

// OfHost reports whether the calling thread is in the network namespace of the first process that
// is seen here, such as the host's: who works there works for all of the others. Where that process may not be
// looked at (a security module, hidepid, no CAP_SYS_PTRACE) the initial namespace is the host's; of another one
// the error is why it is not known.
func OfHost() (bool, error) {
	first, err := os.Readlink("/proc/1/ns/net")
	if err != nil {
		return ofHost(err, onlyInitial)
	}
	own, err := os.Readlink("/proc/thread-self/ns/net")
	return err == nil && first == own, err
}

// onlyInitial is there in the initial namespace alone (neigh_table_init).
const onlyInitial = "/proc/thread-self/net/stat/arp_cache"

// ofHost is true in the initial namespace.
func ofHost(refused error, sign string) (bool, error) {
	if _, err := os.Stat(sign); err == nil {
		return true, nil
	}
	return false, fmt.Errorf("find out whether this is the host's network namespace: %w", Denied(refused, Ptrace))
}
