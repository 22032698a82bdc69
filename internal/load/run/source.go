package run

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// sourceAddrs makes the source addresses, in the order of the seed.
func sourceAddrs(sources []netip.Addr, to netip.Addr, zones map[string]uint32, seed uint64) ([]sockaddr, error) {
	var all []sockaddr
	for _, s := range sources {
		if family(s) != family(to) {
			return nil, fmt.Errorf("source address %v is not of the same family as the target %v", s, to)
		}
		all = append(all, newSockaddr(netip.AddrPortFrom(s, 0), zones[s.Zone()]))
	}
	order := rand.New(rand.NewPCG(seed, 0))
	order.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all, nil
}

// anyAddr is the unspecified address where there is no source: a port can be
// chosen without an address.
func anyAddr(sources []sockaddr, family int) []sockaddr {
	if len(sources) > 0 {
		return sources
	}
	unspecified := netip.IPv4Unspecified()
	if family == unix.AF_INET6 {
		unspecified = netip.IPv6Unspecified()
	}
	return []sockaddr{newSockaddr(netip.AddrPortFrom(unspecified, 0), 0)}
}

// checkSources binds to every source once, so that an address that is not this
// machine's is one error and not as many failures as there are requests.
func checkSources(sys *caller, family int, sources []sockaddr) error {
	for i := range sources {
		fd, errno := sys.socket(family)
		if errno == 0 {
			errno = sys.bind(fd, &sources[i])
			sys.close(fd)
		}
		if errno == syscall.EADDRNOTAVAIL {
			return fmt.Errorf("source address %v: not an address of this machine or namespace; add it to an interface first",
				sources[i].addr())
		}
		if errno != 0 && errno != syscall.EADDRINUSE {
			return fmt.Errorf("source address %v: bind: %w", sources[i].addr(), errno)
		}
	}
	return nil
}
