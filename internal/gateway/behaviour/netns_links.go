package behaviour

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	vishnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/netns"
)

// setting is a sysctl of a namespace; optional where kernels lack it, or have it for
// the whole host only.
type setting struct {
	name, value string
	optional    bool
}

// set has them all written by one thread: each thread more has to be waited for.
func (w *netnsWorld) set(ns *netns.Handle, settings []setting) error {
	return ns.Do(func() error {
		for _, s := range settings {
			err := writeSysctl(s.name, s.value)
			if s.optional && (errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission)) {
				continue
			}
			if err != nil {
				return fmt.Errorf("set %s in namespace %s: %w", s.name, ns.Name(), err)
			}
		}
		return nil
	})
}

// quiet is set before there are links: neither side solicits routers or detects
// duplicate addresses, and the wires have no IPv6 at all.
func (w *netnsWorld) quiet() error {
	return errors.Join(
		w.set(w.wire, []setting{{"net.ipv6.conf.default.disable_ipv6", "1", true}}),
		w.set(w.gateway, []setting{
			{"net.ipv6.conf.default.accept_dad", "0", false},
			{"net.ipv6.conf.default.accept_ra", "0", false},
			{"net.ipv6.conf.default.router_solicitations", "0", false},
			{"net.ipv4.conf.default.rp_filter", "0", false},
		}))
}

// settings make a router of the gateway, that answers each time.
func (w *netnsWorld) settings() error {
	return w.set(w.gateway, []setting{
		{"net.ipv4.ip_forward", "1", false},
		{"net.ipv6.conf.all.forwarding", "1", false},
		{"net.ipv4.conf.all.rp_filter", "0", false},
		{"net.ipv4.icmp_ratelimit", "0", false},
		{"net.ipv4.icmp_msgs_per_sec", "100000", true},
		{"net.ipv4.icmp_msgs_burst", "100000", true},
		{"net.ipv6.icmp.ratelimit", "0", false},
	})
}

// addLinks makes the gateway's interfaces, each with the wire's end of the same name.
func (w *netnsWorld) addLinks() (err error) {
	if w.links, err = netlink.NewHandleAt(vishnetns.NsHandle(w.gateway.Fd())); err != nil {
		return fmt.Errorf("open netlink in namespace %s: %w", w.gateway.Name(), err)
	}
	far, err := netlink.NewHandleAt(vishnetns.NsHandle(w.wire.Fd()))
	if err != nil {
		return fmt.Errorf("open netlink in namespace %s: %w", w.wire.Name(), err)
	}
	defer far.Close()
	if err := up(w.links, "lo"); err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	for _, dev := range devices {
		if err := w.addLink(far, dev); err != nil {
			return fmt.Errorf("make interface %s: %w", dev, err)
		}
	}
	for _, dev := range devices {
		if err := errors.Join(w.running(w.links, dev), w.running(far, dev)); err != nil {
			return err
		}
	}
	return nil
}

// addAddresses gives the gateway its addresses, and waits until they are its own: of
// IPv6 that is work which the kernel does later (addrconf_dad_work, net/ipv6/addrconf.c),
// also without duplicate address detection.
func (w *netnsWorld) addAddresses() error {
	for _, dev := range devices {
		link, err := w.links.LinkByName(dev)
		if err != nil {
			return fmt.Errorf("find interface %s: %w", dev, err)
		}
		for _, p := range gatewayAddresses[dev] {
			if err := w.links.AddrAdd(link, address(p)); err != nil {
				return fmt.Errorf("give %s the address %v: %w", dev, p, err)
			}
		}
	}
	for _, dev := range devices {
		for _, p := range gatewayAddresses[dev] {
			if err := w.until(func() (bool, error) { return w.local(p.Addr()) }); err != nil {
				return fmt.Errorf("address %v of %s: %w", p, dev, err)
			}
		}
	}
	return nil
}

// local reports whether packets to an address stay on the gateway.
func (w *netnsWorld) local(a netip.Addr) (bool, error) {
	routes, err := w.links.RouteGet(a.AsSlice())
	return err == nil && len(routes) == 1 && routes[0].Type == unix.RTN_LOCAL, err
}

// until waits for a condition.
func (w *netnsWorld) until(condition func() (bool, error)) error {
	for deadline := time.Now().Add(w.patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if ok, err := condition(); ok || err != nil {
			return err
		}
	}
	return fmt.Errorf("not ready within %v", w.patience)
}

// running waits until an interface can send. That its other end was set up it learns
// by work that the kernel does later (linkwatch_do_dev, net/core/link_watch.c), and drops
// what it is given before.
func (w *netnsWorld) running(h *netlink.Handle, dev string) error {
	err := w.until(func() (bool, error) {
		link, err := h.LinkByName(dev)
		return err == nil && link.Attrs().OperState == netlink.OperUp, err
	})
	if err != nil {
		return fmt.Errorf("interface %s: %w", dev, err)
	}
	return nil
}

