package netns

import (
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"strings"
)

// All opens every network namespace that a process is in or holds by a file
// descriptor, or that is mounted where ip-netns(8) or process 1 see it, each
// once. The caller closes the handles; on an error there are none.
func All() ([]*Handle, error) {
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil || len(processes) == 0 {
		return nil, fmt.Errorf("list network namespaces: no processes in /proc (%v)", err)
	}
	found := finder{seen: map[uint64]bool{}}
	for _, p := range processes {
		found.add(p+"/ns/net", "pid "+filepath.Base(p))
		found.held(p)
	}
	found.mounted("/proc/self")
	found.mounted("/proc/1")
	return found.all, nil
}

// finder collects namespaces. What cannot be opened is gone since, or not ours.
type finder struct {
	seen map[uint64]bool
	all  []*Handle
}

func (f *finder) add(path, name string) {
	h, err := open(path, name)
	if err != nil {
		return
	}
	if f.seen[h.inode] {
		h.Close()
		return
	}
	f.seen[h.inode] = true
	f.all = append(f.all, h)
}

// held adds the namespaces that a process holds by file descriptors, which read
// "net:[inode]".
func (f *finder) held(process string) {
	dir := process + "/fd"
	fds, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, fd := range fds {
		path := filepath.Join(dir, fd.Name())
		if target, err := os.Readlink(path); err == nil && strings.HasPrefix(target, "net:[") {
			f.add(path, "held by pid "+filepath.Base(process))
		}
	}
}

// mounted adds the namespaces that are kept by a mount, as `ip netns add` does
// (proc_pid_mountinfo(5): the fourth field is the root, the fifth the place).
func (f *finder) mounted(process string) {
	text, err := os.ReadFile(process + "/mountinfo")
	if err != nil {
		return
	}
	for place := range mountPlaces(string(text)) {
		f.add(process+"/root"+place, filepath.Base(place))
	}
}

// mountPlaces are where a mountinfo says that network namespaces are mounted.
func mountPlaces(text string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for line := range strings.Lines(text) {
			fields := strings.Fields(line)
			if len(fields) > 4 && strings.HasPrefix(fields[3], "net:[") && !yield(fields[4]) {
				return
			}
		}
	}
}

// CloseAll closes handles.
func CloseAll(handles []*Handle) {
	for _, h := range handles {
		h.Close()
	}
}
