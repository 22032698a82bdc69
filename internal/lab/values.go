package lab

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/natkit/natkit/internal/load"
)

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
