// Package names finds out what a host calls addresses and network namespaces from texts that runtimes of containers,
// Kubernetes and the kernel keep, and writes these names beside addresses. It reads nothing itself.
package names

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/snapshot"
)

// Rank is how far a source is to be believed: what a lower one says is of no account where a higher one knows.
type Rank int

// The ranks of sources, the most reliable first.
const (
	Own      Rank = iota // addresses of the namespace itself
	Kernel               // addresses of the other namespaces
	Recorded             // what a runtime or a network plugin wrote down
	Written              // what people wrote down
	ranks
)

// MostAddresses bounds the addresses that are kept, and mostText the bytes of a name.
const (
	MostAddresses = 1 << 14
	mostText      = 256
)

// Book collects what sources say. The zero value is empty.
type Book struct {
	pages [ranks]map[netip.Addr]snapshot.Name
	full  bool
}

// Add notes a name of an address. Where two sources of one rank differ the address has none: it is used more than
// once, or one of both is out of date.
func (b *Book) Add(rank Rank, address netip.Addr, name snapshot.Name) {
	address = address.Unmap().WithZone("")
	if !nameable(address, rank) {
		return
	}
	page := b.pages[rank]
	if page == nil {
		page = map[netip.Addr]snapshot.Name{}
		b.pages[rank] = page
	}
	name.Text = name.Text[:min(len(name.Text), mostText)]
	switch known, there := page[address]; {
	case !there && len(page) >= MostAddresses:
		b.full = true
	case !there:
		page[address] = name
	case known.Kind != name.Kind || known.Text != name.Text:
		page[address] = snapshot.Name{}
	}
}

// AddFirst is Add of a source in which what comes first counts.
func (b *Book) AddFirst(rank Rank, address netip.Addr, name snapshot.Name) {
	if _, there := b.pages[rank][address.Unmap().WithZone("")]; !there {
		b.Add(rank, address, name)
	}
}

// Copy returns a Book to which more can be added.
func (b *Book) Copy() Book {
	c := Book{full: b.full}
	for i, page := range b.pages {
		c.pages[i] = maps.Clone(page)
	}
	return c
}

// nameable reports whether an address has one meaning on the host: loopback and link-local addresses are in every
// namespace, and are named by their interface alone.
func nameable(a netip.Addr, rank Rank) bool {
	if !a.IsValid() || a.IsUnspecified() || a.IsMulticast() {
		return false
	}
	return rank == Own || !a.IsLoopback() && !a.IsLinkLocalUnicast()
}

// Addresses are all addresses that have a name; whole is false where there were too many.
func (b *Book) Addresses() (all map[netip.Addr]snapshot.Name, whole bool) {
	all = map[netip.Addr]snapshot.Name{}
	decided := map[netip.Addr]bool{}
	for _, page := range b.pages {
		for _, address := range slices.SortedFunc(maps.Keys(page), netip.Addr.Compare) {
			if decided[address] {
				continue
			}
			decided[address] = true
			switch name := page[address]; {
			case name.Text == "": // sources differ
			case len(all) >= MostAddresses:
				b.full = true
			default:
				all[address] = name
			}
		}
	}
	return all, !b.full
}

// shortID is how much of a container's ID its programs show.
const shortID = 12

// OfOwner is the name of what a network namespace belongs to; false where it has none that says anything, such as one
// that a program merely holds. source is where the name of the container or the pod was read.
func OfOwner(o *snapshot.Owner, source string) (snapshot.Name, bool) {
	switch {
	case o.Pod != "":
		return snapshot.Name{Kind: snapshot.NamePod, Text: o.Pod, PID: o.PID, Source: cmp.Or(source, SourceCgroup)}, true
	case o.Container != "":
		text := cmp.Or(o.ContainerName, o.Container[:min(len(o.Container), shortID)])
		return snapshot.Name{Kind: snapshot.NameContainer, Text: text, PID: o.PID, Source: cmp.Or(source, SourceCgroup)}, true
	case o.Netns != "":
		return snapshot.Name{Kind: snapshot.NameNetns, Text: o.Netns, PID: o.PID, Source: SourceNetns}, true
	case o.Held || o.PID == 0:
		return snapshot.Name{}, false
	case o.Unit != "":
		return snapshot.Name{Kind: snapshot.NameUnit, Text: o.Unit, PID: o.PID, Source: SourceCgroup}, true
	case o.Process != "":
		return snapshot.Name{Kind: snapshot.NameProcess, Text: o.Process, PID: o.PID, Source: SourceComm}, true
	}
	return snapshot.Name{}, false
}

// Sources of names: constants, so that no name is in them.
const (
	SourceLinks      = "netlink"
	SourceCgroup     = "/proc/PID/cgroup"
	SourceComm       = "/proc/PID/comm"
	SourceInit       = "/proc/1/ns/net"
	SourceNetns      = "/run/netns"
	SourceDocker     = "/var/lib/docker/containers"
	SourceDockerAPI  = "docker.sock"
	SourceContainerd = "/run/containerd"
	SourceStorage    = "/run/containers/storage"
	SourceNamesFile  = "/var/lib/containers/storage"
	SourcePodLogs    = "/var/log/pods"
	SourceCNI        = "/var/lib/cni/networks"
	SourceHosts      = "/etc/hosts"
)
