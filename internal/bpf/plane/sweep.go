package plane

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/cilium/ebpf/link"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/permit"
)

// Sweep removes the pins of network namespaces that are gone: the programs are detached with the interfaces there, but
// pins keep them and their maps in memory. Pins with a link that is attached stay; those without any, which are of filters
// (before Linux 6.6), stay if lives returns true for their name. Removed are the directories.
func Sweep(lives func(name string) bool) (removed []string, err error) {
	if err := permit.Change("detach eBPF programs"); err != nil {
		return nil, err
	}
	err = alone(func() error { removed, err = sweep(lives); return err })
	return removed, err
}

func sweep(lives func(name string) bool) (removed []string, err error) {
	root, err := PinsOf("").open(false)
	if err != nil {
		return nil, err
	}
	defer root.close()
	if root.dir == "" {
		return nil, nil
	}
	all, err := os.ReadDir(root.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list pinned programs: %w", netns.Denied(err, netns.WriteAll))
	}
	var errs []error
	for _, e := range all {
		if !e.IsDir() {
			continue // of the kernel
		}
		dir, err := PinsOf(e.Name()).sweep(lives)
		if errs = append(errs, err); dir != "" {
			removed = append(removed, dir)
		}
	}
	return removed, errors.Join(errs...)
}

// sweep returns the directory if it was removed.
func (p Pins) sweep(lives func(name string) bool) (dir string, err error) {
	s, err := p.open(false)
	if err != nil {
		return "", err
	}
	defer s.close()
	links, _, err := s.list()
	if err != nil || len(links) == 0 && lives(p.name) {
		return "", err
	}
	for _, name := range links {
		if attached, err := s.isAnywhere(name); err != nil || attached {
			return "", err
		}
	}
	if err := os.RemoveAll(s.dir); err != nil {
		return "", fmt.Errorf("remove the directory of pinned programs: %w", netns.Denied(err, netns.WriteAll))
	}
	s.leave()
	return s.path, nil
}

// isAnywhere reports whether a link is attached to an interface of any network namespace: it loses its own with it
// (bpf_xdp_link_fill_link_info in net/core/dev.c, tcx_link_fill_info in kernel/bpf/tcx.c).
func (s *shelf) isAnywhere(name string) (bool, error) {
	l, err := link.LoadPinnedLink(s.at(name), nil)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("open the link that is pinned at %s: %w", s.at(name), netns.Denied(err, netns.BPF))
	}
	defer l.Close()
	info, err := l.Info()
	if err != nil {
		return false, err
	}
	if x := info.XDP(); x != nil {
		return x.Ifindex != 0, nil
	}
	if x := info.TCX(); x != nil {
		return x.Ifindex != 0, nil
	}
	return true, nil
}
