package drops

import (
	"net"
	"time"

	"github.com/natkit/natkit/internal/netns"
)

// interfaces finds interfaces' names, asking each namespace once. Its handles keep
// namespaces alive: it is for one look.
type interfaces struct {
	handles []*netns.Handle
	listed  bool
	known   map[uint32]map[uint32]string
}

func newInterfaces() *interfaces { return &interfaces{known: map[uint32]map[uint32]string{}} }

func (i *interfaces) close() { netns.CloseAll(i.handles) }

// name is empty where the namespace or the interface is gone, or there was none.
func (i *interfaces) name(inode, index uint32) string {
	if index == 0 || inode == 0 {
		return ""
	}
	if _, ok := i.known[inode]; !ok {
		i.known[inode] = i.read(inode)
	}
	return i.known[inode][index]
}

func (i *interfaces) read(inode uint32) map[uint32]string {
	if !i.listed {
		i.listed = true
		i.handles, _ = netns.All()
	}
	for _, h := range i.handles {
		if uint32(h.Inode()) == inode {
			return linkNames(h)
		}
	}
	return nil
}

// linkNames are the names of a namespace's interfaces by their index.
func linkNames(ns *netns.Handle) map[uint32]string {
	names := map[uint32]string{}
	err := ns.Do(func() error {
		links, err := net.Interfaces()
		for _, l := range links {
			names[uint32(l.Index)] = l.Name
		}
		return err
	})
	if err != nil {
		return nil // gone in the meantime
	}
	return names
}

// device is an interface of a namespace.
type device struct{ inode, index uint32 }

// lasting is interfaces over time, without handles: those that come later are found,
// though not asked for more than once a second, which is also how long one that was
// renamed keeps its name.
type lasting struct {
	names  map[device]string
	looked time.Time
}

const linksAge = time.Second

func (l *lasting) name(inode, index uint32) string {
	if index == 0 || inode == 0 {
		return ""
	}
	if time.Since(l.looked) > linksAge {
		l.names, l.looked = map[device]string{}, time.Now()
	}
	name, ok := l.names[device{inode, index}]
	if !ok {
		name = l.look(inode)[index]
		l.names[device{inode, index}] = name
	}
	return name
}

// look opens the namespace for a moment.
func (l *lasting) look(inode uint32) map[uint32]string {
	i := newInterfaces()
	defer i.close()
	names := i.read(inode)
	for index, name := range names {
		l.names[device{inode, index}] = name
	}
	return names
}
