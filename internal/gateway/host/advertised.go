package host

import (
	"fmt"
	"net"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/netns"
)

// Advertised are the interfaces of a namespace (nil: this one) that have IPv6 routes or
// addresses which the kernel took from router advertisements, and those of outside that
// may come to: as at boot, they have no address of their own.
func Advertised(ns *netns.Handle, outside []string) (names []string, err error) {
	err = inside(ns, func() error {
		links, err := whole(netlink.LinkList)
		if err != nil {
			return fmt.Errorf("list interfaces: %w", err)
		}
		addresses, err := whole(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_V6) })
		if err != nil {
			return fmt.Errorf("list addresses: %w", err)
		}
		routes, err := whole(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(netlink.FAMILY_V6, &netlink.Route{Protocol: unix.RTPROT_RA}, netlink.RT_FILTER_PROTOCOL)
		})
		if err != nil {
			return fmt.Errorf("list routes: %w", err)
		}
		for _, l := range links {
			at := l.Attrs()
			if at.Flags&net.FlagLoopback == 0 && advertised(at, addresses, routes, slices.Contains(outside, at.Name)) {
				names = append(names, at.Name)
			}
		}
		return nil
	})
	return names, err
}

func advertised(l *netlink.LinkAttrs, addresses []netlink.Addr, routes []netlink.Route, outside bool) bool {
	if slices.ContainsFunc(routes, func(r netlink.Route) bool { return r.LinkIndex == l.Index }) {
		return true
	}
	for _, a := range addresses {
		if a.LinkIndex != l.Index || a.Scope != unix.RT_SCOPE_UNIVERSE {
			continue
		}
		outside = false
		if a.Flags&unix.IFA_F_MANAGETEMPADDR != 0 { // of all that come so (addrconf_prefix_rcv_add_addr)
			return true
		}
	}
	return outside
}
