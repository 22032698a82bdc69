package gateway

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/nat"
)

// uplinks checks how a file divides connections among WAN interfaces.
func (c *checker) uplinks() {
	wan := c.config.Interfaces.WAN
	path := []any{"interfaces", RoleWAN}
	switch most := c.config.marks().most(); {
	case !wan.divided():
		if c.config.Marks != 0 && c.config.Engine != EngineEBPF {
			c.add(Finding{ID: "marks-unused", Severity: Warn, Message: "marks: connections are not divided among several wan interfaces, so that nothing is marked",
				Advice: "leave it out, or write wan: [{interface: eth0}, {interface: eth1}]"}, []any{"marks"})
		}
		return
	case len(wan) < 2:
		c.add(Finding{ID: "wan-alone", Severity: Refuse, Message: "wan: there is one interface, and so nothing to divide connections among",
			Advice: "write its name alone, or a second one"}, path)
		return
	case len(wan) > most:
		c.add(Finding{ID: "too-many-wans", Severity: Refuse, Message: fmt.Sprintf("wan: %s, and the bits %s tell %d apart", many(int64(len(wan)), "interface", "interfaces"), c.config.marks(), most),
			Advice: "name more bits by marks"}, path)
		return
	}
	if !slices.ContainsFunc(wan, func(w WAN) bool { return w.weight() > 0 }) {
		c.add(Finding{ID: "wan-all-standby", Severity: Warn, Message: "wan: all interfaces are standbys (weight 0): connections are divided among them in equal parts",
			Advice: "give those a weight that are to be used first"}, path)
	}
	c.everyRule(func(o one) { o.markBits(c.config.marks(), "connections stay on one of the wan interfaces", "marks") })
	for i, u := range wan {
		for _, via := range u.Via {
			c.uplinkAddress("via", via.Addr, path, i)
		}
		if u.Probe != nil {
			c.uplinkAddress("probe", u.Probe.Addr(), path, i)
		}
	}
}

// uplinkAddress refuses what is no address of a host beyond an uplink; the next hop of IPv6 may be link-local.
func (c *checker) uplinkAddress(word string, a netip.Addr, path []any, i int) {
	what := ""
	for _, s := range special {
		if s.addrs.Contains(a) && !(a.Is6() && a.IsLinkLocalUnicast()) {
			what = "is " + s.what
		}
	}
	if c.facts.Has(a) {
		what = "is an address of this host"
	}
	if what != "" {
		c.add(Finding{ID: "unusable-address", Severity: Refuse, Message: fmt.Sprintf("%s: %s %s", word, a, what), Advice: "write the address of a host beyond the interface"}, append(slices.Clone(path), i, word))
	}
}

// markBits refuses conditions on bits by which packets go to an uplink or a zone; word names others.
func (o one) markBits(bits Bits, what, word string) {
	c, ours := o.conditions(), uint32(bits)
	if c == nil {
		return
	}
	refuse := func(m nat.Mark, path ...any) {
		if m.Mask&ours == 0 {
			return
		}
		advice := "write bits that are not among these, or name others by " + word
		if m.Value&ours == 0 {
			advice = fmt.Sprintf("write %s, or name other bits by %s", nat.Mark{Value: m.Value, Mask: m.Mask &^ ours}, word)
		}
		o.refuse("mark-collides", fmt.Sprintf("the mark %s asks for bits of %s, by which %s", m, bits, what), advice, path...)
	}
	refuse(c.Mark.Mark, "mark")
	for i, m := range c.ExceptMark {
		refuse(m.Mark, o.pathOf("except-mark", i, len(c.ExceptMark))...)
	}
}

// uplinksTogether checks what rules do to connections that leave by one uplink or another.
func (c *checker) uplinksTogether() {
	if len(c.plan.Uplinks) == 0 {
		return
	}
	for i := range c.plan.Uplinks {
		c.untranslatedBy(c.plan.Uplinks[i].Interface)
	}
}

