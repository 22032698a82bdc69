//go:build linux

package netns

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/natkit/natkit/internal/permit"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Links changes the interfaces, addresses, neighbours and routes of a namespace.
type Links struct {
	*netlink.Handle
	ns *Handle
}

// Links opens a socket in the namespace. netlink.NewHandleAt would hand a thread that it
// failed to move back to Go's pool.
func (h *Handle) Links() (*Links, error) {
	if err := permit.Change("change interfaces"); err != nil {
		return nil, err
	}
	l := &Links{ns: h}
	return l, h.Do(func() (err error) {
		l.Handle, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
}

// VethEnd is one end of a veth pair. Without MAC the kernel chooses.
type VethEnd struct {
	Name string
	MAC  net.HardwareAddr
}

// AddVeth adds a veth pair and sets both ends up. They are made in their namespaces, so
// that a crash leaves none elsewhere.
func (l *Links) AddVeth(here VethEnd, to *Links, there VethEnd) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr, attrs.Namespace = here.Name, here.MAC, netlink.NsFd(l.ns.Fd())
	err := l.LinkAdd(&netlink.Veth{
		LinkAttrs: attrs, PeerName: there.Name, PeerHardwareAddr: there.MAC, PeerNamespace: netlink.NsFd(to.ns.Fd()),
	})
	if errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("%w (the kernel has no veth: CONFIG_VETH)", err)
	}
	if err != nil {
		return err
	}
	return errors.Join(l.SetUp(here.Name), to.SetUp(there.Name))
}

// SetUp sets an interface up.
func (l *Links) SetUp(name string) error {
	link, err := l.LinkByName(name)
	if err != nil {
		return err
	}
	return l.LinkSetUp(link)
}

// AddAddress adds an address, with IPv6 one that is of use at once (IFA_F_NODAD).
func (l *Links) AddAddress(name string, p netip.Prefix) error {
	link, err := l.LinkByName(name)
	if err != nil {
		return err
	}
	a := &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}}
	if p.Addr().Is6() {
		a.Flags = unix.IFA_F_NODAD
	}
	return l.AddrAdd(link, a)
}

// SetMTU sets the size of the largest packet that an interface sends.
func (l *Links) SetMTU(name string, mtu int) error {
	link, err := l.LinkByName(name)
	if err != nil {
		return err
	}
	return l.LinkSetMTU(link, mtu)
}

// AddNeighbour adds a permanent neighbour.
func (l *Links) AddNeighbour(name string, a netip.Addr, mac net.HardwareAddr) error {
	link, err := l.LinkByName(name)
	if err != nil {
		return err
	}
	return l.NeighSet(&netlink.Neigh{
		LinkIndex: link.Attrs().Index, State: netlink.NUD_PERMANENT, IP: a.AsSlice(), HardwareAddr: mac,
	})
}

// AddRoute adds a route to a network, 0.0.0.0/0 or ::/0 for the default route.
func (l *Links) AddRoute(to netip.Prefix, via netip.Addr) error {
	network := &net.IPNet{IP: to.Masked().Addr().AsSlice(), Mask: net.CIDRMask(to.Bits(), to.Addr().BitLen())}
	return l.RouteAdd(&netlink.Route{Dst: network, Gw: via.AsSlice()})
}
