package iptables

import (
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/gateway"
)

// sourceOf is what a plan has for a MASQUERADE or SNAT.
func sourceOf(e *entry) gateway.Source {
	g := &e.rule.Target
	s := gateway.Source{From: prefixes(e.match.From), Out: names(e.match.Out), Masquerade: g.Kind == Masquerade,
		Random: randomOf(g), Persistent: g.Persistent && g.First != g.Last}
	s.NotTo, _ = e.exceptTo()
	if len(s.From) == 0 {
		s.From = []netip.Prefix{anywhere(e.version)}
	}
	if g.First.IsValid() {
		s.To = []gateway.Range{{First: g.First, Last: g.Last}}
	}
	return s
}

func anywhere(version int) netip.Prefix {
	if version == 6 {
		return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
}

func randomOf(g *Target) gateway.Random {
	switch {
	case g.RandomFully:
		return gateway.RandomFully
	case g.Random:
		return gateway.RandomPorts
	}
	return ""
}

func makeSource(e *entry) *made {
	s, g := sourceOf(e), &e.rule.Target
	conditions := gateway.Sources{From: prefixesOf(prefixes(e.match.From)), ExceptTo: prefixesOf(s.NotTo), Out: s.Out}
	choice := gateway.Choice{Random: s.Random}
	m := &made{version: e.version, from: []*entry{e}, parts: []part{{of: e, match: e.match, source: &s}}}
	if s.Masquerade {
		m.rule.Masquerade = &gateway.Masquerade{Sources: conditions, Choice: choice}
	} else {
		m.rule.SNAT = &gateway.SNAT{Sources: conditions, To: s.To, Choice: choice}
		if !s.Persistent && g.First != g.Last { // which is what --persistent changes
			m.rule.SNAT.Persistent = new(gateway.Switch(false))
		}
	}
	return m
}

func prefixesOf(list []netip.Prefix) (all gateway.Prefixes) {
	for _, p := range list {
		all = append(all, gateway.Prefix{Prefix: p})
	}
	return all
}

// makeDestination makes a dnat for all ports, which spread parts.
func makeDestination(e *entry, later []*entry) (*made, string) {
	if e.hook == "output" {
		return nil, "is for this host's own programs alone; natkit's \"local: on\" is for them too, with the same rule in PREROUTING"
	}
	m := &made{version: e.version, from: []*entry{e}}
	r := gateway.DNAT{On: gateway.On{Address: e.match.To.Addr()}, From: prefixesOf(prefixes(e.match.From)), To: endpointOf(e)}
	if twin := localTwin(e, later); twin != nil {
		r.Local = true
		m.from = append(m.from, twin)
	}
	m.rule.DNAT = &r
	r.Port.Protocol = e.match.Protocol
	m.parts = append(m.parts, destinationPart(e, &r))
	return m, ""
}

func destinationPart(e *entry, r *gateway.DNAT) part {
	d := gateway.Destination{On: e.match.To, From: prefixes(e.match.From), In: names(e.match.In), Port: r.Port, To: r.To, Local: bool(r.Local)}
	match := e.match
	match.Ports = nil
	if r.Port.First != 0 {
		match.Ports = []Ports{{r.Port.First, r.Port.Last}}
	}
	return part{of: e, match: match, destination: &d}
}

func endpointOf(e *entry) gateway.Endpoint {
	g := &e.rule.Target
	to := gateway.Endpoint{Address: g.First}
	if !g.keepsPorts(&e.match) || len(e.match.Ports) == 1 && g.Ports.First == g.Ports.Last {
		to.Port = g.Ports.First
	}
	return to
}

// spread makes a rule for each of several ports of one entry.
func spread(m made) (all []made) {
	if m.rule.DNAT == nil || len(m.from[0].match.Ports) == 0 {
		return []made{m}
	}
	e := m.from[0]
	for _, p := range e.match.Ports {
		r := *m.rule.DNAT
		if p != (Ports{0, 65535}) {
			r.Port.First, r.Port.Last = p.First, p.Last
		}
		one := made{version: m.version, rule: gateway.Rule{DNAT: &r}, from: m.from}
		one.parts = append([]part{destinationPart(e, &r)}, m.parts[1:]...)
		for i := range one.parts[1:] { // a hairpin's
			one.parts[1+i].source.Hairpin.Port = r.Port
		}
		all = append(all, one)
	}
	return all
}

// config is the file with all rules, in their order.
func (t *translator) config() gateway.Config {
	var c gateway.Config
	for _, m := range t.rules {
		if m.version == 4 {
			c.NAT = append(c.NAT, m.rule)
		} else {
			c.IPv6 = append(c.IPv6, m.rule)
		}
	}
	if t.wan != "" && slices.ContainsFunc(t.rules, usesWAN) {
		c.Interfaces.WAN = gateway.Names{t.wan}
	}
	if slices.ContainsFunc(t.rules, func(m made) bool { return leavesBy(m, gateway.RoleLAN) }) {
		c.Interfaces.LAN = gateway.Names{gateway.RoleLAN} // an interface of that name
	}
	if t.lan != "" && slices.ContainsFunc(t.rules, func(m made) bool { return m.rule.DNAT != nil && bool(m.rule.DNAT.Hairpin) }) {
		c.Interfaces.LAN = gateway.Names{t.lan}
	}
	if len(t.mss) > 0 {
		g := t.mss[0].rule.Target
		c.MSS = gateway.MSS{Clamp: g.Clamp, Bytes: g.Bytes}
	}
	return c
}

// usesWAN reports whether a rule means another thing without a wan interface.
func usesWAN(m made) bool {
	return m.rule.DNAT != nil || m.rule.Static != nil || m.rule.Netmap != nil || leavesBy(m, gateway.RoleWAN)
}

// leavesBy reports whether a rule is for connections that leave by that interface.
func leavesBy(m made, name string) bool {
	return slices.ContainsFunc(m.from, func(e *entry) bool { return e.match.Out == name })
}
