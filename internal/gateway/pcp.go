package gateway

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/document"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/unix"
	"go.yaml.in/yaml/v4"
)

// PCP lets hosts inside open ports of an address outside to themselves, by the Port Control Protocol (RFC 6887) or
// NAT-PMP (RFC 6886). It is written on, or as a mapping of what differs from the defaults; the zero value is off.
type PCP struct {
	On bool `yaml:"-" json:"on"`
	// LAN are the interfaces or roles by which requests come; those of the role lan where empty.
	LAN Names `yaml:"lan" json:"lan,omitempty"`
	// From are the hosts that may ask; those of the interfaces' own networks where empty.
	From Prefixes `yaml:"from" json:"from,omitempty"`
	// At is the address whose ports are given, or the role or interface whose first address is meant; the role wan
	// where it is zero.
	At On `yaml:"on" json:"at,omitzero"`
	// Limit is how many ports one host may have at one time, DefaultLeases where it is 0.
	Limit LeaseLimit `yaml:"limit" json:"limit,omitempty"`
	// Ports are those that may be given, DefaultLeasePorts where it is zero.
	Ports LeasePorts `yaml:"ports" json:"ports,omitzero"`
	// Lifetime bounds how long a port is given for, until its host asks again.
	Lifetime Lifetime `yaml:"lifetime" json:"lifetime,omitzero"`
}

// The defaults of PCP. The lifetimes are those that RFC 6887 recommends (section 15).
const (
	DefaultLeases   = 32
	DefaultMinLease = 2 * time.Minute
	DefaultMaxLease = 24 * time.Hour
)

// DefaultLeasePorts are those that programs without privileges may have.
var DefaultLeasePorts = nat.Ports{First: 1024, Last: 65535}

// Lifetime is from Min to Max; a default stands for 0.
type Lifetime struct {
	Min LeaseTime `yaml:"min" json:"min_ns,omitempty"`
	Max LeaseTime `yaml:"max" json:"max_ns,omitempty"`
}

// LeaseTime is written 90s, 2m, 12h or 1d.
type LeaseTime time.Duration

// LeaseLimit is a number from 1 to MostLeases.
type LeaseLimit int

// LeasePorts are 1024-65535, or one port.
type LeasePorts struct{ nat.Ports }

const (
	// MostLeases bounds the ports of all hosts together.
	MostLeases              = 4096
	leastLease, longestTime = 30 * time.Second, 30 * 24 * time.Hour
)

// UnmarshalYAML is yaml.Unmarshaler.
func (p *PCP) UnmarshalYAML(n *yaml.Node) error {
	if document.IsMapping(n) {
		type plain PCP // without this method
		with := plain{On: true}
		err := document.Mapping(n, &with)
		*p = PCP(with)
		return err
	}
	var on Switch
	err := scalar(n, "on, off, or a mapping such as {lan: eth1, limit: 32}", &on, func(text string) (Switch, error) { return parseSwitch(text) })
	*p = PCP{On: bool(on)}
	return err
}

// UnmarshalYAML is yaml.Unmarshaler.
func (l *LeaseLimit) UnmarshalYAML(n *yaml.Node) error {
	return scalar(n, fmt.Sprintf("a number from 1 to %d", MostLeases), l, func(text string) (LeaseLimit, error) {
		n, err := strconv.ParseUint(text, 10, 16)
		switch {
		case err == nil && n == 0:
			err = document.Advice("write pcp: off, if no host may have a port")
		case err == nil && n > MostLeases:
			err = errNumber
		}
		return LeaseLimit(n), err
	})
}

// UnmarshalYAML is yaml.Unmarshaler.
func (p *LeasePorts) UnmarshalYAML(n *yaml.Node) error {
	return scalar(n, "ports such as 1024-65535", p, func(text string) (p LeasePorts, err error) {
		p.First, p.Last, err = parseSpan(text)
		return p, err
	})
}