// untranslatedBy warns of sources that are translated by other uplinks and not by this one.
func (c *checker) untranslatedBy(name string) {
	var covered nat.AddrRanges
	for i := range c.plan.Sources {
		if e := &c.plan.Sources[i]; e.isGeneral() && meet(e.Out, []string{name}) {
			for _, p := range e.From {
				covered = append(covered, nat.RangeOf(p))
			}
		}
	}
	covered = covered.Join()
	for i := range c.plan.Sources {
		s := &c.plan.Sources[i]
		if !s.isGeneral() || meet(s.Out, []string{name}) || !slices.ContainsFunc(s.From, func(p netip.Prefix) bool { return !within(covered, nat.RangeOf(p)) }) {
			continue
		}
		c.ruleOf(s.Rule).warn("wan-untranslated", fmt.Sprintf("connections from %s that leave by %s keep their address inside: this rule is for %s, and no other is for %[2]s",
			nat.PrefixesString(s.From), name, strings.Join(s.Out, ", ")), fmt.Sprintf("add masquerade: {from: %s, out: %s}", nat.PrefixesString(s.From), name), "out")
		return
	}
}

// isGeneral reports whether a snat or masquerade asks for nothing but where connections come from and leave by.
func (e *Entry) isGeneral() bool {
	return (e.Rule.Kind == "snat" || e.Rule.Kind == "masquerade") && !e.IsHairpin() && len(e.To)+len(e.In)+len(e.NotIn) == 0 && e.Protocol == 0 && e.further() == 0
}

// within reports whether one of ranges in order, which do not touch, covers r.
func within(ranges nat.AddrRanges, r nat.AddrRange) bool {
	at, found := slices.BinarySearchFunc(ranges, r.First, func(o nat.AddrRange, a netip.Addr) int { return o.First.Compare(a) })
	if !found {
		at--
	}
	return at >= 0 && ranges[at].Covers(r)
}

// uplinksOnHost checks uplinks against the routes, rules and addresses of the host.
func (c *checker) uplinksOnHost() {
	for i := range c.plan.Uplinks {
		u := &c.plan.Uplinks[i]
		path := []any{"interfaces", RoleWAN, i}
		if v6, without := c.withoutRoute(u); c.facts.has(u.Interface) && without {
			c.add(Finding{ID: "wan-without-route", Severity: Warn,
				Message: fmt.Sprintf("no %s next hop is known by %s: no connection leaves by it until there is one", familyName(map[bool]int{true: 128, false: 32}[v6]), u.Interface),
				Advice:  "name it: via: ADDRESS; or let the host have a default route by " + u.Interface}, path)
		}
		for _, via := range u.Via {
			c.viaOffLink(u, via, path)
		}
		if c.facts.withoutCarrier(u) {
			c.add(Finding{ID: "wan-without-carrier", Severity: Warn, Message: u.Interface + " has no carrier: no new connection leaves by it until it has",
				Advice: "look at the cable, and at the device at its other end"}, path)
		}
	}
	for _, r := range c.facts.Rules {
		c.takenRule(r)
	}
	if len(c.plan.Uplinks) > 0 {
		c.ofOtherUplink()
	}
}

// viaOffLink warns of a next hop that no network of its interface has: it is asked for by ARP or neighbour discovery all
// the same (onlink).
func (c *checker) viaOffLink(u *Uplink, via netip.Addr, path []any) {
	var networks []netip.Prefix
	for _, p := range c.facts.AddressesOf(u.Interface) {
		if p.Contains(via) {
			return
		}
		if p.Addr().Is6() == via.Is6() && !p.Addr().IsLinkLocalUnicast() {
			networks = append(networks, p.Masked())
		}
	}
	if len(networks) == 0 || via.IsLinkLocalUnicast() || slices.ContainsFunc(c.facts.Named(u.Interface), func(i Interface) bool { return i.PointToPoint }) {
		return
	}
	c.add(Finding{ID: "via-off-link", Severity: Warn, Message: fmt.Sprintf("via: %s is in no network of %s (%s): its route is made with onlink, and works only if that host answers on the link of %[2]s", via, u.Interface, nat.PrefixesString(networks)),
		Advice: "write the next hop of " + u.Interface}, path)
}

