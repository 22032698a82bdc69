package lab

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/load"
)

// Step is one step of a plan.
type Step struct {
	Kind StepKind
	// Interface gets the step, or is added by it. Steps about a node have only that of it.
	Interface
	// Peer is the other end of a veth pair, the port of a bridge, or whose neighbour's
	// address and MAC the interface learns.
	Peer Interface
	// Address is that of the interface, of its neighbour, or the network of a route, which is
	// 0.0.0.0/0 or ::/0 for the default route.
	Address netip.Prefix
	Via     netip.Addr
	MTU     int
	Sysctl
}

// Interface is one interface of a node.
type Interface struct {
	Node, Name string
	MAC        net.HardwareAddr
}

// Sysctl is a value to set. An Optional one may be missing in the kernel.
type Sysctl struct {
	Key, Value string
	Optional   bool
}

// StepKind is what a step does.
type StepKind int

// Kinds of steps.
const (
	// AddNode makes a network namespace, its loopback interface up.
	AddNode StepKind = iota
	// AddVeth makes a pair of interfaces, each end directly in its node, both up.
	AddVeth
	// AddBridge makes a bridge, takes its port into it and sets it up.
	AddBridge
	// SetMTU sets what an interface sends at most.
	SetMTU
	// SetWire has an interface send and receive as over a wire to a network card, which XDP programs at
	// the other end need: it completes checksums, and takes frames that they redirect.
	SetWire
	AddAddress
	// AddNeighbour makes a permanent entry, so that no ARP disturbs a measurement.
	AddNeighbour
	AddRoute
	SetSysctl
)

func (s Step) String() string {
	switch s.Kind {
	case AddNode:
		return "ip netns add " + s.Node
	case AddVeth:
		return fmt.Sprintf("ip link add %s netns %s address %s type veth peer %s netns %s address %s", s.Name, s.Node, s.MAC, s.Peer.Name, s.Peer.Node, s.Peer.MAC)
	case AddBridge:
		return fmt.Sprintf("ip -n %s link add %s address %s type bridge; ip -n %s link set %s master %s", s.Node, s.Name, s.MAC, s.Node, s.Peer.Name, s.Name)
	case SetMTU:
		return fmt.Sprintf("ip -n %s link set %s mtu %d", s.Node, s.Name, s.MTU)
	case SetWire:
		return fmt.Sprintf("ip netns exec %s ethtool -K %s tx off gro on", s.Node, s.Name)
	case AddAddress:
		return fmt.Sprintf("ip -n %s address add %s dev %s", s.Node, s.Address, s.Name)
	case AddNeighbour:
		return fmt.Sprintf("ip -n %s neighbour add %s lladdr %s dev %s nud permanent", s.Node, s.Address.Addr(), s.Peer.MAC, s.Name)
	case SetSysctl:
		return fmt.Sprintf("ip netns exec %s sysctl -w %s='%s'", s.Node, s.Key, s.Value)
	}
	to := s.Address.String()
	if s.Address.Bits() == 0 {
		to = "default"
	}
	return fmt.Sprintf("ip -n %s route add %s via %s", s.Node, to, s.Via)
}

// Addresses are some, in order.
type Addresses []netip.Addr

// String is one address, or the first and the last of a range.
func (a Addresses) String() string {
	switch len(a) {
	case 0:
		return ""
	case 1:
		return a[0].String()
	}
	return fmt.Sprintf("%s-%s", a[0], a[len(a)-1])
}

// Expected is the written form.
func (a Addresses) Expected() string {
	return "an address, a range or a prefix such as 198.18.0.10, 198.18.0.10-198.18.0.11 or 198.18.1.0/30"
}

// UnmarshalText reads the written form.
func (a *Addresses) UnmarshalText(text []byte) (err error) {
	*a, err = load.ParseSources(string(text))
	if err == nil && slices.ContainsFunc(*a, func(addr netip.Addr) bool { return !usable(addr) }) {
		err = errForm
	}
	return err
}
