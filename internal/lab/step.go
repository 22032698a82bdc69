package lab

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/load"
)

// Step is one of AddNode, AddVeth, AddBridge, AddAddress, AddNeighbour,
// AddRoute and SetSysctl.
type Step interface {
	fmt.Stringer
	// In is the node that the step belongs to.
	In() string
}

// AddNode makes a network namespace, its loopback interface up.
type AddNode struct{ Node string }

// AddVeth makes a pair of interfaces, each end directly in its node, both up.
type AddVeth [2]Interface

// Interface is one interface of a node.
type Interface struct {
	Node, Name string
	MAC        net.HardwareAddr
}

// AddBridge makes a bridge with br_netfilter on, takes Port into it and sets it up.
type AddBridge struct {
	Interface
	Port string
}

// AddAddress gives an interface its address.
type AddAddress struct {
	Node, Interface string
	Address         netip.Prefix
}

// AddNeighbour makes a permanent entry, so that no ARP disturbs a measurement.
type AddNeighbour struct {
	Node, Interface string
	Address         netip.Addr
	MAC             net.HardwareAddr
}

// AddRoute leads to Network over Via; Network is 0.0.0.0/0 or ::/0 for the default
// route.
type AddRoute struct {
	Node    string
	Network netip.Prefix
	Via     netip.Addr
}

// SetSysctl writes a value in a node. An Optional one may be missing in the kernel.
type SetSysctl struct {
	Node, Name, Value string
	Optional          bool
}

func (a AddNode) In() string      { return a.Node }
func (a AddVeth) In() string      { return a[0].Node }
func (a AddBridge) In() string    { return a.Node }
func (a AddAddress) In() string   { return a.Node }
func (a AddNeighbour) In() string { return a.Node }
func (a AddRoute) In() string     { return a.Node }
func (a SetSysctl) In() string    { return a.Node }

func (a AddNode) String() string { return "ip netns add " + a.Node }

func (a AddVeth) String() string {
	return fmt.Sprintf("ip link add %s netns %s address %s type veth peer %s netns %s address %s",
		a[0].Name, a[0].Node, a[0].MAC, a[1].Name, a[1].Node, a[1].MAC)
}

func (a AddBridge) String() string {
	return fmt.Sprintf("ip -n %s link add %s address %s type bridge nf_call_iptables 1; ip -n %s link set %s master %s",
		a.Node, a.Name, a.MAC, a.Node, a.Port, a.Name)
}

func (a AddAddress) String() string {
	return fmt.Sprintf("ip -n %s address add %s dev %s", a.Node, a.Address, a.Interface)
}

func (a AddNeighbour) String() string {
	return fmt.Sprintf("ip -n %s neighbour add %s lladdr %s dev %s nud permanent", a.Node, a.Address, a.MAC, a.Interface)
}

func (a AddRoute) String() string {
	to := a.Network.String()
	if a.Network.Bits() == 0 {
		to = "default"
	}
	return fmt.Sprintf("ip -n %s route add %s via %s", a.Node, to, a.Via)
}

func (a SetSysctl) String() string {
	return fmt.Sprintf("ip netns exec %s sysctl -w %s='%s'", a.Node, a.Name, a.Value)
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
