//go:build linux

// Package read reads what a host calls addresses and network namespaces: from files of the kernel, of runtimes of
// containers and of network plugins, from Docker's socket where these cannot be read, and by netlink. It asks no
// name server and sends nothing to a network.
package read

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/natkit/natkit/internal/names"
	"github.com/natkit/natkit/internal/netlink/socket"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// patience bounds a reading: with a thousand containers it takes a quarter of that. searchTime is for finding network
// namespaces: those that processes are in are found first, in some milliseconds, and those that only a descriptor keeps
// have no name.
const (
	patience   = time.Second
	searchTime = 200 * time.Millisecond
)

// Names reads what the host calls addresses, seen from a namespace (nil: the one that natkit runs in). What cannot be
// read in a second is missing.
func Names(ctx context.Context, ns *netns.Handle) *snapshot.Names { return new(Cache).Names(ctx, ns) }

// Cache keeps what was read for a while.
type Cache struct {
	// For is how long. Share, where set, is the part of time that reading may take: what took longer is kept longer.
	For   time.Duration
	Share float64

	mu   sync.Mutex
	host *census
	took time.Duration
	of   *netns.Handle
	at   time.Time
	kept *snapshot.Names
}

// Names are those seen from a namespace. All but the own addresses and the sockets of that is read once for all
// namespaces.
func (c *Cache) Names(ctx context.Context, ns *netns.Handle) *snapshot.Names {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	age := c.For
	if c.Share > 0 {
		age = max(age, time.Duration(float64(c.took)/c.Share))
	}
	if c.kept != nil && c.of == ns && now.Sub(c.at) < age {
		return c.kept
	}
	if c.host == nil || now.Sub(c.host.at) >= age {
		c.host = take(ctx, &host{asks: true}, netns.Find, now.Add(patience))
		c.host.at = now
	}
	c.kept, c.of, c.at = c.host.seenFrom(ns, time.Now().Add(patience/2)), ns, now
	c.took = time.Since(now)
	return c.kept
}

// OwnerOf returns whose a namespace is: by the control group of the first process in it, which programs
// that keep containers name after them.
func OwnerOf(f netns.Found) snapshot.Owner {
	o, _ := (&host{}).owner(context.Background(), f)
	return o
}

// census is what is the same for all namespaces.
type census struct {
	*host
	at time.Time
	// first is the namespace of process 1.
	first  uint64
	spaces []space
	book   names.Book
	why    []string
}

// space is a network namespace that has a name, with its addresses.
type space struct {
	inode     uint64
	name      snapshot.Name
	addresses []netip.Addr
}

// finder lists network namespaces, as netns.Find does.
type finder func(until time.Time) (found []netns.Found, cut bool, missed error)

