package ruleset

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/nat"
)

// addresses are one or several, separated by commas.
func addresses(v string, not bool, version int, is, isNot *[]netip.Prefix) error {
	var list []netip.Prefix
	for _, one := range strings.Split(v, ",") {
		p, err := parsePrefix(one)
		if err != nil {
			return err
		}
		if p.Addr().Is4() != (version == 4) {
			return fmt.Errorf("%s is not an address of IPv%d", one, version)
		}
		list = append(list, p)
	}
	switch {
	case not && len(list) > 1:
		return fmt.Errorf("iptables refuses ! before several addresses")
	case not:
		*isNot = append(*isNot, list...)
	case len(*is) > 0:
		return fmt.Errorf("an address is there twice")
	case len(list) == 1 && list[0].Bits() == 0: // any
	default:
		*is = list
	}
	return nil
}

// parsePrefix reads an address, a prefix, or an address with a netmask.
func parsePrefix(s string) (netip.Prefix, error) {
	addr, mask, masked := strings.Cut(s, "/")
	a, err := netip.ParseAddr(addr)
	if err != nil || a.Zone() != "" {
		return netip.Prefix{}, fmt.Errorf("%q is not an address: iptables-save prints names as addresses", s)
	}
	if !masked {
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	bits, err := strconv.Atoi(mask)
	if err != nil {
		if bits, err = maskBits(mask); err != nil {
			return netip.Prefix{}, fmt.Errorf("%q: %w", s, err)
		}
	}
	p, err := a.Prefix(bits)
	if err != nil {
		return p, fmt.Errorf("%q is not a prefix", s)
	}
	return p, nil
}

// maskBits is the length of a netmask without holes.
func maskBits(s string) (int, error) {
	a, err := netip.ParseAddr(s)
	if err != nil || !a.Is4() {
		return 0, fmt.Errorf("%q is not a netmask", s)
	}
	m := binary.BigEndian.Uint32(a.AsSlice())
	bits := 0
	for m&(1<<31) != 0 {
		m, bits = m<<1, bits+1
	}
	if m != 0 {
		return 0, fmt.Errorf("the netmask %s has holes, which natkit has no word for", s)
	}
	return bits, nil
}

// protocolNumber is a protocol by its name or number; 0 for all.
func protocolNumber(v string) (uint8, error) {
	if strings.ToLower(v) == "all" {
		return 0, nil
	}
	n, err := nat.ParseProtocol(v)
	if err != nil {
		return 0, fmt.Errorf("natkit does not know the protocol %q: iptables-save prints its number", v)
	}
	return n, nil
}

// services are the names that people use most; iptables-save prints numbers.
var services = map[string]uint16{"ssh": 22, "smtp": 25, "domain": 53, "http": 80, "https": 443}

func parsePort(s string) (uint16, error) {
	if n, ok := services[s]; ok {
		return n, nil
	}
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil {
		return 0, fmt.Errorf("%q is not a port: iptables-save prints names as numbers", s)
	}
	return uint16(n), nil
}

// parsePorts reads 80 and 8000:8100, of which an end may be missing.
func parsePorts(s string) (nat.Ports, error) {
	low, high, both := strings.Cut(s, ":")
	if !both {
		n, err := parsePort(s)
		return nat.Ports{First: n, Last: n}, err
	}
	all := nat.AllPorts
	var err error
	if low != "" {
		if all.First, err = parsePort(low); err != nil {
			return all, err
		}
	}
	if high != "" {
		if all.Last, err = parsePort(high); err != nil {
			return all, err
		}
	}
	if all.First > all.Last {
		return all, fmt.Errorf("the ports %s end before they begin", s)
	}
	return all, nil
}
