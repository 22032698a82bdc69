package convert

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/gateway"
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

// protocolName is the name by which natkit knows a protocol; empty for all.
func protocolName(v string) (string, error) {
	v = strings.ToLower(v)
	if n, err := strconv.ParseUint(v, 10, 8); err == nil {
		if n == 0 {
			return "", nil
		}
		return nat.ProtocolName(uint8(n)), nil
	}
	switch v {
	case "all":
		return "", nil
	case "icmpv6", "ipv6-icmp":
		return nat.ProtocolName(58), nil
	}
	n, err := nat.ParseProtocol(v)
	if err != nil {
		return "", fmt.Errorf("natkit does not know the protocol %q: iptables-save prints its number", v)
	}
	return nat.ProtocolName(n), nil
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

// tracker is the priority of the connection tracker at its hooks (NF_IP_PRI_CONNTRACK).
const tracker = -200

func (e *entry) expressNotrack() string {
	m := e.match
	from, to := m.From.IsValid(), m.To.IsValid()
	switch {
	case e.priority >= tracker:
		return fmt.Sprintf("comes after the tracker, and keeps nothing from it (priority %d)", e.priority)
	case from == to || from && !m.From.IsSingleIP() || to && !m.To.IsSingleIP():
		return "natkit's notrack is for what one address gets and sends"
	case to && len(m.SourcePorts) > 0 || from && len(m.Ports) > 0:
		return "is for ports of the other host; natkit's notrack is for those of its own address"
	case len(e.except) > 0:
		return fmt.Sprintf("%s keeps some of its packets from it", where(e.except[0].rule))
	}
	if word := wordless(&m, "from to protocol sport"); word != "" {
		return noWord + word
	}
	return ""
}

// perPort is an entry for each of the ports of a rule that keeps the tracker off, as a
// rule of the file has one range.
func (e *entry) perPort() []*entry {
	ports := append(append([]nat.Ports{}, e.match.Ports...), e.match.SourcePorts...)
	if e.rule.Target.Kind != Notrack || len(ports) < 2 || len(e.match.Ports)*len(e.match.SourcePorts) > 0 {
		return []*entry{e}
	}
	var all []*entry
	for _, p := range ports {
		one := *e
		if len(e.match.Ports) > 0 {
			one.match.Ports = []nat.Ports{p}
		} else {
			one.match.SourcePorts = []nat.Ports{p}
		}
		all = append(all, &one)
	}
	return all
}

// untracked is the address and the ports that such an entry is about, and whether that
// is what comes for them.
func (e *entry) untracked() (on netip.Addr, port gateway.Port, to bool) {
	m := &e.match
	list := m.Ports
	if to = m.To.IsValid(); to {
		on = m.To.Addr()
	} else {
		on, list = m.From.Addr(), m.SourcePorts
	}
	port.Protocol = m.Protocol
	if len(list) == 1 && list[0] != nat.AllPorts {
		port.First, port.Last = list[0].First, list[0].Last
	}
	return on, port, to
}

// makeNotrack wants both directions: what the address gets, and what it sends.
func (t *translator) makeNotrack(e *entry, later []*entry) (*made, string) {
	on, port, _ := e.untracked()
	m := &made{version: e.version, rule: gateway.Rule{Notrack: &gateway.Notrack{On: gateway.Address{Addr: on}, Port: port}}}
	gets, sends := false, false
	for _, x := range append([]*entry{e}, later...) {
		if x.rule.Target.Kind != Notrack {
			continue
		}
		if a, p, to := x.untracked(); a == on && p == port {
			m.from = append(m.from, x)
			gets, sends = gets || to && x.hook == "prerouting", sends || !to
		}
	}
	if !gets || !sends {
		return nil, "is for one direction; natkit's notrack is for what the address gets and for what it sends"
	}
	return m, ""
}
