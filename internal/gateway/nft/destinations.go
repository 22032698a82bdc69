package nft

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/prefix"
)

// destinations writes the translations of destinations of one family, for packets
// that come in and for those of the gateway's own programs.
func (t *table) destinations(p *gateway.Plan, f *family) {
	var in, local groups
	for i := range p.Destinations {
		d := &p.Destinations[i]
		if familyOf(d.On.Addr()) != f {
			continue
		}
		collectDestination(&in, d, f, false)
		if d.Local {
			collectDestination(&local, d, f, true)
		}
	}
	t.emitAll("prerouting", "destination"+f.suffix, in)
	t.emitAll("output", "local"+f.suffix, local)
}

func collectDestination(all *groups, d *gateway.Destination, f *family, local bool) {
	from := d.From
	if len(from) == 0 {
		from = []netip.Prefix{netip.PrefixFrom(zero(f), 0)}
	}
	single, wide := expand(d.Port)
	for _, prefix := range from {
		for _, port := range single {
			g := destinationGroup(d, f, local)
			g.shape.ports = wide
			e := entry{rule: d.Rule, to: destinationTarget(d, port)}
			g.toPort = e.to.firstPort > 0
			g.addDestinationKey(d, prefix, port, &e)
			all.add(g, d.On, e)
		}
	}
}

func (g *group) addDestinationKey(d *gateway.Destination, from netip.Prefix, port uint16, e *entry) {
	g.principalField = destinationAddress
	if from.Bits() > 0 {
		g.addPart(e, part{sourceAddress, from.Bits()}, from.Masked().Addr().AsSlice())
	}
	if d.On.Bits() > 0 {
		g.addPart(e, part{destinationAddress, d.On.Bits()}, d.On.Masked().Addr().AsSlice())
	}
	if number, ok := d.Port.Number(); ok {
		g.addPart(e, part{field: protocol}, []byte{number})
	}
	if port > 0 {
		g.addPart(e, part{field: destinationPort}, portBytes(port))
	}
}

func destinationGroup(d *gateway.Destination, f *family, local bool) *group {
	g := &group{}
	g.f, g.kind = f, actDestination
	if d.Prefix.IsValid() {
		g.kind = actDestinationPrefix
	}
	if !local {
		g.in, g.shape.in = d.In, strings.Join(d.In, " ")
	}
	return g
}

// destinationTarget: a port that stays is named as well, so that rules with and
// without one share a map.
func destinationTarget(d *gateway.Destination, port uint16) target {
	if d.Prefix.IsValid() {
		return target{first: d.Prefix.Masked().Addr(), last: prefix.Last(d.Prefix), prefix: d.Prefix}
	}
	t := target{first: d.To.Address, last: d.To.Address, firstPort: d.To.Port}
	if t.firstPort == 0 {
		t.firstPort = port
	}
	t.lastPort = t.firstPort
	return t
}

// untracked keeps traffic to and from addresses from the tracker. All do the same, so
// their order means nothing.
func (t *table) untracked(p *gateway.Plan, f *family) {
	var to, from groups
	for i := range p.Untracked {
		u := &p.Untracked[i]
		if familyOf(u.On) == f {
			collectUntracked(&to, u, f, destinationAddress, destinationPort)
			collectUntracked(&from, u, f, sourceAddress, sourcePort)
		}
	}
	for _, hook := range []string{"prerouting", "output"} {
		t.emitAll("raw-"+hook, fmt.Sprintf("untracked%s-%s-to", f.suffix, hook), to)
		t.emitAll("raw-"+hook, fmt.Sprintf("untracked%s-%s-from", f.suffix, hook), from)
	}
}

func collectUntracked(all *groups, u *gateway.Untracked, f *family, address, ports field) {
	single, wide := expand(u.Port)
	for _, port := range single {
		g := &group{principalField: address}
		g.f, g.kind, g.shape.ports, g.widePorts = f, actNotrack, wide, ports
		e := entry{rule: u.Rule}
		g.addPart(&e, part{address, f.bits()}, u.On.AsSlice())
		if number, ok := u.Port.Number(); ok {
			g.addPart(&e, part{field: protocol}, []byte{number})
		}
		if port > 0 {
			g.addPart(&e, part{field: ports}, portBytes(port))
		}
		all.add(g, netip.PrefixFrom(u.On, f.bits()), e)
	}
}
