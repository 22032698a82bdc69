package natlog

import (
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/nat"
)

// Query is an address with a port that someone had.
type Query struct {
	Address netip.Addr
	// Port is 0 for any, Protocol as well.
	Port     uint16
	Protocol uint8
}

// ByRule is what one rule of a gateway says of an address.
type ByRule struct {
	Rule gateway.Ref
	// Inside are the hosts that the rule gives the address to, Outside what it gives, with Ports; the zero value is any that
	// the kernel chooses.
	Inside  nat.AddrRanges
	Outside nat.AddrRanges
	Ports   nat.Ports
	// InsidePort is the port inside of one outside, where the rule says it.
	InsidePort uint16
	// Incoming: it is about connections from outside alone.
	Incoming bool
	// Text is the rule in words.
	Text string
}

// IsExact reports whether only one host has the address and the ports.
func (b *ByRule) IsExact() bool { return len(b.Inside) == 1 && b.Inside[0].IsSingle() }

// Owners are the rules that give a host inside an address and a port outside. facts has the addresses of interfaces, for
// masquerade; unknown are those rules of which they have none.
func Owners(p *gateway.Plan, facts *gateway.Facts, q Query) (all []ByRule, unknown []gateway.Ref) {
	for i := range p.Stateless {
		if e := &p.Stateless[i]; e.HasOutside(q.Address) {
			if inside := e.Inward(q.Address); inside.IsValid() {
				all = append(all, ByRule{Rule: e.Rule, Inside: one(inside), Outside: one(q.Address), InsidePort: q.Port, Text: e.String()})
			}
		}
	}
	for i := range p.Sources {
		e := &p.Sources[i]
		if e.IsHairpin() || !mayBe(e, q.Protocol) {
			continue
		}
		b := ByRule{Rule: e.Rule, Outside: given(e, facts, q.Address.BitLen()), Ports: e.Action.Ports, Text: e.String()}
		if len(b.Outside) == 0 && e.Action.Kind == nat.Masquerade && e.Rule.BitLen() == q.Address.BitLen() && hasPort(e, q) {
			unknown = append(unknown, e.Rule)
		}
		if !b.Outside.Contains(q.Address) || !hasPort(e, q) {
			continue
		}
		b.Inside = insideOf(p, e, q.Address.BitLen(), i)
		switch {
		case e.Action.Prefix.IsValid():
			b.Inside, b.InsidePort = within(b.Inside, nat.Replace(q.Address, e.From[0])), q.Port
		case e.Action.Pairs != "":
			b.Inside, b.InsidePort = one(e.Pairs().Inward(q.Address)), q.Port
		case e.Action.Keep:
			b.InsidePort = q.Port
		}
		if len(b.Inside) > 0 {
			all = append(all, b)
		}
	}
	return append(all, forwarded(p, q)...), unknown
}

// forwarded are the rules about destinations that lead an address and a port inside.
func forwarded(p *gateway.Plan, q Query) (all []ByRule) {
	for i := range p.Destinations {
		e := &p.Destinations[i]
		if !nat.InAny(e.To, q.Address) || !mayBe(e, q.Protocol) || len(e.To) > 0 && e.To[0].Bits() == 0 {
			continue
		}
		if len(e.Ports) > 0 && (q.Port == 0 || !slices.ContainsFunc(e.Ports, func(p nat.Ports) bool { return p.Contains(q.Port) })) {
			continue
		}
		b := ByRule{Rule: e.Rule, Outside: one(q.Address), Incoming: true, InsidePort: q.Port, Text: e.String()}
		switch {
		case e.Action.Prefix.IsValid():
			b.Inside = one(nat.Replace(q.Address, e.Action.Prefix))
		case e.Action.Pairs != "":
			if inside := e.Pairs().Inward(q.Address); inside.IsValid() {
				b.Inside = one(inside)
			}
		}
		for _, to := range e.Action.Backends {
			b.Inside = append(b.Inside, nat.OneAddr(to.Address))
			b.InsidePort = to.PortOf(q.Port, e.Ports)
		}
		if len(b.Inside) > 0 && !slices.ContainsFunc(all, func(o ByRule) bool {
			return o.Rule == b.Rule && slices.Equal(o.Inside, b.Inside) && o.InsidePort == b.InsidePort
		}) {
			all = append(all, b)
		}
	}
	return all
}

