package gateway

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/document"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/tune"
)

// Zone is a part of what is inside whose addresses others may have as well. What comes from it is in a conntrack zone
// of its own, in the original direction alone: answers are looked up among those of all, whose addresses and ports
// differ once they are translated. What goes to it has a mark, by which a rule of policy routing finds its table.
type Zone struct {
	Name       string   `json:"name"`
	Interfaces []string `json:"interfaces"`
	// Number is that of its conntrack zone, Mark its bits of Plan.ZoneMarks, Table its routing table.
	Number uint16 `json:"number"`
	Mark   uint32 `json:"mark"`
	Table  uint32 `json:"table"`
	// VRF is the device that its interfaces are in, whose table it is; empty where natkit makes the table.
	VRF string `json:"vrf,omitempty"`
}

const (
	// DefaultZoneMarks are bits that nobody uses of those that DefaultMarks names.
	DefaultZoneMarks Bits = 0xf0000000
	// ZoneRule is the number before the first rule of policy routing of zones: they come before that of VRFs (1000), which
	// looks up the table of the one that a packet comes from. ZoneTable is the number before the first zone's table and conntrack zone.
	ZoneRule, ZoneTable = 500, 26000
)

// zones makes those of a file.
func (b *compiler) zones() {
	lan := b.config.Interfaces.LAN
	for i, name := range lan.zones() {
		z := Zone{Name: string(name), Number: uint16(ZoneTable + 1 + i), Mark: b.config.zoneMarks().of(i), Table: uint32(ZoneTable + 1 + i)}
		for _, l := range lan {
			if l.Zone == name {
				z.Interfaces = append(z.Interfaces, l.Interface)
			}
		}
		if v := b.facts.VRFOf(z.Interfaces[0]); v != nil {
			z.VRF, z.Table = v.Name, v.Table
		}
		b.plan.Zones = append(b.plan.Zones, z)
	}
	if len(b.plan.Zones) > 0 {
		b.plan.ZoneMarks = uint32(b.config.zoneMarks())
	}
}

// withVRFs are interfaces with the VRFs that they are in: behind the routing decision packets have come in by these.
func (b *compiler) withVRFs(names []string) []string {
	for _, i := range b.facts.Interfaces {
		if i.VRF != nil && slices.Contains(names, i.Name) && !slices.Contains(names, i.VRF.Name) {
			names = append(slices.Clip(names), i.VRF.Name)
		}
	}
	return names
}

func (c *Config) zoneMarks() Bits {
	if c.ZoneMarks == 0 {
		return DefaultZoneMarks
	}
	return c.ZoneMarks
}

// Names are those of the interfaces.
func (l LANs) Names() (names Names) {
	for _, one := range l {
		names = append(names, one.Interface)
	}
	return names
}

// zones are the names of the zones, each once, in their order.
func (l LANs) zones() (names []Name) {
	for _, one := range l {
		if one.Zone != "" && !slices.Contains(names, one.Zone) {
			names = append(names, one.Zone)
		}
	}
	return names
}

// Zoned are the interfaces of zones.
func (c *Config) Zoned() (names []string) {
	for _, l := range c.Interfaces.LAN {
		if l.Zone != "" {
			names = append(names, l.Interface)
		}
	}
	return names
}

// zone is the one that a rule names; empty for none.
func (r Rule) zone() Name {
	switch c := r.conditions(); {
	case c != nil:
		return c.Zone
	case r.Netmap != nil:
		return r.Netmap.Zone
	}
	return ""
}

// zonesUsed finds a rule that names a zone that is none.
func (c *Config) zonesUsed() (found *document.Problem) {
	var known []string
	for _, name := range c.Interfaces.LAN.zones() {
		known = append(known, string(name))
	}
	for _, l := range c.lists() {
		for i, r := range l.rules {
			z := string(r.zone())
			if z == "" || slices.Contains(known, z) || found != nil {
				continue
			}
			what := fmt.Sprintf("%s is no zone: name it below interfaces, as in lan: [{interface: eth1, zone: %[1]s}]", z)
			if near := document.Nearest(z, known); near != "" {
				what = fmt.Sprintf("%s is no zone; did you mean %s?", z, near)
			}
			found = document.NewProblem([]any{"gateway", l.name, i, r.Kind(), "zone"}, "%s", what)
		}
	}
	return found
}

// Zoned are the interfaces of zones.
func (p *Plan) Zoned() (names []string) {
	for i := range p.Zones {
		names = append(names, p.Zones[i].Interfaces...)
	}
	return names
}

// ZoneNamed is a zone of the plan; nil where there is none of that name.
func (p *Plan) ZoneNamed(name string) *Zone {
	return p.zoneOf(func(z *Zone) bool { return z.Name == name })
}

// ZoneBy is the zone that an interface leads to; nil for none.
func (p *Plan) ZoneBy(name string) *Zone {
	return p.zoneOf(func(z *Zone) bool { return slices.Contains(z.Interfaces, name) })
}

