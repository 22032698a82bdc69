package pktgen

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/load/packets"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/permit"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Egress is the way out of the sender's namespace.
type Egress struct {
	Port
	Index int
	MTU   int
	// Kind is the driver's name for it, such as veth.
	Kind string
	MAC  net.HardwareAddr
	// NextMAC is who gets the frames: the destination or the router to it.
	NextMAC net.HardwareAddr
	// Source is the address that the kernel would send from, if the interface has one.
	Source netip.Addr

	peerIndex, peerNamespace int // of a veth: IFLA_LINK, IFLA_LINK_NETNSID
	neighbours               []*netns.Handle
}

// link is the beginning of every frame.
func (e Egress) link() frame.Link {
	return frame.Link{Destination: [6]byte(e.NextMAC), Source: [6]byte(e.MAC)}
}

// Route is the user's choice of the egress; the rest comes from routes and neighbours.
type Route struct {
	Netns *netns.Handle
	// Interface is empty for the route's.
	Interface string
	// NextMAC is nil for the neighbour's.
	NextMAC net.HardwareAddr
	// Neighbours are namespaces to search first for the other end of a veth. The caller closes
	// them.
	Neighbours []*netns.Handle
}

// neighbourLimit is how long a neighbour may take to answer.
const neighbourLimit = 2 * time.Second

// ReadEgress finds the egress to an address. An unresolved neighbour is resolved by a datagram to
// its discard port.
func ReadEgress(route Route, to netip.Addr) (e Egress, err error) {
	e = Egress{Port: Port{Netns: route.Netns, Interface: route.Interface}, NextMAC: route.NextMAC, neighbours: route.Neighbours}
	if err := links(route.Netns, func(handle *netlink.Handle) error { return e.read(handle, to) }); err != nil {
		return e, fmt.Errorf("find the way to %v: %w", to, err)
	}
	return e, nil
}

// links calls fn with a route netlink socket of a namespace, in that namespace.
func links(ns *netns.Handle, fn func(*netlink.Handle) error) error {
	return ns.Do(func() error {
		handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return fmt.Errorf("open a netlink socket: %w", err)
		}
		defer handle.Close()
		return fn(handle)
	})
}

func (e *Egress) read(handle *netlink.Handle, to netip.Addr) error {
	route, err := e.route(handle, to)
	if err != nil {
		return err
	}
	l, err := handle.LinkByIndex(e.Index)
	if err != nil {
		return fmt.Errorf("read interface %d: %w", e.Index, err)
	}
	if err := e.describe(l); err != nil {
		return err
	}
	if e.NextMAC != nil {
		return nil
	}
	return e.findNeighbour(handle, nextHop(route, to))
}

// describe takes what an interface is, if frames can be sent by it.
func (e *Egress) describe(l netlink.Link) error {
	a := l.Attrs()
	e.Index, e.Interface, e.MTU, e.Kind, e.MAC = a.Index, a.Name, a.MTU, l.Type(), a.HardwareAddr
	e.peerIndex, e.peerNamespace = a.ParentIndex, a.NetNsID
	switch {
	case a.Flags&net.FlagUp == 0:
		return fmt.Errorf("interface %s is down (ip link set %s up)", a.Name, a.Name)
	case a.OperState == netlink.OperDown || a.OperState == netlink.OperLowerLayerDown:
		return fmt.Errorf("interface %s has no carrier (is its other end up?)", a.Name)
	case len(a.HardwareAddr) != 6:
		return fmt.Errorf("interface %s has no Ethernet address: frames cannot be made for it", a.Name)
	}
	if slices.Contains(noRedirect, e.Kind) {
		return fmt.Errorf("interface %s is a %s, whose driver takes no redirected frames; use the device below it", a.Name, e.Kind)
	}
	return nil
}

// noRedirect are kinds of interfaces without ndo_xdp_xmit, which drop redirected frames.
var noRedirect = []string{"bridge", "vlan", "macvlan", "ipvlan", "dummy", "vxlan", "geneve", "ifb", "team", "vrf",
	"netkit", "macsec", "gretap", "ip6gretap", "erspan"}

// route asks the kernel for the way, or takes the interface as it is given.
func (e *Egress) route(handle *netlink.Handle, to netip.Addr) (netlink.Route, error) {
	options := &netlink.RouteGetOptions{}
	if e.Interface != "" {
		i, err := net.InterfaceByName(e.Interface)
		if err != nil {
			return netlink.Route{}, fmt.Errorf("no such interface %s ('ip link' lists them)", e.Interface)
		}
		e.Index, options.Oif = i.Index, e.Interface
	}
	routes, err := handle.RouteGetWithOptions(to.AsSlice(), options)
	switch {
	case err != nil && e.Interface != "" && e.NextMAC != nil:
		return netlink.Route{}, nil // all that a frame needs is given
	case err != nil || len(routes) == 0:
		return netlink.Route{}, fmt.Errorf("no route: %w", errors.Join(err))
	case routes[0].Type == unix.RTN_BROADCAST:
		return netlink.Route{}, fmt.Errorf("it is a broadcast address there: all hosts on the link would get the packets; give that of one host")
	case routes[0].Type == unix.RTN_LOCAL:
		return netlink.Route{}, fmt.Errorf("it is an address of the sender itself; packets are made for another host or namespace")
	}
	e.Index = routes[0].LinkIndex
	e.Source, _ = netip.AddrFromSlice(routes[0].Src)
	e.Source = e.Source.Unmap()
	return routes[0], nil
}

