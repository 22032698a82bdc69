package gateway

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// mostZones is how many rules of policy routing come before that of VRFs.
const mostZones = 1000 - ZoneRule - 1

// zones checks how a file keeps parts of what is inside apart.
func (c *checker) zones() {
	zones, marks := c.config.Interfaces.LAN.zones(), c.config.zoneMarks()
	path := []any{"interfaces", RoleLAN}
	switch most := min(marks.most(), mostZones); {
	case len(zones) == 0:
		if c.config.ZoneMarks != 0 {
			c.add(Finding{ID: "marks-unused", Severity: Warn, Message: "zone-marks: no interface has a zone, so that nothing is marked",
				Advice: "leave it out, or write lan: [{interface: eth1, zone: a}, {interface: eth2, zone: b}]"}, []any{"zone-marks"})
		}
		return
	case len(zones) > most:
		c.add(Finding{ID: "too-many-zones", Severity: Refuse, Message: fmt.Sprintf("lan: there are %s, and the bits %s tell %d apart", many(int64(len(zones)), "zone", "zones"), marks, most),
			Advice: fmt.Sprintf("name more bits by zone-marks; there are at most %d zones", mostZones)}, path)
	case c.config.Interfaces.WAN.divided() && marks&c.config.marks() != 0:
		c.add(Finding{ID: "mark-collides", Severity: Refuse, Message: fmt.Sprintf("zone-marks %s and marks %s have bits in common", marks, c.config.marks()), Advice: "name others by one of them"}, path)
	}
	if len(c.config.Helpers) > 0 {
		c.add(Finding{ID: "helpers-and-zones", Severity: Warn, Message: "helpers: what servers outside begin for a host of a zone (active FTP, SIP) is not let in: the tracker looks for it outside of the zone",
			Advice: "passive FTP works; leave the host's interface out of zones where it needs more"}, []any{"helpers"})
	}
	c.everyRule(one.ofZones)
	c.everyRule(func(o one) { o.markBits(marks, "packets go to a zone", "zone-marks") })
}

// ofZones refuses what a rule cannot do in a file with zones.
func (o one) ofZones() {
	switch c := o.conditions(); {
	case o.isStateless():
		o.refuse("stateless-and-zones", "zones are of connections, and packets that are not tracked have none", "leave one of them out")
	case c == nil || c.Zone == "":
	case o.DNAT != nil && len(o.DNAT.To) > 0 && !o.DNAT.To[0].Address.IsValid():
		o.refuse("zone-is-inside", fmt.Sprintf("%s is the gateway itself, which is in no zone", o.DNAT.To[0]), "leave zone out; by in: connections from an interface are meant", "zone")
	case o.DNAT == nil && c.isOwn():
		o.refuse("rule-never-matches", "it can never match: programs on the gateway are in no zone", "leave one of them out", "zone")
	}
}

// zonesOnHost checks zones against the addresses, routes and rules of the host.
func (c *checker) zonesOnHost() {
	for i := range c.plan.Zones {
		z := &c.plan.Zones[i]
		for _, name := range z.Interfaces {
			if c.facts.has(name) && c.facts.VRFOf(name).name() != z.VRF {
				c.add(Finding{ID: "zone-of-two-vrfs", Severity: Refuse, Message: fmt.Sprintf("zone %s: %s is in %s, %s in %s: they have no routes in common", z.Name, z.Interfaces[0], z.vrfName(), name, c.facts.VRFOf(name).words()),
					Advice: "give each a zone of its own"}, []any{"interfaces", RoleLAN})
			}
		}
	}
	for _, r := range c.facts.Rules {
		c.takenByZones(r)
	}
	c.everyRule(one.whichZone)
}

func (v *VRF) name() string {
	if v == nil {
		return ""
	}
	return v.Name
}

func (v *VRF) words() string {
	if v == nil {
		return "no VRF"
	}
	return v.Name
}

func (z *Zone) vrfName() string {
	if z.VRF == "" {
		return "no VRF"
	}
	return z.VRF
}