// UnmarshalYAML is yaml.Unmarshaler.
func (t *LeaseTime) UnmarshalYAML(n *yaml.Node) error {
	return scalar(n, "a time such as 2m, 12h or 1d", t, func(text string) (LeaseTime, error) {
		d, err := time.ParseDuration(text)
		if days, is := strings.CutSuffix(text, "d"); is {
			n, bad := strconv.ParseUint(days, 10, 8)
			d, err = time.Duration(n)*24*time.Hour, bad
		}
		switch {
		case err != nil && strings.Trim(text, "0123456789.") == "":
			return 0, document.Advice("a time needs its unit: write " + text + "s")
		case err != nil:
			return 0, errNumber
		case d < leastLease || d > longestTime:
			return 0, document.Advice("it is from 30s to 30d")
		}
		return LeaseTime(d), nil
	})
}

// String is the written form: 24h is 1d.
func (t LeaseTime) String() string { return leaseWords(time.Duration(t)) }

func leaseWords(d time.Duration) string {
	const day = 24 * time.Hour
	if d%day == 0 && d > 0 {
		return fmt.Sprintf("%dd", d/day)
	}
	return shortDuration(d)
}

// isPlain reports whether all is as it is by default.
func (p PCP) isPlain() bool {
	return len(p.LAN)+len(p.From) == 0 && p.At == (On{}) && p.Limit == 0 && p.Ports == (LeasePorts{}) && p.Lifetime == (Lifetime{})
}

// lan are the names of the interfaces that requests come by.
func (p PCP) lan() Names {
	if len(p.LAN) == 0 {
		return Names{RoleLAN}
	}
	return p.LAN
}

// Grants are the ports that hosts inside may open to themselves.
type Grants struct {
	// LAN are the interfaces that requests come by, From the hosts that may ask; those of the networks of LAN
	// where empty.
	LAN  []string       `json:"lan"`
	From []netip.Prefix `json:"from,omitempty"`
	// External is the address whose ports are given; it is not valid while the interface has none.
	External netip.Addr `json:"external,omitzero"`
	// Limit is for each host.
	Limit int           `json:"limit"`
	Ports nat.Ports     `json:"ports"`
	Min   time.Duration `json:"min_ns"`
	Max   time.Duration `json:"max_ns"`
}

// String says what may be opened; empty for nil.
func (g *Grants) String() string {
	if g == nil {
		return ""
	}
	on := "an address outside that is to come"
	if g.External.IsValid() {
		on = g.External.String()
	}
	text := fmt.Sprintf("ports %s of %s for hosts of %s", g.Ports, on, strings.Join(g.LAN, ", "))
	if len(g.From) > 0 {
		text += " from " + nat.PrefixesString(g.From)
	}
	return fmt.Sprintf("%s, %d each, for %s to %s", text, g.Limit, leaseWords(g.Min), leaseWords(g.Max))
}

// Serves reports whether a host that asks may open ports: it is in the networks of the interfaces that requests come by,
// or in From, and is not the gateway itself.
func (g *Grants) Serves(facts *Facts, host netip.Addr) bool {
	if !host.Is4() || host.IsMulticast() || host.IsLoopback() || host.IsUnspecified() || facts.Has(host) {
		return false
	}
	in := func(p netip.Prefix) bool { return p.Contains(host) }
	if len(g.From) > 0 {
		return slices.ContainsFunc(g.From, in)
	}
	return slices.ContainsFunc(g.LAN, func(name string) bool { return facts.near(name, host) })
}

// ServesBy reports whether a host may open ports by what comes in by an interface: Serves, and the host is in the networks
// of that interface, or routed, the interface that the host's packets leave by, is it. Who is in one network
// cannot ask as a host of another one.
func (g *Grants) ServesBy(facts *Facts, name string, host netip.Addr, routed func(netip.Addr) string) bool {
	return g.Serves(facts, host) && (facts.near(name, host) || len(g.From) > 0 && routed(host) == name)
}

// near reports whether a host may be in the networks of an interface.
func (f *Facts) near(name string, host netip.Addr) bool {
	return slices.ContainsFunc(f.AddressesOf(name), func(p netip.Prefix) bool {
		return p.Contains(host) && host != p.Masked().Addr() && host != nat.LastAddr(p)
	})
}