// withoutRoute returns a family that the plan forwards and an uplink leads nowhere in.
func (c *checker) withoutRoute(u *Uplink) (v6, without bool) {
	for _, v6 := range []bool{false, true} {
		if _, ok := c.facts.NextHop(u, v6); !ok && (v6 && c.plan.IPv6 || !v6 && c.plan.IPv4) {
			return v6, true
		}
	}
	return false, false
}

// takenRule refuses marks and places of rules that another program has.
func (c *checker) takenRule(r PolicyRule) {
	n := len(c.plan.Uplinks)
	place := fmt.Sprintf("rule %d of 'ip rule'", r.Priority)
	switch {
	case n == 0:
	case r.Mask&c.plan.Marks != 0:
		c.add(Finding{ID: "mark-taken", Severity: Refuse,
			Message: fmt.Sprintf("%s, which another program made, asks for the mark 0x%x/0x%x: its bits are among %s, by which connections stay on one of the wan interfaces", place, r.Mark, r.Mask, Bits(c.plan.Marks)),
			Advice:  "name other bits by marks"}, []any{"interfaces", RoleWAN})
	case r.Priority >= UplinkRule && r.Priority <= UplinkRule+n || r.Priority > UplinkLast && r.Priority <= UplinkLast+n:
		c.add(Finding{ID: "rule-taken", Severity: Refuse,
			Message: fmt.Sprintf("%s is another program's: natkit's would have that number", place), Advice: "give it another one"}, []any{"interfaces", RoleWAN})
	case r.Table > UplinkTable && r.Table <= UplinkTable+n:
		c.add(Finding{ID: "rule-taken", Severity: Refuse,
			Message: fmt.Sprintf("%s is another program's, and leads to table %d, which natkit would have", place, r.Table), Advice: "use another table for it"}, []any{"interfaces", RoleWAN})
	}
}

// ofOtherUplink warns of sources that get an address of another uplink than they leave by.
func (c *checker) ofOtherUplink() {
	said := map[Ref]bool{}
	for i := range c.plan.Sources {
		s := &c.plan.Sources[i]
		if s.IsHairpin() || said[s.Rule] || len(s.Out) == 0 {
			continue
		}
		given := slices.Clone(s.Action.To)
		if s.Action.Prefix.IsValid() {
			given = append(given, nat.RangeOf(s.Action.Prefix))
		}
		if pairs := s.Pairs(); pairs != nil {
			given = c.onUplinks(pairs.Side(nat.To).Of(s.Rule.BitLen()))
		}
		for _, to := range given {
			of := c.uplinkOf(to.First)
			var others []string
			for _, u := range c.plan.Uplinks {
				if u.Interface != of && meet(s.Out, []string{u.Interface}) && !nat.InNames(s.NotOut, u.Interface) {
					others = append(others, u.Interface)
				}
			}
			if of == "" || len(others) == 0 {
				continue
			}
			said[s.Rule] = true
			c.ruleOf(s.Rule).warn("snat-of-other-wan", fmt.Sprintf("%s is an address of %s, and connections that leave by %s get it too: their provider drops them, or answers come by %[2]s",
				to, of, strings.Join(others, ", ")), "write out: "+of+", and another rule for "+strings.Join(others, ", "))
			break
		}
	}
}

// onUplinks is one address for each network of an uplink that has some of a list, which may be of a million.
func (c *checker) onUplinks(list nat.AddrRanges) (some nat.AddrRanges) {
	for _, u := range c.plan.Uplinks {
		for _, p := range c.facts.AddressesOf(u.Interface) {
			network := nat.RangeOf(p.Masked())
			if in := list.Within(network); len(in) > 0 {
				first := in[0].First
				if first.Less(network.First) {
					first = network.First
				}
				some = append(some, nat.OneAddr(first))
			}
		}
	}
	return some
}

// uplinkOf is the uplink on whose network an address is; empty for none.
func (c *checker) uplinkOf(a netip.Addr) string {
	for _, u := range c.plan.Uplinks {
		if slices.ContainsFunc(c.facts.AddressesOf(u.Interface), func(p netip.Prefix) bool { return p.Contains(a) }) {
			return u.Interface
		}
	}
	return ""
}
