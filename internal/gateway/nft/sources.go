package nft

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/prefix"
)

// sources writes the translations of sources of one family.
func (t *table) sources(p *gateway.Plan, f *family) {
	var all groups
	for i := range p.Sources {
		s := &p.Sources[i]
		if sourceFamily(s) == f {
			collectSource(&all, s, f)
		}
	}
	t.emitAll("postrouting", "source"+f.suffix, all)
}

// emitAll names the groups' maps and writes them.
func (t *table) emitAll(chain, name string, all groups) {
	for i, g := range all.all {
		g.name = fmt.Sprintf("%s-%d", name, i+1)
		t.emit(chain, g)
	}
}

// sourceFamily is told by any address of the rule, or by the list that it stands in.
func sourceFamily(s *gateway.Source) *family {
	switch {
	case len(s.From) > 0:
		return familyOf(s.From[0].Addr())
	case len(s.To) > 0:
		return familyOf(s.To[0].First)
	case s.Prefix.IsValid():
		return familyOf(s.Prefix.Addr())
	case s.Hairpin.Prefix.IsValid():
		return familyOf(s.Hairpin.Prefix.Addr())
	case len(s.NotTo) > 0:
		return familyOf(s.NotTo[0].Addr())
	case s.Rule.List == "ipv6":
		return ip6
	}
	return ip4
}

// collectSource adds an entry for each prefix of From and each port of a hairpin.
func collectSource(all *groups, s *gateway.Source, f *family) {
	from := s.From
	if len(from) == 0 {
		from = []netip.Prefix{netip.PrefixFrom(zero(f), 0)}
	}
	single, wide := expand(s.Hairpin.Port)
	for _, prefix := range from {
		for _, port := range single {
			g := sourceGroup(s, f)
			e := entry{rule: s.Rule, to: g.target(s)}
			principal := g.addSourceKey(s, prefix, port, &e)
			g.shape.ports, g.widePorts = wide, originalPort
			all.add(g, principal, e)
		}
	}
}

// zero is the family's unspecified address.
func zero(f *family) netip.Addr {
	if f.v6 {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

// addSourceKey puts together the key, and says by what address entries are told apart.
func (g *group) addSourceKey(s *gateway.Source, from netip.Prefix, port uint16, e *entry) netip.Prefix {
	principal := from
	g.principalField = sourceAddress
	if h := s.Hairpin.Prefix; h.IsValid() {
		g.principalField, principal = originalAddress, h
		if h.Bits() > 0 {
			g.addPart(e, part{originalAddress, h.Bits()}, h.Masked().Addr().AsSlice())
		}
		if port > 0 {
			g.addPart(e, part{field: originalPort}, portBytes(port))
		}
	}
	if from.Bits() > 0 {
		g.addPart(e, part{sourceAddress, from.Bits()}, from.Masked().Addr().AsSlice())
	}
	return principal
}

func (g *group) addPart(e *entry, p part, value []byte) {
	e.values[g.keys] = value
	g.key[g.keys] = p
	g.keys++
}

// sourceGroup is a group of the rule's shape, without a key.
func sourceGroup(s *gateway.Source, f *family) *group {
	g := &group{out: s.Out, notTo: s.NotTo}
	g.f, g.kind = f, actSource
	g.shape.out, g.shape.notTo = strings.Join(s.Out, " "), fmt.Sprint(s.NotTo)
	g.action.ports, g.random, g.persistent = s.Ports, s.Random, s.Persistent
	switch {
	case s.Masquerade:
		g.kind = actMasquerade
	case s.Prefix.IsValid():
		g.kind = actSourcePrefix
	default:
		g.setPool(s.To)
	}
	if g.givesAddresses() && !s.Ports.Keep { // the map has the ports; any will do for the shape
		g.action.ports = boundless(s.Ports)
	}
	if s.Hairpin.Prefix.IsValid() {
		g.hairpin = true
		g.proto, _ = s.Hairpin.Port.Number()
	}
	return g
}

// boundless is the mark of a group whose map bounds ports.
func boundless(p gateway.Ports) gateway.Ports {
	if p.First == 0 && p.Last == 0 {
		return gateway.Ports{}
	}
	return gateway.Ports{First: 1, Last: 65535}
}

func (g *group) setPool(to []gateway.Range) {
	if len(to) > 1 {
		g.pool, g.action.pool = to, poolText(to)
	}
}

// target is what the rule's addresses and ports become.
func (g *group) target(s *gateway.Source) target {
	t := target{firstPort: s.Ports.First, lastPort: s.Ports.Last}
	switch {
	case s.Prefix.IsValid():
		t.first, t.last, t.prefix = s.Prefix.Masked().Addr(), prefix.Last(s.Prefix), s.Prefix
	case len(s.To) == 1:
		t.first, t.last = s.To[0].First, s.To[0].Last
	}
	return t
}

// taken is how many ports a range may have to become that many entries.
const taken = 256

// expand takes a range of ports apart, as one entry for each port costs a packet
// nothing. A wide one stays a range; no port at all is one entry with port 0.
func expand(p gateway.Port) (single []uint16, wide [2]uint16) {
	last := max(p.First, p.Last)
	switch {
	case p.First == 0:
		return []uint16{0}, wide
	case int(last)-int(p.First) >= taken:
		return []uint16{0}, [2]uint16{p.First, last}
	}
	for n := int(p.First); n <= int(last); n++ {
		single = append(single, uint16(n))
	}
	return single, wide
}