func (b *compiler) pcp() (err error) {
	c := &b.config.PCP
	if !c.On {
		return nil
	}
	g := &Grants{Limit: cmp.Or(int(c.Limit), DefaultLeases), Ports: cmp.Or(c.Ports.Ports, DefaultLeasePorts),
		Min: cmp.Or(time.Duration(c.Lifetime.Min), DefaultMinLease), Max: time.Duration(c.Lifetime.Max)}
	g.Max = cmp.Or(g.Max, max(DefaultMaxLease, g.Min))
	g.Min = min(g.Min, g.Max)
	if g.LAN, err = b.resolve(c.lan()); err != nil {
		return fmt.Errorf("pcp: lan: %w", err)
	}
	if zoned := b.config.Zoned(); slices.ContainsFunc(g.LAN, func(name string) bool { return slices.Contains(zoned, name) }) {
		return errors.New("pcp: lan: expected interfaces of no zone")
	}
	if len(b.plan.WAN)+len(b.plan.LAN) == 0 || slices.ContainsFunc(g.LAN, func(name string) bool { return !b.plan.Inside(name) }) {
		return errors.New("pcp: lan: expected interfaces that lead inside, by interfaces: {wan: eth0, lan: eth1}")
	}
	rule := ruleCompiler{compiler: b, bits: 32}
	if g.From, err = rule.prefixes("from", c.From); err != nil {
		return fmt.Errorf("pcp: %w", err)
	}
	if g.External, err = b.external(c.At); err != nil {
		return fmt.Errorf("pcp: on: %w", err)
	}
	b.plan.PCP, b.plan.IPv4 = g, true
	return nil
}

// external is the first address of IPv4 that at names: in the order of the file, as in that of the host.
func (b *compiler) external(at On) (netip.Addr, error) {
	switch {
	case at.Address.Is4():
		return at.Address, nil
	case at.Address.IsValid(), at.Name == OnAny:
		return netip.Addr{}, errors.New("expected an address of IPv4, or the role or interface that has it")
	}
	names := []string{at.Name}
	switch cmp.Or(at.Name, RoleWAN) {
	case RoleWAN:
		names = b.config.Interfaces.WAN.Names()
	case RoleLAN:
		names = b.config.Interfaces.LAN.Names()
	}
	if len(names) == 0 {
		return netip.Addr{}, fmt.Errorf("no interface has the role %s: name it below interfaces", cmp.Or(at.Name, RoleWAN))
	}
	for _, name := range names {
		if all := b.addresses(name, 32); len(all) > 0 {
			return all[0], nil
		}
	}
	return netip.Addr{}, nil
}

// Lease is a port outside that a host inside has opened to itself, for a time.
type Lease struct {
	Protocol uint8          `json:"protocol"`
	External netip.AddrPort `json:"external"`
	Internal netip.AddrPort `json:"internal"`
	Expires  time.Time      `json:"expires"`
	// Nonce is what the host proves by that the lease is its own, in hex (RFC 6887, section 11.1); empty where NAT-PMP
	// opened it.
	Nonce string `json:"nonce,omitempty"`
}

// leaseList is the list of the references by which reports name leases.
const leaseList = "pcp"

// Ref names a lease as rules are named: pcp[40000] udp.
func (l *Lease) Ref() Ref {
	return Ref{List: leaseList, Index: int(l.External.Port()), Kind: nat.ProtocolName(l.Protocol)}
}

// PortSet is a set of ports.
type PortSet [1 << 16 / 64]uint64

// Add adds ports.
func (s *PortSet) Add(p nat.Ports) {
	for port := int(p.First); port <= int(p.Last); port++ {
		s[port/64] |= 1 << (port % 64)
	}
}

// Has reports whether a port is one of them.
func (s *PortSet) Has(port uint16) bool { return s[port/64]&(1<<(port%64)) != 0 }

// LeaseProtocols are those whose ports are given.
var LeaseProtocols = []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP}

