package live

import (
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/tui"
)

// listing is the namespaces that can be chosen. Its handles keep them alive: it is
// closed as soon as the choice is made.
type listing struct {
	handles []*netns.Handle
	spaces  []tui.Space
}

// list finds all network namespaces, those with names first.
func list() (*listing, error) {
	handles, err := netns.All()
	if err != nil {
		return nil, err
	}
	l, own := &listing{handles: handles}, ownInode()
	for _, h := range handles {
		s := tui.Space{Inode: h.Inode(), Name: h.Name(), Entries: -1}
		if s.Inode == own && !named(s) {
			s.Name = "natkit's own"
		}
		if u, err := dump.Count(h); err == nil {
			s.Entries = u.Entries
		}
		l.spaces = append(l.spaces, s)
	}
	slices.SortStableFunc(l.spaces, func(a, b tui.Space) int {
		if named(a) != named(b) {
			if named(a) {
				return -1
			}
			return 1
		}
		return 0
	})
	return l, nil
}

// ownInode is that of the namespace natkit runs in, mostly the host's; 0 where that
// cannot be told.
func ownInode() uint64 {
	own, err := netns.Current()
	if err != nil {
		return 0
	}
	defer own.Close()
	return own.Inode()
}

// named tells names of ip-netns(8) from those that netns.All makes of processes.
func named(s tui.Space) bool {
	return !strings.HasPrefix(s.Name, "pid ") && !strings.HasPrefix(s.Name, "held by ")
}

// take is the handle of a namespace, which the caller then owns; nil where it is not
// in the list.
func (l *listing) take(inode uint64) *netns.Handle {
	for i, h := range l.handles {
		if h.Inode() == inode {
			l.handles = slices.Delete(l.handles, i, i+1)
			return h
		}
	}
	return nil
}

func (l *listing) close() {
	if l != nil {
		netns.CloseAll(l.handles)
		l.handles = nil
	}
}
