package snapshot

import (
	"fmt"
	"net/netip"
)

// PartNames is the name of the part that Snapshot.Names is.
const PartNames = "names"

// Names are what the host calls addresses, listening sockets and network namespaces, seen from one of these: as far
// as that is known without asking the network.
type Names struct {
	// From is the inode of the namespace that they are seen from: an address may be another host's elsewhere.
	From      uint64              `json:"seen_from_netns,omitempty"`
	Addresses map[netip.Addr]Name `json:"addresses,omitempty"`
	// Sockets are the processes that listen, by protocol and local end: "tcp 0.0.0.0:80".
	Sockets map[string]Name `json:"sockets,omitempty"`
	// Netns are whose the network namespaces are, by their inodes.
	Netns map[uint64]Name `json:"netns,omitempty"`
	// Incomplete is why others may have a name as well; empty where all was read.
	Incomplete string `json:"incomplete,omitempty"`
}

// NameKind is what a name is of.
type NameKind string

// The kinds of names.
const (
	NameInterface NameKind = "interface" // an own address: the interface that has it
	NamePod       NameKind = "pod"       // of Kubernetes: NAMESPACE/NAME
	NameContainer NameKind = "container"
	NameNetns     NameKind = "netns" // a network namespace of 'ip netns list'
	NameUnit      NameKind = "unit"  // of systemd
	NameProcess   NameKind = "process"
	NameHost      NameKind = "host"  // the host itself, seen from another network namespace
	NameHosts     NameKind = "hosts" // by /etc/hosts
)

// Name is what something is called. Text is not to be trusted: who starts a process names it.
type Name struct {
	Kind NameKind `json:"kind"`
	Text string   `json:"text"`
	// PID is the process of that kind, Unit its unit; each may be missing.
	PID  int    `json:"pid,omitempty"`
	Unit string `json:"unit,omitempty"`
	// Source is where Text was read.
	Source string `json:"source"`
}

func (n Name) String() string {
	switch n.Kind {
	case NameInterface, NameHosts:
		return n.Text
	case NameHost:
		return "this host"
	case NameProcess:
		text := fmt.Sprintf("%s pid %d", n.Text, n.PID)
		if n.Unit != "" {
			text += " of " + n.Unit
		}
		return text
	}
	return string(n.Kind) + " " + n.Text
}

// Addr returns the name of an address.
func (n *Names) Addr(a netip.Addr) (Name, bool) {
	if n == nil {
		return Name{}, false
	}
	name, ok := n.Addresses[a.Unmap().WithZone("")]
	return name, ok
}

// Listener returns the process that listens at an own address, or at all of them.
func (n *Names) Listener(protocol string, at netip.AddrPort) (Name, bool) {
	if n == nil || at.Port() == 0 {
		return Name{}, false
	}
	ends := []netip.Addr{at.Addr()}
	if own, ok := n.Addr(at.Addr()); ok && own.Kind == NameInterface {
		// A socket of IPv6 without an address takes connections of IPv4 as well, unless one of IPv4 does (ipv6(7)).
		ends = append(ends, netip.IPv4Unspecified(), netip.IPv6Unspecified())
		if at.Addr().Is6() {
			ends = append(ends[:1], netip.IPv6Unspecified())
		}
	}
	for _, end := range ends {
		if name, ok := n.Sockets[SocketKey(protocol, netip.AddrPortFrom(end, at.Port()))]; ok {
			return name, true
		}
	}
	return Name{}, false
}

// SocketKey is the key of a socket in Names.Sockets.
func SocketKey(protocol string, at netip.AddrPort) string { return protocol + " " + at.String() }
