package observe

import (
	"fmt"
	"net/netip"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/gateway"
)

// Zone is a part of what is inside whose addresses others may have as well.
type Zone struct {
	Zone       string   `json:"zone"`
	Interfaces []string `json:"interfaces"`
	// Number is that of its conntrack zone.
	Number uint16 `json:"conntrack_zone"`
	// Flows are connections from it.
	Flows int64 `json:"flows"`
}

// ZonesOf are those of a plan.
func ZonesOf(p *gateway.Plan) (all []Zone) {
	for _, z := range p.Zones {
		all = append(all, Zone{Zone: z.Name, Interfaces: z.Interfaces, Number: z.Number})
	}
	return all
}

// zoneOf is the name of the zone that a connection is from; empty for none.
func (a *Attribution) zoneOf(e *conntrack.Entry) string {
	if z := a.plan.ZoneNumbered(e.Zone); z != nil {
		return z.Name
	}
	return ""
}

// KeepsAddress reports whether the kernel alone gave a connection another port, as one from another zone to the gateway
// itself, or one to another zone, is between the same addresses and ports, and no rule translates its source.
func (a *Attribution) KeepsAddress(e *conntrack.Entry) bool {
	return e.Reply.Dst == e.Orig.Src && len(a.plan.Zones) > 0 && (e.IsDNAT() || a.plan.ZoneNumbered(e.Zone) != nil)
}

// fromZone puts the connection to be into the conntrack zone of its interface.
func (w *walk) fromZone(s *Step) {
	if z := w.plan.ZoneNamed(w.packet.Zone); z != nil {
		s.Does = fmt.Sprintf("%s leads to zone %s: the connection is in conntrack zone %d in its original direction, and in that of all in the other one", w.packet.In, z.Name, z.Number)
	}
}

// markZone has the packet look for its destination in its own zone first.
func (w *walk) markZone(s *Step) {
	if z := w.plan.ZoneNamed(w.packet.Zone); z != nil {
		w.intoZone(z)
		s.Does = fmt.Sprintf("it comes from zone %s: routes there come first (mark 0x%x/0x%x)", z.Name, z.Mark, w.plan.ZoneMarks)
	}
}

// intoZone has routes of a zone come first.
func (w *walk) intoZone(z *gateway.Zone) {
	w.zone, w.mark = z, w.mark&^w.plan.ZoneMarks|z.Mark
}

// lookup is what a route is asked for. Sources of a zone are those of others as well: whether the way back is by the
// interface is not asked, unless it is in a VRF, by which the route is found.
func (w *walk) lookup() Lookup {
	l := Lookup{Source: w.src.addr, Destination: w.dst.addr, In: w.packet.In, Mark: w.mark}
	if z := w.plan.ZoneNamed(w.packet.Zone); z != nil && z.VRF == "" {
		l.Source, l.In = netip.Addr{}, ""
	}
	return l
}

// byZone has a packet leave by the zone that its mark names: so do the rules of policy routing, also where they are not
// in force yet.
func (w *walk) byZone(hop Hop) Hop {
	if w.zone == nil || hop.Local {
		return hop
	}
	r, is := w.facts.InZone(w.zone, w.dst.addr)
	if !is {
		return hop
	}
	return Hop{Out: r.Interface, Gateway: r.Via, Source: hop.Source}
}
