package packets

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/natkit/natkit/internal/nat"
)

// Rule is an expectation of an address or a port.
type Rule string

const (
	// Any matches everything.
	Any Rule = ""
	// Same is as it was sent.
	Same Rule = "same"
	// Inside is within a prefix or a range.
	Inside Rule = "inside"
	// Netmap is a prefix's bits, followed by those that were sent (NETMAP).
	Netmap Rule = "netmap"
)

// End is what is expected of a packet's source or destination.
type End struct {
	Address Rule         `json:"address,omitempty"`
	Prefix  netip.Prefix `json:"prefix,omitzero"`
	Port    Rule         `json:"port,omitempty"` // Any, Same or Inside
	// Ports is the range of Inside.
	Ports nat.Ports `json:"ports,omitzero"`
}

// Expectation is the mapping that a NAT on the way should do.
type Expectation struct {
	Source      End `json:"source,omitzero"`
	Destination End `json:"destination,omitzero"`
}

// Given reports whether anything is expected.
func (e Expectation) Given() bool { return e != Expectation{} }

// ParseEnd parses "same", "ADDRESS", "PREFIX" or "netmap:PREFIX", each optionally with ":PORT",
// ":FIRST-LAST" or ":same", and IPv6 in brackets then. A single "same" includes the port.
func ParseEnd(text string) (End, error) {
	end, err := parseEnd(text)
	if err != nil {
		return End{}, fmt.Errorf("read expected mapping %q: %w (same, ADDRESS, PREFIX or netmap:PREFIX, with :PORTS or :same)", text, err)
	}
	return end, nil
}

func parseEnd(text string) (end End, err error) {
	rest, netmap := strings.CutPrefix(text, "netmap:")
	address, ports, given, err := splitPorts(rest)
	if err != nil {
		return End{}, err
	}
	if end, err = parseAddressRule(address); err != nil {
		return End{}, err
	}
	if netmap {
		if !strings.Contains(address, "/") {
			return End{}, fmt.Errorf("netmap needs a prefix")
		}
		end.Address = Netmap
	}
	switch {
	case given:
		return parsePortRule(end, ports)
	case end.Address == Same:
		end.Port = Same
	}
	return end, nil
}

func parsePortRule(end End, ports string) (_ End, err error) {
	if ports == string(Same) {
		end.Port = Same
		return end, nil
	}
	end.Port = Inside
	if end.Ports, err = nat.ParsePorts(ports); err != nil {
		return End{}, fmt.Errorf("ports %q: want PORT, FIRST-LAST or same, from 1 to 65535", ports)
	}
	return end, nil
}

// splitPorts splits at the colon after the address, if there is one.
func splitPorts(text string) (address, ports string, given bool, err error) {
	if inner, ok := strings.CutPrefix(text, "["); ok {
		address, rest, closed := strings.Cut(inner, "]")
		ports, given = strings.CutPrefix(rest, ":")
		switch {
		case !closed:
			return "", "", false, fmt.Errorf("the bracket is not closed")
		case rest != "" && !given:
			return "", "", false, fmt.Errorf("%q behind the bracket: want :PORTS or :same", rest)
		case !strings.Contains(address, ":"):
			return "", "", false, fmt.Errorf("%q in brackets is not IPv6", address)
		}
		return address, ports, given, nil
	}
	if strings.Count(text, ":") > 1 { // IPv6 without a port
		return text, "", false, nil
	}
	address, ports, given = strings.Cut(text, ":")
	return address, ports, given, nil
}

func parseAddressRule(text string) (End, error) {
	if text == string(Same) {
		return End{Address: Same}, nil
	}
	if strings.Contains(text, "/") {
		p, err := netip.ParsePrefix(text)
		if err != nil || p.Addr().Is4In6() {
			return End{}, fmt.Errorf("%q is not a prefix", text)
		}
		return End{Address: Inside, Prefix: p.Masked()}, nil
	}
	a, err := netip.ParseAddr(text)
	switch {
	case err != nil:
		return End{}, fmt.Errorf("%q is not an address", text)
	case a.Zone() != "" || a.Is4In6():
		return End{}, fmt.Errorf("packets carry it as %v", a.WithZone("").Unmap())
	}
	return End{Address: Inside, Prefix: netip.PrefixFrom(a, a.BitLen())}, nil
}

// Check finds expectations of the other address family.
func (e Expectation) Check(ipv6 bool) error {
	for _, end := range []End{e.Source, e.Destination} {
		if end.Prefix.IsValid() && end.Prefix.Addr().Is6() != ipv6 {
			return fmt.Errorf("expected mapping to %v: not of the same family as the packets", end.Prefix)
		}
	}
	return nil
}

// Fits reports whether an address and port arrived as expected of what was sent.
func (e End) Fits(sent, got netip.AddrPort) bool {
	return e.addressFits(sent.Addr(), got.Addr()) && e.portFits(sent.Port(), got.Port())
}

func (e End) addressFits(sent, got netip.Addr) bool {
	switch e.Address {
	case Same:
		return got == sent
	case Inside:
		return e.Prefix.Contains(got)
	case Netmap:
		return sent.BitLen() == e.Prefix.Addr().BitLen() && got == nat.Replace(sent, e.Prefix)
	}
	return true
}

func (e End) portFits(sent, got uint16) bool {
	switch e.Port {
	case Same:
		return got == sent
	case Inside:
		return e.Ports.First <= got && got <= e.Ports.Last
	}
	return true
}
