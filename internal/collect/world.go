package collect

import (
	"net/netip"

	natnetlink "github.com/natkit/natkit/internal/netlink"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/vishvananda/netlink"
)

// world is what is asked of a network namespace to find out what becomes of a packet, beside its rules.
type world interface {
	// file reads one below /proc/sys and /proc/net.
	file(path string) ([]byte, error)
	interfaces() ([]*link, error)
	// neighbours are the entries of both versions of IP, proxies the addresses of IPv6 that the host answers for though
	// it does not have them.
	neighbours() ([]netlink.Neigh, error)
	proxies() (map[netip.Addr]bool, error)
	// addresses are those that are not for the link alone.
	addresses() ([]ownAddress, error)
	routingRules() ([]routingRule, error)
	// route is the route of a packet. An error is that it is not known.
	route(r *router, f flow) (snapshot.Route, error)
	// mainRoutes are at most most routes of IPv4 of the main table, one for each next hop; whole is whether there are
	// not more.
	mainRoutes(most int) (all []mainRoute, whole bool)
	// leadsOut reports whether a default route leads out of an interface, for its first address, and defaultTables
	// in which tables there is one.
	leadsOut(l *link) (bool, error)
	defaultTables(l *link) []uint32
	// sockets are the listening ones of TCP, and those of UDP without a peer.
	sockets(protocol string) ([]snapshot.AcceptQueue, error)
	// sublinkOf is a hardware address that an interface takes frames for besides its own, and that no interface of this
	// namespace has; empty where there is none.
	sublinkOf(device string) string
	close()
}

// ownAddress is an address of an interface; unused is why the kernel does not use it.
type ownAddress struct {
	link   int
	prefix netip.Prefix
	unused string
}

// mainRoute is a next hop of a route.
type mainRoute struct {
	to     netip.Prefix
	via    netip.Addr
	device string
}

// kernelWorld asks the kernel, in the namespace of the calling thread, by a socket of rtnetlink.
type kernelWorld struct{ conn asker }

// asker is a socket.Conn: there is none but on Linux.
type asker interface {
	Ask(kind, flags uint16, body []byte) ([]natnetlink.Message, error)
	Close() error
}

func (k *kernelWorld) close() { _ = k.conn.Close() }