// Claimed are the ports of the address of PCP that rules of the plan are for, whoever the client is: they are not
// given.
func (p *Plan) Claimed(protocol uint8) *PortSet {
	claimed := &PortSet{}
	if p.PCP == nil || !p.PCP.External.IsValid() {
		return claimed
	}
	on := func(prefixes []netip.Prefix) bool {
		return len(prefixes) == 0 || slices.ContainsFunc(prefixes, func(x netip.Prefix) bool { return x.Contains(p.PCP.External) })
	}
	for _, list := range [][]Entry{p.Destinations, p.Untracked} {
		for i := range list {
			e := &list[i]
			if on(e.To) && (e.Pairs() == nil || e.HasOutside(p.PCP.External)) && (e.Protocol == 0 || e.Protocol == protocol) && !e.IsOwn() && p.fromOutside(e) {
				e.claim(claimed, protocol)
			}
		}
	}
	for i := range p.Stateless {
		if p.Stateless[i].HasOutside(p.PCP.External) {
			claimed.Add(nat.AllPorts)
		}
	}
	return claimed
}

// fromOutside reports whether an entry may be for what comes in by a WAN interface.
func (p *Plan) fromOutside(e *Entry) bool {
	return len(e.In) == 0 || len(p.WAN) == 0 || slices.ContainsFunc(e.In, func(name string) bool { return nat.IsSeveral(name) || nat.InNames(p.WAN, name) })
}

// claim adds the ports of a protocol that an entry asks for.
func (e *Entry) claim(claimed *PortSet, protocol uint8) {
	ports, some := e.Ports, len(e.Ports) > 0
	for i := range e.Members {
		x := &e.Members[i]
		if x.Of != nat.DestPorts || x.Not {
			continue
		}
		some = true
		for _, s := range x.Set.Services {
			if s.Protocol == protocol {
				ports = append(slices.Clip(ports), s.Ports)
			}
		}
	}
	if !some {
		ports = []nat.Ports{nat.AllPorts}
	}
	for _, one := range ports {
		claimed.Add(one)
	}
}

// Lends are those of some leases that the plan can have in force at a time: not expired, on its address, and of ports that
// it may give.
func (p *Plan) Lends(leases []Lease, now time.Time) (all []Lease) {
	if p.PCP == nil || len(leases) == 0 {
		return nil
	}
	claimed := map[uint8]*PortSet{}
	for _, protocol := range LeaseProtocols {
		claimed[protocol] = p.Claimed(protocol)
	}
	for _, l := range leases {
		taken := claimed[l.Protocol]
		if taken != nil && l.Expires.After(now) && l.External.Addr() == p.PCP.External && l.Internal.Addr().Is4() && l.Internal.Port() > 0 &&
			p.PCP.Ports.Contains(l.External.Port()) && !taken.Has(l.External.Port()) && len(all) < MostLeases {
			all = append(all, l)
		}
	}
	return all
}

// Leased is the plan with the leases that are in force as rules, for what reports of packets and connections. It is p
// itself where there are none.
func (p *Plan) Leased() *Plan {
	if len(p.Leases) == 0 {
		return p
	}
	all := *p
	all.Destinations, all.Sources = slices.Clone(p.Destinations), slices.Clone(p.Sources)
	for i := range p.Leases {
		l := &p.Leases[i]
		external, port := nat.Host(l.External.Addr()), []nat.Ports{{First: l.External.Port(), Last: l.External.Port()}}
		all.Destinations = append(all.Destinations, Entry{Rule: l.Ref(), Match: nat.Match{To: []netip.Prefix{external}, Protocol: l.Protocol, Ports: port},
			Action: nat.Action{Kind: nat.DNAT, Backends: []nat.Backend{{Address: l.Internal.Addr(), Port: l.Internal.Port()}}}})
		all.Sources = append(all.Sources, Entry{Rule: l.Ref(), Match: nat.Match{Original: []netip.Prefix{external}, Protocol: l.Protocol, OriginalPorts: port},
			Action: nat.Action{Kind: nat.SNAT, To: nat.AddrRanges{nat.OneAddr(l.External.Addr())}}})
	}
	sortEntries(all.Sources, orderEntries)
	return &all
}