// take reads all that is the same for all namespaces.
func take(ctx context.Context, h *host, find finder, until time.Time) *census {
	c := &census{host: h}
	late := func() bool { return time.Now().After(until) }
	began := time.Now()
	found, cut, missed := find(earlier(began.Add(searchTime), until))
	c.note(missed)
	c.first, _ = inode(h.path("proc/1/ns/net"))
	for _, f := range found {
		if late() {
			break
		}
		if s, ok := h.space(ctx, f, c.first); ok {
			c.spaces = append(c.spaces, s)
		}
	}
	h.recorded(ctx, &c.book, late)
	h.hosts(&c.book)
	if cut || late() {
		c.note(fmt.Errorf("there may be other network namespaces: the search ended after %s", time.Since(began).Round(time.Millisecond)))
	}
	return c
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func (c *census) note(err error) {
	if err != nil {
		c.why = append(c.why, strings.ReplaceAll(err.Error(), "\n", "; "))
	}
}

// space is whose a namespace is, and its addresses; ok is false where that is not known, or changed meanwhile.
func (h *host) space(ctx context.Context, f netns.Found, first uint64) (s space, ok bool) {
	name, ok := snapshot.Name{Kind: snapshot.NameHost, Text: "host", Source: names.SourceInit}, f.Inode == first
	if !ok {
		o, source := h.owner(ctx, f)
		if name, ok = names.OfOwner(&o, source); !ok {
			return s, false
		}
	}
	s = space{f.Inode, name, h.addresses(f)}
	if f.PID == 0 {
		return s, true
	}
	// Another process may have got the number of one that has ended.
	now, err := inode(h.path(filepath.Join("proc", strconv.Itoa(f.PID), "ns/net")))
	return s, err == nil && now == f.Inode
}

// seenFrom are the names seen from a namespace.
func (c *census) seenFrom(ns *netns.Handle, until time.Time) *snapshot.Names {
	v := &census{host: c.host, book: c.book.Copy(), why: slices.Clone(c.why)}
	own, err := netns.InodeOf(ns)
	n := &snapshot.Names{From: own, Netns: map[uint64]snapshot.Name{}}
	v.note(err)
	for _, s := range c.spaces {
		n.Netns[s.inode] = s.name
	}
	v.note(ns.Do(func() error {
		c.others(&v.book, own)
		return ownAddresses(&v.book)
	}))
	var whole bool
	if n.Addresses, whole = v.book.Addresses(); !whole {
		v.note(fmt.Errorf("there are more than %d addresses", names.MostAddresses))
	}
	n.Sockets, err = c.sockets(ns, own, until)
	v.note(err)
	n.Incomplete = strings.Join(v.why, "; ")
	return n
}

// others adds the addresses of the namespaces besides the own one, that of the calling thread.
func (c *census) others(book *names.Book, own uint64) {
	for _, s := range c.spaces {
		for _, a := range s.addresses {
			if s.inode != own && leadsTo(a, own != c.first) {
				book.Add(names.Kernel, a, s.name)
			}
		}
	}
}

// leadsTo reports whether the namespace of the calling thread has a route to an address. An address that another
// namespace has is not the one that packets go to where there is none: both are not connected. The host reaches what
// belongs to it by a route that is not its default route; others may reach it by theirs (byDefault).
func leadsTo(a netip.Addr, byDefault bool) bool {
	if a.IsLoopback() || a.IsLinkLocalUnicast() {
		return false
	}
	routes, err := netlink.RouteGetWithOptions(a.AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
	if err != nil || len(routes) == 0 {
		return false
	}
	if to := routes[0].Dst; to != nil && !byDefault {
		ones, _ := to.Mask.Size()
		return ones > 0
	}
	return byDefault
}

// ownAddresses adds the addresses of the calling thread's namespace, by their interfaces.
func ownAddresses(book *names.Book) error {
	links, err := socket.Whole(netlink.LinkList)
	if err != nil {
		return fmt.Errorf("list interfaces: %w", err)
	}
	byIndex := map[int]string{}
	for _, l := range links {
		byIndex[l.Attrs().Index] = l.Attrs().Name
	}
	all, err := socket.Whole(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range all {
		if address, ok := netip.AddrFromSlice(a.IP); ok && byIndex[a.LinkIndex] != "" {
			book.Add(names.Own, address, snapshot.Name{Kind: snapshot.NameInterface, Text: byIndex[a.LinkIndex], Source: names.SourceLinks})
		}
	}
	return nil
}

// trieMax bounds what is read of the routes of a namespace: a router's table of the Internet has a hundred megabytes.
const trieMax = 256 << 10

// addresses are those of another namespace; none where they cannot be read.
func (h *host) addresses(f netns.Found) (all []netip.Addr) {
	if f.PID != 0 {
		return h.addressesBelow(filepath.Join("proc", strconv.Itoa(f.PID), "net"))
	}
	ns, err := f.Open()
	if err != nil {
		return nil
	}
	defer ns.Close()
	_ = ns.Do(func() error {
		all = h.addressesBelow("proc/thread-self/net")
		return nil
	})
	return all
}

func (h *host) addressesBelow(dir string) []netip.Addr {
	return append(names.ParseFIBTrie(h.start(dir+"/fib_trie", trieMax)), names.ParseIfInet6(h.file(dir+"/if_inet6"))...)
}

// owner is whose a namespace is, and where its name was read.
func (h *host) owner(ctx context.Context, f netns.Found) (o snapshot.Owner, source string) {
	o = snapshot.Owner{Netns: f.Name, PID: f.PID, Path: f.Path}
	if o.PID == 0 {
		if pid, ok := holder(f.Path); ok {
			o.PID, o.Held = pid, true
		}
	}
	if o.PID == 0 {
		return o, ""
	}
	proc := filepath.Join("proc", strconv.Itoa(o.PID))
	o.Process = strings.TrimSpace(h.file(proc + "/comm"))
	names.ByCgroup(&o, h.file(proc+"/cgroup"))
	return o, h.name(ctx, &o)
}

// holder is the process whose descriptor a path is: /proc/PID/fd/N or /proc/PID/task/TID/fd/N.
func holder(path string) (pid int, ok bool) {
	parts := strings.Split(path, "/")
	if len(parts) < 2 || parts[1] != "proc" || (len(parts) != 5 && len(parts) != 7) || parts[len(parts)-2] != "fd" {
		return 0, false
	}
	pid, err := strconv.Atoi(parts[len(parts)-3])
	return pid, err == nil
}

// inode is that of the namespace that a link of /proc leads to.
func inode(path string) (uint64, error) {
	target, err := os.Readlink(path)
	if err != nil {
		return 0, err
	}
	number, ok := strings.CutPrefix(strings.TrimSuffix(target, "]"), "net:[")
	if !ok {
		return 0, fmt.Errorf("%s leads to %s", path, target)
	}
	return strconv.ParseUint(number, 10, 64)
}

// mostListeners bounds the listening sockets whose process is looked for.
const mostListeners = 4096

// sockets are the processes of the namespace that listen.
func (h *host) sockets(ns *netns.Handle, own uint64, until time.Time) (all map[string]snapshot.Name, err error) {
	wanted := map[uint32][]string{}
	err = ns.Do(func() error {
		for _, protocol := range []string{"tcp", "udp"} {
			listeners, err := socket.Listeners(protocol)
			if err != nil {
				return err
			}
			for _, l := range listeners {
				if l.Inode != 0 && l.Local.Port() != 0 && len(wanted) < mostListeners {
					wanted[l.Inode] = append(wanted[l.Inode], snapshot.SocketKey(protocol, l.Local))
				}
			}
		}
		return nil
	})
	all = map[string]snapshot.Name{}
	if err != nil || len(wanted) == 0 {
		return all, err
	}
	entries, err := os.ReadDir(h.path("proc"))
	for _, e := range entries {
		pid, notPID := strconv.Atoi(e.Name())
		if notPID != nil {
			continue
		}
		if len(wanted) == 0 || time.Now().After(until) {
			break
		}
		if in, err := inode(h.path("proc/" + e.Name() + "/ns/net")); err == nil && in == own {
			h.listens(pid, until, wanted, all)
		}
	}
	return all, err
}

// listens adds the sockets of a process, and takes them out of the wanted ones.
func (h *host) listens(pid int, until time.Time, wanted map[uint32][]string, all map[string]snapshot.Name) {
	proc := "proc/" + strconv.Itoa(pid)
	var name snapshot.Name
	for _, number := range h.descriptors(proc+"/fd", until) {
		keys, ok := wanted[number]
		if !ok {
			continue
		}
		if name.Kind == "" {
			o := snapshot.Owner{}
			names.ByCgroup(&o, h.file(proc+"/cgroup"))
			name = snapshot.Name{Kind: snapshot.NameProcess, Text: strings.TrimSpace(h.file(proc + "/comm")), PID: pid, Unit: o.Unit, Source: names.SourceComm}
		}
		for _, key := range keys {
			all[key] = name
		}
		delete(wanted, number)
	}
}

// descriptors are the inodes of the sockets that a process has open.
func (h *host) descriptors(dir string, until time.Time) (sockets []uint32) {
	d, err := os.Open(h.path(dir))
	if err != nil {
		return nil
	}
	defer d.Close()
	for !time.Now().After(until) {
		few, err := d.Readdirnames(1024)
		for _, fd := range few {
			target, ok := readlinkAt(int(d.Fd()), fd)
			number, isSocket := strings.CutPrefix(strings.TrimSuffix(target, "]"), "socket:[")
			if inode, err := strconv.ParseUint(number, 10, 32); ok && isSocket && err == nil {
				sockets = append(sockets, uint32(inode))
			}
		}
		if err != nil {
			break
		}
	}
	return sockets
}

// readlinkAt saves looking up the directory for each of many links.
func readlinkAt(dir int, name string) (string, bool) {
	var buf [64]byte // "socket:[4294967295]" and others that are of no account
	n, err := unix.Readlinkat(dir, name, buf[:])
	return string(buf[:max(n, 0)]), err == nil && n < len(buf)
}
