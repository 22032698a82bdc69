package lab

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/load"
	"go.yaml.in/yaml/v4"
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

// Duration is a time.Duration written as 1500ms, 2s, 1m.
type Duration struct{ time.Duration }

// UnmarshalYAML reads it and keeps the place for an error.
func (d *Duration) UnmarshalYAML(n *yaml.Node) error {
	return scalar(n, "a duration such as 500ms, 2s or 1m", func(text string) (err error) {
		d.Duration, err = time.ParseDuration(text)
		return err
	})
}

// MarshalText is the written form.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// Prefix is an interface's address with the length of its subnet.
type Prefix struct{ netip.Prefix }

// UnmarshalYAML reads it and keeps the place for an error.
func (p *Prefix) UnmarshalYAML(n *yaml.Node) error {
	return scalar(n, "an address with prefix length such as 198.18.0.1/24", func(text string) (err error) {
		p.Prefix, err = netip.ParsePrefix(text)
		if err == nil && !usable(p.Addr()) {
			err = fmt.Errorf("not an address of a host")
		}
		return err
	})
}

// Address is that of a host.
type Address struct{ netip.Addr }

// UnmarshalYAML reads it and keeps the place for an error.
func (a *Address) UnmarshalYAML(n *yaml.Node) error {
	return scalar(n, "an address such as 198.18.0.1", func(text string) (err error) {
		a.Addr, err = netip.ParseAddr(text)
		if err == nil && !usable(a.Addr) {
			err = fmt.Errorf("not an address of a host")
		}
		return err
	})
}

// Addresses are some, in order.
type Addresses []netip.Addr

// UnmarshalYAML reads them and keeps the place for an error.
func (a *Addresses) UnmarshalYAML(n *yaml.Node) error {
	return scalar(n, "an address, a range or a prefix such as 198.18.0.10, 198.18.0.10-198.18.0.11 or 198.18.1.0/30", func(text string) (err error) {
		*a, err = load.ParseSources(text)
		for _, addr := range *a {
			if err == nil && !usable(addr) {
				err = fmt.Errorf("not an address of a host")
			}
		}
		return err
	})
}

// AddrPort is an address and a port.
type AddrPort struct{ netip.AddrPort }

// UnmarshalYAML reads it and keeps the place for an error.
func (a *AddrPort) UnmarshalYAML(n *yaml.Node) error {
	return scalar(n, "an address and port such as 198.19.0.2:80", func(text string) (err error) {
		a.AddrPort, err = netip.ParseAddrPort(text)
		if err == nil && (!usable(a.Addr()) || a.Port() == 0) {
			err = fmt.Errorf("not an address with a port")
		}
		return err
	})
}

// Port is a transport protocol and a port number, written as tcp/8080.
type Port struct {
	// Protocol is "tcp" or "udp".
	Protocol string
	Number   uint16
}

func (p Port) String() string { return fmt.Sprintf("%s/%d", p.Protocol, p.Number) }

// UnmarshalYAML reads it and keeps the place for an error.
func (p *Port) UnmarshalYAML(n *yaml.Node) error {
	return scalar(n, "a protocol and port such as tcp/8080", func(text string) error {
		proto, number, ok := strings.Cut(text, "/")
		v, err := strconv.ParseUint(number, 10, 16)
		if !ok || err != nil || v == 0 || proto != "tcp" && proto != "udp" {
			return fmt.Errorf("not a port")
		}
		*p = Port{Protocol: proto, Number: uint16(v)}
		return nil
	})
}