func nextHop(route netlink.Route, to netip.Addr) netip.Addr {
	gateway := route.Gw
	if gateway == nil && route.Via != nil {
		if via, ok := route.Via.(*netlink.Via); ok {
			gateway = via.Addr
		}
	}
	if a, ok := netip.AddrFromSlice(gateway); ok {
		return a.Unmap()
	}
	return to
}

// usable are the states in which the kernel itself would send to a neighbour.
const usable = netlink.NUD_PERMANENT | netlink.NUD_NOARP | netlink.NUD_REACHABLE | netlink.NUD_STALE | netlink.NUD_DELAY | netlink.NUD_PROBE

func (e *Egress) findNeighbour(handle *netlink.Handle, hop netip.Addr) error {
	asked := false
	for end := time.Now().Add(neighbourLimit); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		neighbours, err := handle.NeighList(e.Index, family(hop))
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) { // then some may be missing: try again
			return fmt.Errorf("read the neighbours of %s: %w", e.Interface, err)
		}
		for _, n := range neighbours {
			if a, _ := netip.AddrFromSlice(n.IP); a.Unmap() == hop && n.State&usable != 0 && len(n.HardwareAddr) == 6 {
				if n.HardwareAddr[0]&1 != 0 {
					return fmt.Errorf("the neighbour %v on %s has the group address %v: all hosts on the link would get the packets", hop, e.Interface, n.HardwareAddr)
				}
				e.NextMAC = n.HardwareAddr
				return nil
			}
		}
		if !asked {
			asked = true
			askNeighbour(hop, e.Interface)
		}
	}
	return fmt.Errorf("no answer from the neighbour %v on %s within %v (is it up? Its Ethernet address can be given: --next-mac)",
		hop, e.Interface, neighbourLimit)
}

// askNeighbour makes the kernel resolve a neighbour.
func askNeighbour(hop netip.Addr, dev string) {
	if hop.Is6() && hop.IsLinkLocalUnicast() {
		hop = hop.WithZone(dev)
	}
	const discard = 9
	if c, err := net.Dial("udp", netip.AddrPortFrom(hop, discard).String()); err == nil {
		c.Write([]byte{0})
		c.Close()
	}
}

func family(a netip.Addr) int {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// CheckMTU finds frames that the interface does not carry.
func (e Egress) CheckMTU(spec packets.Spec) error { return checkMTU(e.Port, e.MTU, spec) }

func checkMTU(port Port, mtu int, spec packets.Spec) error {
	most := mtu + frame.EthernetLen + frame.FCSLen
	if spec.VLAN != 0 {
		most += frame.VLANLen
	}
	if size := spec.MaxSize(); size > most {
		return fmt.Errorf("frame size %d: %v carries at most %d bytes, FCS included (its MTU is %d)", size, port, most, mtu)
	}
	return nil
}

// Forward makes every frame that enters at an interface of the namespace in which to lies leave by
// to, with new Ethernet addresses: the least work of a router. It ends when it is closed.
func Forward(interfaceName string, to Egress) (*Attached, error) {
	if err := permit.Change("attach an eBPF program that forwards packets"); err != nil {
		return nil, err
	}
	port := Port{Netns: to.Netns, Interface: interfaceName}
	index, err := interfaceIndex(port)
	if err != nil {
		return nil, fmt.Errorf("forward from %v: %w", port, err)
	}
	return attachProgram(port, index, pktgenProgForward, map[string]any{
		pktgenVarOutIfindex: uint32(to.Index), pktgenVarMacWords: words(to.NextMAC, to.MAC),
	})
}

// Attached is a program that is attached to an interface.
type Attached struct {
	program *ebpf.Program
	link    link.Link
}

// attachProgram loads one of the programs that do without a run's tables, and attaches it.
func attachProgram(port Port, index int, name string, values map[string]any) (*Attached, error) {
	spec, err := programs()
	if err != nil {
		return nil, err
	}
	if err := set(spec, values); err != nil {
		return nil, err
	}
	var objects struct {
		Program *ebpf.Program `ebpf:"chosen"`
	}
	spec.Programs["chosen"] = spec.Programs[name]
	if err := loadPrograms(spec, &objects, nil); err != nil {
		return nil, err
	}
	a := &Attached{program: objects.Program}
	if a.link, _, err = attach(port, index, a.program); err != nil {
		return nil, errors.Join(fmt.Errorf("%s at %v: %w", name, port, err), a.program.Close())
	}
	return a, nil
}

// Close detaches it.
func (a *Attached) Close() error { return errors.Join(a.link.Close(), a.program.Close()) }
