package collect

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/ports"
)

// Sockets lists the TCP and UDP sockets of a namespace (nil: this one), by
// sock_diag. Those in TIME_WAIT are among them: they have their port still.
func Sockets(ns *netns.Handle) (all []ports.Socket, err error) {
	read := func() error {
		for _, kind := range []struct {
			name   string
			proto  uint8
			list   func(family uint8) ([]*netlink.Socket, error)
			family uint8
		}{
			{"TCP", unix.IPPROTO_TCP, netlink.SocketDiagTCP, unix.AF_INET}, {"TCP over IPv6", unix.IPPROTO_TCP, netlink.SocketDiagTCP, unix.AF_INET6},
			{"UDP", unix.IPPROTO_UDP, netlink.SocketDiagUDP, unix.AF_INET}, {"UDP over IPv6", unix.IPPROTO_UDP, netlink.SocketDiagUDP, unix.AF_INET6},
		} {
			sockets, err := kind.list(kind.family)
			if err != nil {
				return fmt.Errorf("list sockets of %s: %w (needs CONFIG_INET_DIAG)", kind.name, err)
			}
			for _, s := range sockets {
				all = append(all, ports.Socket{Proto: kind.proto,
					Local: endpoint(s.ID.Source, s.ID.SourcePort), Remote: endpoint(s.ID.Destination, s.ID.DestinationPort)})
			}
		}
		return nil
	}
	if ns == nil {
		err = read()
	} else {
		err = ns.Do(read)
	}
	return all, err
}

func endpoint(ip net.IP, port uint16) netip.AddrPort {
	addr, _ := netip.AddrFromSlice(ip)
	return netip.AddrPortFrom(addr.Unmap(), port)
}

// Release is the running kernel's.
func Release() (string, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "", fmt.Errorf("read the kernel's release: %w", err)
	}
	return unix.ByteSliceToString(u.Release[:]), nil
}