func (w *netnsWorld) addLink(far *netlink.Handle, dev string) error {
	name := dev
	if w.interfaces == Tagged {
		name = "trunk-" + dev
	}
	attrs := attributes(name, dev)
	attrs.Namespace = netlink.NsFd(w.gateway.Fd())
	if err := w.links.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: name, PeerNamespace: netlink.NsFd(w.wire.Fd())}); err != nil {
		return err
	}
	if err := errors.Join(up(far, name), up(w.links, name), w.gateway.CompleteChecksums(name)); err != nil {
		return err
	}
	switch w.interfaces {
	case Polled:
		return w.wire.SetGRO(name, true)
	case Tagged:
		return errors.Join(w.addVLAN(far, name, dev), w.addVLAN(w.links, name, dev), w.gateway.CompleteChecksums(dev))
	}
	return nil
}

// attributes are those of an interface with the address of one of the gateway's.
func attributes(name, dev string) netlink.LinkAttrs {
	attrs, mac := netlink.NewLinkAttrs(), gatewayMAC[dev]
	attrs.Name, attrs.HardwareAddr = name, net.HardwareAddr(mac[:])
	return attrs
}

// addVLAN makes a VLAN interface at one end of a link.
func (w *netnsWorld) addVLAN(h *netlink.Handle, trunk, dev string) error {
	below, err := h.LinkByName(trunk)
	if err != nil {
		return err
	}
	attrs := attributes(dev, dev)
	if h != w.links {
		attrs.HardwareAddr = nil // its trunk's
	}
	attrs.ParentIndex = below.Attrs().Index
	if err := h.LinkAdd(&netlink.Vlan{LinkAttrs: attrs, VlanId: 100, VlanProtocol: netlink.VLAN_PROTOCOL_8021Q}); err != nil {
		return fmt.Errorf("make a VLAN interface on %s: %w", trunk, err)
	}
	return up(h, dev)
}

func up(h *netlink.Handle, dev string) error {
	link, err := h.LinkByName(dev)
	if err != nil {
		return err
	}
	return h.LinkSetUp(link)
}

func address(p netip.Prefix) *netlink.Addr {
	a := &netlink.Addr{IPNet: ipNet(p)}
	a.IP = p.Addr().AsSlice()
	if p.Addr().Is6() {
		a.Flags = unix.IFA_F_NODAD
	}
	return a
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Masked().Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// addHosts adds permanent neighbour entries for the hosts, so that the gateway never asks.
func (w *netnsWorld) addHosts() error {
	for _, a := range attachments() {
		link, err := w.links.LinkByName(a.dev)
		if err != nil {
			return fmt.Errorf("find interface %s: %w", a.dev, err)
		}
		if err := w.addHost(link, a); err != nil {
			return fmt.Errorf("attach host %s to %s: %w", a.host, a.dev, err)
		}
	}
	for metric, dev := range []string{LAN, DMZ} {
		link, err := w.links.LinkByName(dev)
		if err != nil {
			return err
		}
		if err := w.links.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet(netmapInside), Scope: netlink.SCOPE_LINK, Priority: metric}); err != nil {
			return fmt.Errorf("route to %v by %s: %w", netmapInside, dev, err)
		}
	}
	return nil
}

func (w *netnsWorld) addHost(link netlink.Link, a attachment) error {
	for _, addr := range append(a.neighbours, a.next...) {
		err := w.links.NeighSet(&netlink.Neigh{
			LinkIndex: link.Attrs().Index, Family: family(addr), State: netlink.NUD_PERMANENT,
			IP: addr.AsSlice(), HardwareAddr: net.HardwareAddr(a.mac[:])})
		if err != nil {
			return fmt.Errorf("neighbour %v: %w", addr, err)
		}
	}
	for i, network := range a.networks {
		if err := w.links.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet(network), Gw: a.next[i].AsSlice()}); err != nil {
			return fmt.Errorf("route to %v: %w", network, err)
		}
	}
	return nil
}

func (w *netnsWorld) Sysctl(name, value string) error {
	return w.set(w.gateway, []setting{{name, value, false}})
}

// Neighbour changes one of addHosts' entries. With it the kernel sends what waits (neigh_update, net/core/neighbour.c).
func (w *netnsWorld) Neighbour(h Host, a netip.Addr, known bool) (Arrivals, error) {
	at, is := deviceOf(h)
	if !is {
		return nil, fmt.Errorf("no such host: %s", h)
	}
	link, err := w.links.LinkByName(at.dev)
	if err != nil {
		return nil, fmt.Errorf("find interface %s: %w", at.dev, err)
	}
	if !known { // the kernel asks three times, a second apart, and drops what waits: a busy machine takes longer
		protocol := map[bool]string{false: "ipv4", true: "ipv6"}[a.Is6()]
		if err := w.Sysctl("net."+protocol+".neigh."+at.dev+".mcast_solicit", "100"); err != nil {
			return nil, err
		}
	}
	entry := netlink.Neigh{LinkIndex: link.Attrs().Index, Family: family(a), State: netlink.NUD_PERMANENT, IP: a.AsSlice(), HardwareAddr: at.mac[:]}
	change := w.links.NeighDel
	if known {
		change = w.links.NeighSet
	}
	out, err := w.wires.after(func() error { return change(&entry) })
	if err != nil {
		return nil, fmt.Errorf("neighbour %v at %s: %w", a, at.dev, err)
	}
	return arrivalsOf(out), nil
}

func family(a netip.Addr) int {
	if a.Is6() {
		return unix.AF_INET6
	}
	return unix.AF_INET
}