// Outward are the rules by which a host inside gets addresses outside, the first that matches a connection first; unknown are
// those whose addresses are not.
func Outward(p *gateway.Plan, facts *gateway.Facts, inside netip.Addr) (all []ByRule, unknown []gateway.Ref) {
	for i := range p.Stateless {
		if e := &p.Stateless[i]; e.HasInside(inside) {
			if outside := e.Outward(inside); outside.IsValid() {
				all = append(all, ByRule{Rule: e.Rule, Inside: one(inside), Outside: one(outside), Text: e.String()})
			}
		}
	}
	for i := range p.Sources {
		e := &p.Sources[i]
		if e.IsHairpin() || !insideOf(p, e, inside.BitLen(), i).Contains(inside) {
			continue
		}
		b := ByRule{Rule: e.Rule, Inside: one(inside), Outside: given(e, facts, inside.BitLen()), Ports: e.Action.Ports, Text: e.String()}
		switch {
		case e.Action.Prefix.IsValid():
			b.Outside = one(nat.Replace(inside, e.Action.Prefix))
		case e.Action.Pairs != "":
			outside := e.Pairs().Outward(inside)
			if !outside.IsValid() {
				continue
			}
			b.Outside = one(outside)
		}
		if len(b.Outside) > 0 {
			all = append(all, b)
		} else if e.Action.Kind == nat.Masquerade {
			unknown = append(unknown, e.Rule)
		}
	}
	return all, unknown
}

func one(a netip.Addr) nat.AddrRanges { return nat.AddrRanges{nat.OneAddr(a)} }

// within is an address where the ranges have it.
func within(ranges nat.AddrRanges, a netip.Addr) nat.AddrRanges {
	if !ranges.Contains(a) {
		return nil
	}
	return one(a)
}

// mayBe reports whether a rule may be about a protocol; 0 is any.
func mayBe(e *gateway.Entry, protocol uint8) bool {
	return protocol == 0 || e.Protocol == 0 || e.Protocol == protocol
}

// hasPort reports whether a rule may give a port.
func hasPort(e *gateway.Entry, q Query) bool {
	ports := e.Action.Ports
	return q.Port == 0 || ports == (nat.Ports{}) || ports.Contains(q.Port) || q.Protocol != 0 && !nat.HasPorts(q.Protocol)
}

// given are the addresses that a rule gives.
func given(e *gateway.Entry, facts *gateway.Facts, bits int) (all nat.AddrRanges) {
	switch {
	case e.Rule.BitLen() != bits:
		return nil
	case e.Action.Kind == nat.Masquerade:
		for _, i := range facts.Interfaces {
			if len(e.Out) > 0 && !nat.InNames(e.Out, i.Name) || nat.InNames(e.NotOut, i.Name) {
				continue
			}
			for _, p := range i.Addresses {
				if a := p.Addr(); a.BitLen() == bits && !a.IsLoopback() && !a.IsLinkLocalUnicast() {
					all = append(all, nat.OneAddr(a))
				}
			}
		}
		return all
	case e.Action.Prefix.IsValid():
		return nat.AddrRanges{nat.RangeOf(e.Action.Prefix)}
	case e.Action.Pairs != "":
		return e.Pairs().Side(nat.To).Of(bits)
	}
	return e.Action.To
}

// insideOf are the hosts that a rule about sources, the n-th, is for: those of its conditions without those for which a more
// specific rule comes first, whatever they send.
func insideOf(p *gateway.Plan, e *gateway.Entry, bits, n int) (inside nat.AddrRanges) {
	if e.Rule.BitLen() != bits {
		return nil
	}
	for _, from := range e.From {
		inside = append(inside, nat.RangeOf(from))
	}
	if len(inside) == 0 {
		inside = nat.AddrRanges{nat.RangeOf(nat.Anywhere(bits))}
	}
	for _, m := range e.Members {
		if m.Of != nat.From {
			continue
		}
		set := m.Set.Side(nat.From).Of(bits)
		if m.Not {
			inside = without(inside, set)
		} else {
			inside = common(inside, set)
		}
	}
	for _, not := range e.NotFrom {
		inside = inside.Without(nat.RangeOf(not))
	}
	for i := range p.Sources[:n] {
		first := &p.Sources[i]
		if first.IsHairpin() || first.Rule == e.Rule || first.Rule.BitLen() != bits || first.Action.Pairs != "" || len(first.Members) > 0 {
			continue
		}
		same := e.Match
		same.From, same.Members = first.From, nil
		if !first.Covers(&same) {
			continue
		}
		for _, from := range first.From {
			inside = inside.Without(nat.RangeOf(from))
		}
	}
	return inside
}

func without(a, b nat.AddrRanges) nat.AddrRanges {
	for _, r := range b {
		a = a.Without(r)
	}
	return a
}

func common(a, b nat.AddrRanges) (both nat.AddrRanges) {
	for _, x := range a {
		for _, y := range b {
			if x.Overlaps(y) {
				both = append(both, x.Common(y))
			}
		}
	}
	return both
}
