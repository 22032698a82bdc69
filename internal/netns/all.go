package netns

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// All opens every network namespace that a process is in or that ip-netns(8) has
// named, each once. Namespaces held by nothing but a file descriptor are not
// found. The caller closes the handles; on an error there are none.
func All() ([]*Handle, error) {
	procs, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list network namespaces: %w", err)
	}
	seen := map[uint64]bool{}
	var all []*Handle
	add := func(h *Handle, err error) {
		if err != nil { // gone since, or not ours to open
			return
		}
		if seen[h.inode] {
			h.Close()
			return
		}
		seen[h.inode] = true
		all = append(all, h)
	}
	for _, p := range procs {
		if pid, err := strconv.Atoi(p.Name()); err == nil {
			add(OfPID(pid))
		}
	}
	named, err := os.ReadDir("/run/netns")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		CloseAll(all)
		return nil, fmt.Errorf("list network namespaces: %w", err)
	}
	for _, n := range named {
		add(open(filepath.Join("/run/netns", n.Name()), n.Name()))
	}
	return all, nil
}

// CloseAll closes handles.
func CloseAll(handles []*Handle) {
	for _, h := range handles {
		h.Close()
	}
}
