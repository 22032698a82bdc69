package names

import (
	"net/netip"
	"regexp"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
)

// Beside returns an end of a connection, an address with a port or without, with its name behind it:
// "10.244.1.7:80 (pod shop/web)". protocol is that of the socket behind an own address and port; without one it is
// not looked for.
func Beside(n *snapshot.Names, protocol, end string) string {
	if name := Of(n, protocol, end); name != "" {
		return end + " (" + name + ")"
	}
	return end
}

// BesideIn is Beside of an end of a packet in a network namespace. In another one than that which the names are seen
// from, interfaces and sockets are others.
func BesideIn(n *snapshot.Names, netns uint64, protocol, end string) string {
	if n == nil || netns == 0 || n.From == 0 || netns == n.From {
		return Beside(n, protocol, end)
	}
	at, _ := endOf(end)
	if name, ok := n.Addr(at.Addr()); ok && name.Kind != snapshot.NameInterface {
		return end + " (" + name.String() + ")"
	}
	return end
}

// BesideWho is Beside of what a connection table has the most of: "198.18.0.1", or "tcp 198.51.100.1:80", which may be
// translated, so that no socket of the host is named.
func BesideWho(n *snapshot.Names, who string) string {
	protocol, end, ok := strings.Cut(who, " ")
	if !ok {
		return Beside(n, "", who)
	}
	return protocol + " " + Beside(n, "", end)
}

// Of is the name of an end of a connection, empty where it has none.
func Of(n *snapshot.Names, protocol, end string) string {
	if n == nil {
		return ""
	}
	at, err := netip.ParseAddrPort(end)
	if err != nil {
		address, err := netip.ParseAddr(end)
		if err != nil {
			return ""
		}
		at = netip.AddrPortFrom(address, 0)
	}
	var all []string
	if name, ok := n.Addr(at.Addr()); ok {
		all = append(all, name.String())
	}
	if name, ok := n.Listener(protocol, at); ok {
		all = append(all, name.String())
	}
	return strings.Join(all, ", ")
}

// ends finds what may be an address in a text, with a port or without.
var ends = regexp.MustCompile(`\[[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*\](?::[0-9]+)?|[0-9A-Fa-f]*:[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*|[0-9]+(?:\.[0-9]+){3}(?::[0-9]+)?`)

// inodes finds what may be the number of a network namespace: the kernel gives them out from 0xF0000000 on
// (PROC_DYNAMIC_FIRST, fs/proc/generic.c).
var inodes = regexp.MustCompile(`\b4[0-9]{9}\b`)

// Mention is what a text names, and what that is called.
type Mention struct{ What, Name string }

// Mentioned returns those of several Names that a text has, of which the first that knows an address is asked, and
// the addresses and sockets in the order of the text. It is nil where there are none.
func Mentioned(text string, known ...*snapshot.Names) (found *snapshot.Names, list []Mention) {
	found = &snapshot.Names{}
	for _, end := range ends.FindAllString(text, -1) {
		at, hasPort := endOf(end)
		if !at.Addr().IsValid() {
			continue
		}
		for _, n := range known {
			if take(found, n, at, hasPort, &list) {
				break
			}
		}
	}
	for _, number := range inodes.FindAllString(text, -1) {
		inode, err := strconv.ParseUint(number, 10, 64)
		if err != nil {
			continue
		}
		for _, n := range known {
			if n == nil {
				continue
			}
			if name, ok := n.Netns[inode]; ok {
				put(&found.Netns, inode, name)
				break
			}
		}
	}
	if len(found.Addresses)+len(found.Sockets)+len(found.Netns) == 0 {
		return nil, nil
	}
	for _, n := range known {
		if n != nil {
			found.From, found.Incomplete = n.From, n.Incomplete
			break
		}
	}
	return found, list
}

// endOf reads an address with a port or without.
func endOf(text string) (at netip.AddrPort, hasPort bool) {
	if at, err := netip.ParseAddrPort(text); err == nil {
		return at, true
	}
	address, _ := netip.ParseAddr(strings.Trim(text, "[]"))
	return netip.AddrPortFrom(address, 0), false
}

// take adds what n knows of an end to found, and to list what was not there; it reports whether it knows anything.
func take(found, n *snapshot.Names, at netip.AddrPort, hasPort bool, list *[]Mention) (knows bool) {
	address := at.Addr().Unmap().WithZone("")
	if name, ok := n.Addr(address); ok {
		knows = true
		if _, there := found.Addresses[address]; !there {
			put(&found.Addresses, address, name)
			*list = append(*list, Mention{address.String(), name.String()})
		}
	}
	if n == nil || !hasPort {
		return knows
	}
	for _, protocol := range []string{"tcp", "udp"} {
		key := snapshot.SocketKey(protocol, at)
		name, ok := n.Sockets[key]
		if _, there := found.Sockets[key]; ok && !there {
			put(&found.Sockets, key, name)
			*list = append(*list, Mention{key, name.String()})
		}
		knows = knows || ok
	}
	return knows
}

func put[K comparable, V any](m *map[K]V, key K, value V) {
	if *m == nil {
		*m = map[K]V{}
	}
	(*m)[key] = value
}
