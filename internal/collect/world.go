package collect

import (
	"net"
	"net/netip"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
)

// world is what is asked of a network namespace to find out what becomes of a packet, beside its rules.
type world interface {
	// file reads one below /proc/sys and /proc/net.
	file(path string) ([]byte, error)
	interfaces() ([]*link, error)
	// neighbours are the entries of both versions of IP, proxies the addresses of IPv6 that the host answers for though
	// it does not have them.
	neighbours() (map[hop]neighbour, error)
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
	// mappings are those of the programs of a gateway, nil where there are none. The caller closes them.
	mappings() (mappings, error)
	close()
}

// ownAddress is an address of an interface; unused is why the kernel does not use it. They are in the order of the kernel's
// lists, by which it chooses among those of an interface.
type ownAddress struct {
	link   int
	prefix netip.Prefix
	unused string
	// secondary is one of a network of which another address was there before or, of IPv6, a temporary one: both are the
	// flag IFA_F_SECONDARY. deprecated is one that new connections are not to have, universe one that may be used
	// everywhere (RT_SCOPE_UNIVERSE).
	secondary, deprecated, universe bool
}

// mainRoute is a next hop of a route.
type mainRoute struct {
	to     netip.Prefix
	via    netip.Addr
	device string
}

// neighbour is an entry of the table of neighbours, with its state (NUD_*).
type neighbour struct {
	State        int
	HardwareAddr net.HardwareAddr
}

// mappings are what programs of a gateway make of addresses and ports; plane.Mappings has the meaning of each method.
type mappings interface {
	Destination(in int, protocol uint8, to netip.AddrPort) (netip.AddrPort, bool)
	Destinations(most int) ([]nat.Mapped, error)
	Source(out int, protocol uint8, from netip.AddrPort) (netip.AddrPort, bool)
	Close() error
}
