package gateway

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

// Compile resolves a file against what is known of the host: roles become
// interfaces, `on: wan` addresses, each rule the entries that engines carry out, the
// most specific ones first (see compareSources and compareDestinations). It refuses
// what has no meaning; what is unwise Check says. The order of rules in the file
// does not change what a packet becomes.
func Compile(c *Config, facts Facts) (*Plan, error) {
	b := &compiler{config: c, facts: facts}
	b.begin()
	for _, list := range c.lists() {
		if err := b.list(list); err != nil {
			return nil, err
		}
	}
	if err := b.withdraw(); err != nil {
		return nil, err
	}
	b.hairpins()
	b.flowtable()
	b.sort()
	return &b.plan, nil
}

// ruleList is one of a file's lists of rules.
type ruleList struct {
	name string
	// bits is the length of an address of the list's family.
	bits  int
	rules []Rule
}

func (c *Config) lists() []ruleList {
	return []ruleList{{"nat", 32, c.NAT}, {"ipv6", 128, c.IPv6}}
}

// compiler collects a plan.
type compiler struct {
	config *Config
	facts  Facts
	plan   Plan
}

func (b *compiler) begin() {
	c := b.config
	b.plan = Plan{
		Schema: PlanSchema, Engine: cmp.Or(c.Engine, EngineNetfilter),
		WAN: b.names(c.Interfaces.WAN), LAN: b.names(c.Interfaces.LAN),
		MSS: c.MSS, ConnectionsPerSource: int64(c.Limits.ConnectionsPerSource),
		IPv4: len(c.NAT) > 0, IPv6: len(c.IPv6) > 0,
		Accounting: bool(c.Accounting), Expect: c.Expect,
	}
}

// names is a list of interfaces without repetition, in an order of its own.
func (b *compiler) names(names []string) []string {
	out := slices.Clone(names)
	slices.Sort(out)
	return slices.Compact(out)
}

func (b *compiler) list(l ruleList) error {
	for i, r := range l.rules {
		one := ruleCompiler{compiler: b, bits: l.bits, ref: Ref{List: l.name, Index: i, Kind: r.Kind()}}
		if err := one.rule(r); err != nil {
			return fmt.Errorf("%s[%d] %s: %w", l.name, i, r.Kind(), err)
		}
	}
	return nil
}

// Kind is the word that the rule is written with.
func (r Rule) Kind() string {
	switch {
	case r.Masquerade != nil:
		return "masquerade"
	case r.SNAT != nil:
		return "snat"
	case r.DNAT != nil:
		return "dnat"
	case r.Static != nil:
		return "static"
	case r.Netmap != nil:
		return "netmap"
	case r.Notrack != nil:
		return "notrack"
	}
	return ""
}

// resolve makes interfaces of roles and names.
func (b *compiler) resolve(names []string) ([]string, error) {
	var out []string
	for _, n := range names {
		switch n {
		case RoleWAN, RoleLAN:
			role := b.role(n)
			if len(role) == 0 {
				return nil, fmt.Errorf("no interface has the role %s: name it below interfaces", n)
			}
			out = append(out, role...)
		default:
			out = append(out, n)
		}
	}
	return b.names(out), nil
}

func (b *compiler) role(name string) []string {
	if name == RoleWAN {
		return b.plan.WAN
	}
	return b.plan.LAN
}

// addresses are the present ones of an interface that others can be sent to.
func (b *compiler) addresses(name string, bits int) (out []netip.Addr) {
	for _, i := range b.facts.Interfaces {
		if i.Name != name {
			continue
		}
		for _, p := range i.Addresses {
			a := p.Addr().Unmap().WithZone("")
			if a.BitLen() == bits && !a.IsLinkLocalUnicast() && !a.IsLoopback() {
				out = append(out, a)
			}
		}
	}
	return out
}

// flowtable takes the interfaces of both roles, where none has one all that the host
// has; those that are not there yet cannot be in it.
func (b *compiler) flowtable() {
	if !bool(b.config.Flowtable) || b.facts.Known && !b.facts.Flowtable.OK {
		return
	}
	names := slices.Concat(b.plan.WAN, b.plan.LAN)
	if len(names) == 0 {
		for _, i := range b.facts.Interfaces {
			if i.Name != "lo" {
				names = append(names, i.Name)
			}
		}
	}
	if b.facts.Known {
		names = slices.DeleteFunc(names, func(n string) bool { return !b.facts.has(n) })
	}
	b.plan.Flowtable = b.names(names)
}

// has reports whether the host has an interface.
func (f *Facts) has(name string) bool {
	return slices.ContainsFunc(f.Interfaces, func(i Interface) bool { return i.Name == name })
}

func (b *compiler) sort() {
	slices.SortStableFunc(b.plan.Sources, func(x, y Source) int { return orderSources(&x, &y) })
	slices.SortStableFunc(b.plan.Destinations, func(x, y Destination) int { return orderDestinations(&x, &y) })
	slices.SortStableFunc(b.plan.Stateless, orderPairs)
	slices.SortStableFunc(b.plan.Untracked, orderUntracked)
}
