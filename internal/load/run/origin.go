package run

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strconv"

	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netns"
	"golang.org/x/sys/unix"
)

// sockaddr is a struct sockaddr_in or _in6 as the kernel reads it.
type sockaddr struct {
	raw  sockaddrBytes
	size uint8
}

type sockaddrBytes = [unix.SizeofSockaddrInet6]byte

// newSockaddr makes one; scope is the number of the interface of a link-local address.
func newSockaddr(a netip.AddrPort, scope uint32) sockaddr {
	var s sockaddr
	ip := a.Addr().Unmap()
	binary.BigEndian.PutUint16(s.raw[2:], a.Port())
	if ip.Is4() {
		binary.NativeEndian.PutUint16(s.raw[:], unix.AF_INET)
		copy(s.raw[4:], ip.AsSlice())
		s.size = unix.SizeofSockaddrInet4
		return s
	}
	binary.NativeEndian.PutUint16(s.raw[:], unix.AF_INET6)
	copy(s.raw[8:], ip.AsSlice())
	binary.NativeEndian.PutUint32(s.raw[24:], scope)
	s.size = unix.SizeofSockaddrInet6
	return s
}

func (s sockaddr) withPort(port uint16) sockaddr {
	binary.BigEndian.PutUint16(s.raw[2:], port)
	return s
}

// addrPort returns the address and port, without the scope.
func (s *sockaddr) addrPort() netip.AddrPort { return addrPort(&s.raw) }

func addrPort(raw *sockaddrBytes) netip.AddrPort {
	port := binary.BigEndian.Uint16(raw[2:])
	if binary.NativeEndian.Uint16(raw[:]) == unix.AF_INET {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(raw[4:8])), port)
	}
	return netip.AddrPortFrom(netip.AddrFrom16([16]byte(raw[8:24])), port)
}

// unspecified makes connect dissolve a connection, so that the socket can be used for another one
// (connect(2), AF_UNSPEC).
var unspecified = sockaddr{raw: sockaddrBytes{unix.AF_UNSPEC}, size: unix.SizeofSockaddrInet4}

func family(a netip.Addr) int {
	if a.Unmap().Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// origin is where a run's sockets send from, and where to.
type origin struct {
	family  int
	to      []sockaddr // in turn
	sources []sockaddr // empty lets the kernel choose
	ports   nat.Ports
	order   load.Permutation // of sources × ports
}

// maxOrder is the longest load.Permutation.
const maxOrder = 1 << 32

// newOrigin resolves the interfaces of link-local addresses in the namespace, and puts the sources
// into the order of the seed.
func newOrigin(ns *netns.Handle, to []netip.AddrPort, sources []netip.Addr, ports nat.Ports, seed uint64) (origin, error) {
	o := origin{family: family(to[0].Addr()), ports: ports}
	err := ns.Do(func() error {
		for _, a := range to {
			s, err := resolved(a)
			if err != nil {
				return err
			}
			o.to = append(o.to, s)
		}
		for _, a := range sources {
			s, err := resolved(netip.AddrPortFrom(a, 0))
			if err != nil {
				return err
			}
			if family(a) != o.family {
				return fmt.Errorf("source address %v is not of the same family as the target %v", a, to[0].Addr())
			}
			o.sources = append(o.sources, s)
		}
		return nil
	})
	order := rand.New(rand.NewPCG(seed, 0))
	order.Shuffle(len(o.sources), func(i, j int) { o.sources[i], o.sources[j] = o.sources[j], o.sources[i] })
	if o.ownPorts() && len(o.sources) == 0 { // a port can be chosen without an address
		o.sources = []sockaddr{o.anySource()}
	}
	o.order = load.NewPermutation(min(uint64(o.combinations()), maxOrder), seed)
	return o, err
}

// resolved finds the interface that an address such as fe80::1%eth0 names; the calling thread is in
// its namespace.
func resolved(a netip.AddrPort) (sockaddr, error) {
	zone := a.Addr().Zone()
	if zone == "" {
		return newSockaddr(a, 0), nil
	}
	if n, err := strconv.ParseUint(zone, 10, 31); err == nil && n > 0 {
		return newSockaddr(a, uint32(n)), nil
	}
	i, err := net.InterfaceByName(zone)
	if err != nil {
		return sockaddr{}, fmt.Errorf("address %v: interface %q: %w; `ip link` shows them", a.Addr(), zone, err)
	}
	return newSockaddr(a, uint32(i.Index)), nil
}

// ownPorts reports whether natkit chooses the source ports, not the kernel.
func (o *origin) ownPorts() bool { return o.ports.Len() > 0 }

func (o *origin) combinations() int { return len(o.sources) * o.ports.Len() }

func (o *origin) anySource() sockaddr {
	if o.family == unix.AF_INET6 {
		return newSockaddr(netip.AddrPortFrom(netip.IPv6Unspecified(), 0), 0)
	}
	return newSockaddr(netip.AddrPortFrom(netip.IPv4Unspecified(), 0), 0)
}

// at returns the k-th combination of a source address and a port in the order of the seed.
func (o *origin) at(k uint64) sockaddr {
	at, n := o.order.At(k), uint64(len(o.sources))
	return o.sources[at%n].withPort(o.ports.First + uint16(at/n))
}

// pairs returns how many different connections there are: combinations to each destination.
func (o *origin) pairs() uint64 {
	return min(uint64(o.combinations()), maxOrder) * uint64(len(o.to))
}

// pair returns the source and the destination of the k-th connection, k being less than pairs: each
// combination is used once before one is used again, to the next destination.
func (o *origin) pair(k uint64) (from sockaddr, to *sockaddr) {
	n := min(uint64(o.combinations()), maxOrder)
	return o.at(k % n), &o.to[(k%n+k/n)%uint64(len(o.to))]
}

// check binds to every source once, so that an address that is not this machine's is one error and
// not as many failures as there are requests.
func (o *origin) check(sys *caller) error {
	for i := range o.sources {
		fd, errno := sys.socket(o.family, unix.SOCK_STREAM)
		if errno == 0 {
			errno = sys.bind(fd, &o.sources[i])
			sys.close(fd)
		}
		if errno != 0 && errno != unix.EADDRINUSE {
			return fmt.Errorf("source address %v: %w", o.sources[i].addrPort().Addr(), bindError(errno))
		}
	}
	return nil
}

func bindError(err error) error {
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return fmt.Errorf("another server listens there: %w", err)
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return fmt.Errorf("not an address of this machine or namespace: %w", err)
	case errors.Is(err, unix.EACCES):
		return fmt.Errorf("the port is below net.ipv4.ip_unprivileged_port_start: %w", netns.Denied(err, netns.Bind))
	}
	return err
}