// takenByZones refuses marks and places of rules that another program has.
func (c *checker) takenByZones(r PolicyRule) {
	n := len(c.plan.Zones)
	refuse := func(id, what, advice string) {
		c.add(Finding{ID: id, Severity: Refuse, Message: fmt.Sprintf("rule %d of 'ip rule', which another program made, %s", r.Priority, what), Advice: advice}, []any{"interfaces", RoleLAN})
	}
	switch {
	case n == 0:
	case r.Mask&c.plan.ZoneMarks != 0:
		refuse("mark-taken", fmt.Sprintf("asks for the mark 0x%x/0x%x: its bits are among %s, by which packets go to a zone", r.Mark, r.Mask, Bits(c.plan.ZoneMarks)), "name other bits by zone-marks")
	case r.Priority > ZoneRule && r.Priority <= ZoneRule+n:
		refuse("rule-taken", "has the number of one of natkit's", "give it another one")
	case r.Table > ZoneTable && r.Table <= ZoneTable+n:
		refuse("rule-taken", fmt.Sprintf("leads to table %d, which natkit would have", r.Table), "use another table for it")
	}
}

// whichZone refuses a rule that leads to hosts of several zones, or of a zone and beside, without naming one.
func (o one) whichZone() {
	var to []netip.Addr
	var path []any
	switch {
	case o.zone() != "" || len(o.plan.Zones) == 0:
	case o.DNAT != nil:
		path = []any{"to"}
		for _, b := range o.DNAT.To {
			if b.Address.IsValid() {
				to = append(to, b.Address)
			}
		}
	case o.Static != nil && o.Static.Pairs != "":
		if s := o.config.Sets.named(o.Static.Pairs.name()); s != nil {
			for _, p := range s.Pairs(o.bits) {
				to = append(to, p.Inside)
			}
		}
		path = []any{"pairs"}
	case o.Static != nil:
		to, path = []netip.Addr{o.Static.Inside.Addr}, []any{"inside"}
	case o.Netmap != nil:
		to, path = []netip.Addr{o.Netmap.Inside.Masked().Addr()}, []any{"inside"}
	}
	for _, a := range to {
		var names []string
		beside := ""
		for i := range o.plan.Zones {
			z := &o.plan.Zones[i]
			if r, is := o.facts.InZone(z, a); is {
				names = append(names, z.Name)
				beside = cmp.Or(beside, o.facts.besideZones(o.plan, a, r.To.Bits()))
			}
		}
		switch {
		case len(names) > 1 || len(names) == 1 && o.plan.ZoneNamed(names[0]).VRF != "":
			o.refuse("zone-missing", fmt.Sprintf("%s is an address of zone %s, and the rule does not say that it means it", a, strings.Join(names, " and of zone ")), "write zone: "+names[0], path...)
			return
		case beside != "":
			o.refuse("zone-missing", fmt.Sprintf("%s is an address of zone %s and of the network of %s, which is in no zone, and the rule does not say which it means", a, names[0], beside),
				fmt.Sprintf("write zone: %s, or have %s be in a zone, too, and name that", names[0], beside), path...)
			return
		}
	}
}

// besideZones is an interface of no zone in whose network an address is, where a zone's route of so many bits may take its
// place in the main table; empty for none. The longer prefix of a network is clear.
func (f *Facts) besideZones(p *Plan, a netip.Addr, bits int) string {
	for _, i := range f.Interfaces {
		if !i.Up || i.VRF != nil || p.ZoneBy(i.Name) != nil {
			continue
		}
		if slices.ContainsFunc(i.Addresses, func(n netip.Prefix) bool { return n.Bits() <= bits && n.Contains(a) }) {
			return i.Name
		}
	}
	return ""
}

// zonesTogether warns of rules for one zone whose hosts are those of others as well.
func (c *checker) zonesTogether() {
	if c.refused > 0 {
		return
	}
	for i := range c.plan.Zones {
		z := &c.plan.Zones[i]
		if slices.ContainsFunc(c.plan.Sources, func(e Entry) bool { return e.Zone == z.Name || e.Zone == "" }) {
			continue
		}
		c.add(Finding{ID: "zone-untranslated", Severity: Warn, Message: fmt.Sprintf("no rule is for connections from zone %s: they leave with addresses that hosts of other zones may have, and answers go to one of these", z.Name),
			Advice: "add masquerade: {zone: " + z.Name + "}"}, []any{"interfaces", RoleLAN})
	}
}
