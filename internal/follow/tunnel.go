package follow

import (
	"bytes"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/netlink/socket"
	"github.com/natkit/natkit/internal/snapshot"
)

// tunnelOf is the tunnel that an interface is, with its far end for a next hop; nil where it is none.
func (k *places) tunnelOf(l netlink.Link, nextHop netip.Addr) *snapshot.Tunnel {
	t := &snapshot.Tunnel{Kind: l.Type()}
	switch l := l.(type) {
	case *netlink.Vxlan:
		t.Remote, t.Port = addressOf(l.Group), uint16(l.Port)
		if end := farEnd(l, k.hardware[neighbour{nextHop, l.Index}]); end.IsValid() {
			t.Remote = end
		}
		if t.Remote.IsMulticast() {
			t.Remote = netip.Addr{}
		}
	case *netlink.Iptun:
		t.Remote = addressOf(l.Remote)
	case *netlink.Gretun:
		t.Remote = addressOf(l.Remote)
	case *netlink.Gretap:
		t.Remote = addressOf(l.Remote)
	case *netlink.Sittun:
		t.Remote = addressOf(l.Remote)
	case *netlink.Ip6tnl:
		t.Remote = addressOf(l.Remote)
	case *netlink.Wireguard: // its ends are asked for by another family of netlink
	default:
		return nil
	}
	if t.Remote.IsValid() {
		if routes, err := netlink.RouteGet(t.Remote.AsSlice()); err == nil && len(routes) > 0 && routes[0].LinkIndex != l.Attrs().Index {
			first := t.Remote
			if gw := addressOf(routes[0].Gw); gw.IsValid() {
				first = gw
			}
			t.Neighbour = k.neighbours[neighbour{first, routes[0].LinkIndex}]
		}
	}
	return t
}

// addressOf is an address; not valid where there is none, or it is of no host.
func addressOf(ip net.IP) netip.Addr {
	a, ok := netip.AddrFromSlice(ip)
	if !ok || a.Unmap().IsUnspecified() {
		return netip.Addr{}
	}
	return a.Unmap()
}

// farEnd is where the forwarding table of a VXLAN sends frames for a hardware address; those for one that is not in it
// go where frames for all go, if that is one place.
func farEnd(l netlink.Link, hardware net.HardwareAddr) (end netip.Addr) {
	entries, _ := socket.Whole(func() ([]netlink.Neigh, error) { return netlink.NeighList(l.Attrs().Index, unix.AF_BRIDGE) })
	all, others := make(net.HardwareAddr, 6), 0
	for _, e := range entries {
		at := addressOf(e.IP)
		if at.IsValid() && len(hardware) > 0 && bytes.Equal(e.HardwareAddr, hardware) {
			return at
		}
		if at.IsValid() && bytes.Equal(e.HardwareAddr, all) {
			end, others = at, others+1
		}
	}
	if others != 1 {
		return netip.Addr{}
	}
	return end
}

// settleTunnel takes datagrams of a tunnel that ends here for what they are: those that come in are taken by it, and
// those that leave are answered by datagrams of another flow, from another port.
func (k *places) settleTunnel(s *snapshot.FollowedService) {
	p, step := s.Failed.Place, s.Failed.Step
	if p == nil || !k.carries(s.Protocol, s.Service.Port()) {
		return
	}
	taken := step == snapshot.StepLostHere && p.Local && !p.ReversePath && p.Filter != nil && p.Filter.Passes && len(p.Filter.Drops) == 0
	if !taken && !(step == snapshot.StepNoAnswer && s.In == "") || s.Failing() > s.Steps[step] {
		return
	}
	s.Steps[snapshot.StepOneWay] += s.Steps[step]
	delete(s.Steps, step)
	s.Failed = nil
}

// carries reports whether a tunnel of this host sends such packets.
func (k *places) carries(protocol string, port uint16) bool {
	for _, l := range k.links {
		switch l := l.(type) {
		case *netlink.Vxlan:
			if protocol == "udp" && port != 0 && int(port) == l.Port {
				return true
			}
		case *netlink.Geneve:
			if protocol == "udp" && port != 0 && port == l.Dport {
				return true
			}
		case *netlink.Gretun, *netlink.Gretap:
			if protocol == "gre" {
				return true
			}
		}
	}
	return false
}