// ZoneNumbered is the zone of a connection by its conntrack zone; nil for none.
func (p *Plan) ZoneNumbered(number uint16) *Zone {
	return p.zoneOf(func(z *Zone) bool { return z.Number == number })
}

func (p *Plan) zoneOf(is func(*Zone) bool) *Zone {
	for i := range p.Zones {
		if is(&p.Zones[i]) {
			return &p.Zones[i]
		}
	}
	return nil
}

// ByInterface is a match with the interfaces of its zone in place of the zone, for packets without a connection; false
// where none is left.
func (p *Plan) ByInterface(m nat.Match) (nat.Match, bool) {
	z := p.ZoneNamed(m.Zone)
	m.Zone = ""
	if z == nil {
		return m, true
	}
	by := nat.Match{In: slices.Clone(z.Interfaces)}
	if z.VRF != "" {
		by.In = append(by.In, z.VRF)
	}
	return m.And(&by)
}

// RouteInside is a route by an interface of a zone, but no default one: of the main table, or of its VRF's.
type RouteInside struct {
	Interface string       `json:"interface"`
	To        netip.Prefix `json:"to"`
	// Via is not valid where To is a network of the interface.
	Via netip.Addr `json:"via,omitzero"`
}

// RoutesTo are the routes to a zone of one family, one for each destination.
func (f *Facts) RoutesTo(z *Zone, v6 bool) (all []RouteInside) {
	for _, r := range f.Inside {
		known := slices.ContainsFunc(all, func(o RouteInside) bool { return o.To == r.To })
		if slices.Contains(z.Interfaces, r.Interface) && r.To.Addr().Is6() == v6 && !known {
			all = append(all, r)
		}
	}
	slices.SortFunc(all, func(a, b RouteInside) int { return comparePrefixes(a.To, b.To) })
	return all
}

// zoneRouting are the rules and routes of a plan's zones. Those of VRFs have the table of their device.
func (p *Plan) zoneRouting(facts *Facts, v6 bool) (all []RoutingStep) {
	for i := range p.Zones {
		z := &p.Zones[i]
		var routes tune.RoutingRoutes
		for _, r := range facts.RoutesTo(z, v6) {
			routes = append(routes, tune.RoutingRoute{To: r.To, Via: r.Via, Dev: r.Interface})
		}
		if z.VRF == "" && len(routes) > 0 {
			t := tune.RoutingTarget{V6: v6, Table: true, Number: z.Table}
			all = append(all, RoutingStep{t.String(), routes.String(), "the routes of the main table by the interfaces of zone " + z.Name})
		}
	}
	for i, z := range p.Zones {
		t := tune.RoutingTarget{V6: v6, Number: uint32(ZoneRule + 1 + i)}
		all = append(all, RoutingStep{t.String(), tune.RoutingRule{Mark: z.Mark, Mask: p.ZoneMarks, Table: z.Table}.String(), "what goes to zone " + z.Name + " is not led to another one"})
	}
	return all
}

// Rezoned returns which connections, by their conntrack zone and source, are of zones that another plan (nil: none) does not
// have alike; nil where it has all of them.
func Rezoned(old, new *Plan, facts *Facts) func(zone uint16, source netip.Addr) bool {
	alike := map[uint16]bool{}
	var entered []netip.Prefix
	if old != nil {
		for _, z := range old.Zones {
			n := new.ZoneNumbered(z.Number)
			alike[z.Number] = n != nil && slices.Equal(n.Interfaces, z.Interfaces)
		}
	}
	for i := range new.Zones {
		z := &new.Zones[i]
		if alike[z.Number] {
			continue
		}
		for _, v6 := range []bool{false, true} {
			for _, r := range facts.RoutesTo(z, v6) {
				entered = append(entered, r.To)
			}
		}
		for _, name := range z.Interfaces { // one that is down has its networks, but no routes
			for _, network := range facts.AddressesOf(name) {
				entered = append(entered, network.Masked())
			}
		}
	}
	if len(entered) == 0 && !slices.Contains(slices.Collect(maps.Values(alike)), false) {
		return nil
	}
	return func(zone uint16, source netip.Addr) bool {
		if zone == 0 {
			return nat.InAny(entered, source) && !facts.Has(source)
		}
		return zone > ZoneTable && zone < ZoneTable+1000-ZoneRule && !alike[zone]
	}
}

// InZone is where an address is in a zone, as far as the routes to it are known.
func (f *Facts) InZone(z *Zone, a netip.Addr) (r RouteInside, is bool) {
	for _, r := range f.RoutesTo(z, a.Is6()) {
		if r.To.Contains(a) {
			return r, true
		}
	}
	return r, false
}

// zonesString says which interfaces lead to which zones.
func zonesString(p *Plan) string {
	texts := make([]string, len(p.Zones))
	for i := range p.Zones {
		texts[i] = p.Zones[i].String()
	}
	return strings.Join(texts, ", ")
}

// String is "red by eth1".
func (z *Zone) String() string {
	text := fmt.Sprintf("%s by %s", z.Name, strings.Join(z.Interfaces, " "))
	if z.VRF != "" {
		text += " in " + z.VRF
	}
	return text
}
