// Package ebpf carries out the rules of plans whose mapping is fixed by eBPF programs at the interfaces, packet by packet
// and without the tracker. It does so before netfilter, which has all rules: what the programs leave to the stack becomes
// the same there, and a connection goes one way in both directions.
package ebpf

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/bpf/plane"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
	"golang.org/x/sys/unix"
)

// Engine is this package behind the interface of package engine.
type Engine struct{}

// Name is the engine's word in the file.
func (Engine) Name() gateway.Engine { return gateway.EngineEBPF }

// Facts adds nothing.
func (Engine) Facts(*netns.Handle, *gateway.Config, *gateway.Facts) {}

// Claim takes the rules of a plan that programs can carry out beside netfilter; none where the file does not ask for it.
func (e Engine) Claim(p *gateway.Plan, facts gateway.Facts) (mine, rest *gateway.Plan, notes []gateway.Note) {
	if p.Bypass == 0 {
		return nil, p, nil
	}
	why := refused(p, &facts)
	for _, r := range p.Refs() {
		if why[r] != "" {
			notes = append(notes, gateway.Note{Rule: r, Engine: e.Name(), Because: why[r]})
		}
	}
	slices.SortFunc(notes, func(a, b gateway.Note) int { return a.Rule.Compare(b.Rule) })
	if mine = p.Only(func(r gateway.Ref) bool { return why[r] == "" }); len(mine.Refs()) == 0 {
		return nil, p, notes
	}
	if rest = p.Only(func(r gateway.Ref) bool { return why[r] != "" }); len(rest.Refs()) == 0 {
		rest = nil
	}
	mine.Elsewhere = elsewhere(p, &facts, func(r gateway.Ref) bool { return why[r] == "" })
	return mine, rest, notes
}

// elsewhere are the addresses that netfilter has packets to: what it translates, what it gives connections, whose answers
// come there, and what it leaves alone. Rules for all destinations are compared with the links. Pairs that the programs have
// are left out: there may be a million, and each has a mapping.
func elsewhere(p *gateway.Plan, facts *gateway.Facts, mine func(gateway.Ref) bool) (all []netip.Prefix) {
	add := func(prefixes ...netip.Prefix) {
		for _, x := range prefixes {
			if x.IsValid() && x.Bits() > 0 {
				all = append(all, x.Masked())
			}
		}
	}
	for e := range p.Entries() {
		if s := e.Pairs(); s != nil {
			if !mine(e.Rule) && !e.IsHairpin() {
				for _, r := range s.Side(nat.To).Of(e.Rule.BitLen()) {
					add(r.Prefixes()...)
				}
			}
			continue
		}
		if !e.Action.Kind.TranslatesSource() && e.Action.Kind != nat.Pair {
			add(e.To...)
			continue
		}
		add(e.Action.Prefix)
		for _, r := range e.Action.To {
			add(r.Prefixes()...)
		}
	}
	for i := range facts.Foreign {
		for j := range facts.Foreign[i].NAT {
			n := &facts.Foreign[i].NAT[j]
			add(gateway.MatchOf(n.NATCondition).To...)
			if n.First.IsValid() && (n.Kind == snapshot.NATMasquerade || n.Kind == snapshot.NATSource) {
				add(nat.AddrRange{First: n.First, Last: n.Last}.Prefixes()...)
			}
		}
	}
	slices.SortFunc(all, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	return slices.Compact(all)
}

// refused returns why the programs do not carry out rules; nothing for those that they do.
func refused(p *gateway.Plan, facts *gateway.Facts) map[gateway.Ref]string {
	all, why := links(p)
	c := &claim{plan: p, facts: facts, links: all, why: why, entries: map[gateway.Ref][]*gateway.Entry{}, threats: map[string]bool{}}
	for i := range c.links {
		c.onItsOwn(&c.links[i])
	}
	c.roles()
	c.index()
	for i := range c.links {
		c.amongThemselves(i)
	}
	for e := range p.Entries() {
		if c.entries[e.Rule] = append(c.entries[e.Rule], e); e.IsHairpin() {
			c.masks(e)
		}
	}
	c.foreign()
	c.left = slices.SortedFunc(maps.Keys(c.why), gateway.Ref.Compare)
	for len(c.left) > 0 { // what is left may be in the way of others
		r := c.left[0]
		c.left = c.left[1:]
		c.leave(r)
	}
	return c.why
}

// claim finds the rules that programs carry out beside netfilter, such that what netfilter does is not disturbed: packets
// of the connections that it translates must not be taken for others, by none of their two directions.
type claim struct {
	plan  *gateway.Plan
	facts *gateway.Facts
	links []link
	// outside and inside find links by the addresses there.
	outside, inside *index
	why             map[gateway.Ref]string
	// left are rules for netfilter alone that links are to be compared with; entries are those of each rule.
	left    []gateway.Ref
	entries map[gateway.Ref][]*gateway.Entry
	// threats are those of widely that have been compared.
	threats map[string]bool
}

// refuse leaves a rule to netfilter alone.
func (c *claim) refuse(r gateway.Ref, format string, args ...any) {
	if c.why[r] != "" {
		return
	}
	c.why[r], c.left = fmt.Sprintf(format, args...), append(c.left, r)
}

func (c *claim) claimed(k *link) bool { return c.why[k.rule] == "" }

// onItsOwn refuses what the file or the host asks for beside the translation.
func (c *claim) onItsOwn(k *link) {
	switch p := c.plan; {
	case len(p.Uplinks) > 0:
		c.refuse(k.rule, "connections are divided among several wan interfaces, by marks that the tracker keeps")
	case len(p.Zones) > 0:
		c.refuse(k.rule, "zones are of connections")
	case p.PCP != nil:
		c.refuse(k.rule, "pcp: answers of a host may be those of a port that it has opened")
	case p.TTL != 0:
		c.refuse(k.rule, "the programs do not set the ttl")
	case p.ConnectionsPerSource > 0:
		c.refuse(k.rule, "connections-per-source counts connections")
	case p.MSS != gateway.MSS{} && has(k.outside, unix.IPPROTO_TCP):
		c.refuse(k.rule, "the programs do not bound the mss")
	case k.tracked && len(k.out) == 0:
		c.refuse(k.rule, "it is for every interface, and what its hosts answer to others inside, by their own address, would be translated; name the wan interfaces")
	case k.tracked && c.anyInside(k.in):
		c.refuse(k.rule, "%s leads inside, where the tracker gives hosts other addresses", named(k.in))
	case k.tracked && (k.hairpin || !within(k.in, p.WAN)) && slices.ContainsFunc(p.Stateless, func(e gateway.Entry) bool { return e.Family() == k.rule.BitLen() }):
		c.refuse(k.rule, "it is for hosts inside, too: what those with stateless rules send is not tracked, and does not come back inside")
	case k.tracked && k.hairpin && c.besideInside(k):
		c.refuse(k.rule, "hairpin, and its hosts are behind an interface that is not inside")
	case c.inVRF(k.in) || c.inVRF(k.out):
		c.refuse(k.rule, "its interfaces, or some of them, are in a VRF")
	}
	for _, s := range c.plan.HelperServices() {
		if k.tracked && has(k.outside, s.Protocol) && k.inside.ports.Contains(s.Port) {
			c.refuse(k.rule, "helpers: the programs do not read what %s announces", s.Helper)
		}
	}
	if k.tracked && c.facts.Known {
		c.ofTheHost(k)
	}
}

// has reports whether packets of a protocol, 0 for all, are among those of a span.
func has(s span, protocol uint8) bool {
	return s.protocol == 0 || protocol == 0 || s.protocol == protocol
}

// inVRF reports whether one of the interfaces, empty for any, is in a VRF, whose routes are others.
func (c *claim) inVRF(names []string) bool {
	return slices.ContainsFunc(c.facts.Interfaces, func(i gateway.Interface) bool {
		return i.VRF != nil && (len(names) == 0 || slices.ContainsFunc(names, i.Is))
	})
}

// ofTheHost refuses what answers to the host's own connections may come for: to an address that it gives these, and, of
// protocols with ports, to one of net.ipv4.ip_local_port_range.
func (c *claim) ofTheHost(k *link) {
	own := span{protocol: k.outside.protocol, ports: c.localPorts()}
	if !mapsPorts(own.protocol) || k.outside.ports == nat.AllPorts {
		own.ports = nat.AllPorts
	}
	for _, own.prefix = range c.given(nil) {
		if _, meet := own.common(k.outside); meet && own.ports == nat.AllPorts {
			c.refuse(k.rule, "%s is an address of the host itself, and answers to its own connections come for it", own.prefix.Addr())
		} else if meet {
			c.refuse(k.rule, "%s is an address of the host itself, whose own connections may have %s (net.ipv4.ip_local_port_range %s)", own.prefix.Addr(), k.outside.service(), own.ports)
		}
	}
}

// service is "tcp port 80".
func (s span) service() string {
	if s.ports == nat.AllPorts {
		return nat.ServiceString(s.protocol, nil)
	}
	return nat.ProtocolName(s.protocol) + " port " + s.ports.String()
}

func (c *claim) localPorts() nat.Ports {
	if fields := strings.Fields(c.facts.Sysctls["net.ipv4.ip_local_port_range"]); len(fields) == 2 {
		first, errA := strconv.ParseUint(fields[0], 10, 16)
		last, errB := strconv.ParseUint(fields[1], 10, 16)
		if errA == nil && errB == nil {
			return nat.Ports{First: uint16(first), Last: uint16(last)}
		}
	}
	return nat.Ports{First: 32768, Last: 60999}
}

// given are the addresses that masquerade by some interfaces (nil: any) gives, as prefixes.
func (c *claim) given(out []string) (all []netip.Prefix) {
	for _, i := range c.facts.Interfaces {
		for _, p := range i.Addresses {
			if !p.Addr().IsLoopback() && !p.Addr().IsLinkLocalUnicast() && c.facts.Masquerades(out, p.Addr()) {
				all = append(all, nat.Host(p.Addr()))
			}
		}
	}
	return all
}

// roles refuses rules for more lists of interfaces than there are bits.
func (c *claim) roles() {
	r, counted := roles{}, map[gateway.Ref]bool{}
	for i := range c.links {
		k := &c.links[i]
		if counted[k.rule] = true; len(counted) >= plane.MaxRules {
			c.refuse(k.rule, "the programs have no counter for more than %d rules", plane.MaxRules-1)
		}
		if c.claimed(k) && !(r.add(k.in) && r.add(k.out)) {
			c.refuse(k.rule, "the rules before it are for %d lists of interfaces, and more are not told apart", mostLists)
		}
	}
}

func (c *claim) index() {
	outside, inside := make([]span, len(c.links)), make([]span, len(c.links))
	for i := range c.links {
		outside[i], inside[i] = c.links[i].outside, c.links[i].inside
	}
	c.outside, c.inside = indexed(outside), indexed(inside)
}

// amongThemselves compares a link with all others: each packet has to have one mapping, the plan's.
func (c *claim) amongThemselves(at int) {
	k := &c.links[at]
	c.outside.overlapping(k.outside, func(i int) {
		o := &c.links[i]
		switch {
		case i == at:
		case k.tracked != o.tracked:
			c.secondTo(k, o, meet(k.in, o.in), k.outside, o.outside)
		case k.tracked && o.tracked && meet(k.in, o.in) && !k.agree(o, true):
			c.refuse(k.rule, "%s leads some of its packets to another host, which answers to what this one begins would come to", o.rule)
		case i < at:
			c.apart(k, o, k.outside, o.outside)
		}
	})
	c.inside.overlapping(k.inside, func(i int) {
		o := &c.links[i]
		switch {
		case i == at:
		case k.tracked != o.tracked:
			c.secondTo(k, o, meet(k.out, o.out), k.inside, o.inside)
		case k.tracked && o.tracked && (meet(k.out, o.out) || meet(k.out, o.destination.In)) && !k.agree(o, false):
			c.refuse(k.rule, "%s", ambiguous(k, o.rule.String()))
		case i < at:
			c.apart(k, o, k.inside, o.inside)
		}
	})
}

// secondTo refuses a rule of connections for packets of a pair, which comes first, or with its place in a table.
func (c *claim) secondTo(k, o *link, meet bool, a, b span) {
	if k.tracked && (meet || a.samePlace(b)) {
		c.refuse(k.rule, "%s is for packets of it, and comes first", o.rule)
	}
}

func ambiguous(k *link, other string) string {
	if other == k.rule.String() {
		return fmt.Sprintf("several addresses lead to %s %s: its answers do not say by which they came", k.inside.where(), k.inside.service())
	}
	return fmt.Sprintf("what %s %s sends may be an answer by %s", k.inside.where(), k.inside.service(), other)
}

// apart refuses a link whose place in a table an earlier one has, or whose prefix, for other interfaces, is within that of one, or
// has it within: of prefixes the longest one alone is found.
func (c *claim) apart(k, o *link, a, b span) {
	nested := !a.isOfHosts() && !b.isOfHosts()
	alike := slices.Equal(k.in, o.in) && slices.Equal(k.out, o.out) && k.hairpin == o.hairpin
	if a.samePlace(b) || nested && !alike {
		c.refuse(k.rule, "%s is for the same addresses", o.rule)
	}
}

// meet reports whether two lists of interfaces, empty for any, have one in common.
func meet(a, b []string) bool {
	m, o := nat.Match{In: a}, nat.Match{In: b}
	return m.Overlaps(&o)
}

// within reports whether all of some interfaces are among others.
func within(names, others []string) bool {
	return len(names) > 0 && !slices.ContainsFunc(names, func(name string) bool { return !nat.InNames(others, name) })
}

// masks compares a source that connections get which come back inside: netfilter gives it to hosts without a mapping.
func (c *claim) masks(e *gateway.Entry) {
	for _, r := range e.Action.To {
		for _, p := range r.Prefixes() {
			c.outside.overlapping(whole(p), func(i int) {
				if k := &c.links[i]; k.tracked && k.rule != e.Rule && k.hairpin {
					c.refuse(k.rule, "%s gives %s to hosts inside that reach others by it, and their answers come for it", e.Rule, nat.PrefixString(p))
				}
			})
		}
	}
}

func (c *claim) anyInside(names []string) bool {
	if len(c.plan.LAN) > 0 {
		return meet(names, c.plan.LAN)
	}
	return !within(names, c.plan.WAN)
}

// leave compares what netfilter does alone with the links.
func (c *claim) leave(r gateway.Ref) {
	for _, e := range c.entries[r] {
		switch {
		case e.Action.Kind == nat.Pair:
			c.leavePair(e)
		case e.Action.Kind == nat.Notrack:
			c.leaveUntracked(e)
		case e.IsHairpin(): // see masks
		case e.Action.Kind.TranslatesSource():
			c.leaveSource(rival{e, r.String(), false})
		default:
			c.leaveDestination(rival{e, r.String(), false})
		}
	}
}

// each calls found for the links that are still claimed, and of a rule of connections, whose spans overlap some.
func (c *claim) each(x *index, spans []span, found func(*link)) {
	for _, s := range spans {
		x.overlapping(s, func(i int) {
			if k := &c.links[i]; k.tracked && c.claimed(k) {
				found(k)
			}
		})
	}
}

// rival is an entry that netfilter carries out alone.
type rival struct {
	*gateway.Entry
	// name is that of its rule; first is that it comes before all of the plan's.
	name  string
	first bool
}

func (r *rival) wins(over *gateway.Entry) bool {
	return r.Overlaps(&over.Match) && (r.first || r.Compare(over) <= 0)
}

func (c *claim) leaveDestination(r rival) {
	c.each(c.outside, spansOf(r.To, &r.Match), func(k *link) {
		if r.wins(k.destination) && !(r.ToLocal && c.facts.Known && k.outside.isOfHosts() && !c.isLocal(k.outside)) {
			c.refuse(k.rule, "%s is for some of its packets, and takes precedence", r.name)
		}
	})
	c.each(c.inside, images(r.Entry), func(k *link) {
		if meet(r.In, k.out) {
			c.refuse(k.rule, "%s", ambiguous(k, r.name))
		}
	})
	if r.ToLocal || r.Action.Pairs != "" || !slices.ContainsFunc(r.To, func(p netip.Prefix) bool { return p.Bits() == 0 }) {
		return // the programs leave what goes there to the stack
	}
	bits := r.Rule.BitLen()
	c.widely(fmt.Sprint("from ", bits, r.In, r.From, r.Protocol), func(k *link) {
		if k.rule.BitLen() == bits && c.onTheWay(r.In, k, k.out) && overlap(r.From, k.inside.prefix) && has(k.inside, r.Protocol) {
			c.refuse(k.rule, "%s is for some of what its hosts send, before they have its address", r.name)
		}
	})
}

// onTheWay reports whether packets from or to the hosts inside of a link may pass one of some interfaces (empty: any) on
// the side of these hosts: by which they are reached, as far as that is known, and otherwise by any that does not lead
// outside.
func (c *claim) onTheWay(names []string, k *link, outside []string) bool {
	if len(names) == 0 {
		return true
	}
	if way := c.way(k.inside.prefix); len(way) > 0 {
		return slices.ContainsFunc(way, func(i gateway.Interface) bool { return slices.ContainsFunc(names, i.Is) })
	}
	return !within(names, slices.Concat(outside, c.plan.WAN))
}

// way are the interfaces by which hosts inside are reached; none where that is not known.
func (c *claim) way(p netip.Prefix) (all []gateway.Interface) {
	for _, i := range c.facts.Interfaces {
		near := slices.ContainsFunc(i.Addresses, func(n netip.Prefix) bool { return n.Bits() <= p.Bits() && n.Contains(p.Addr()) })
		if near || p.IsSingleIP() && c.facts.Ways[p.Addr()] == i.Name {
			all = append(all, i)
		}
	}
	return all
}

// besideInside reports whether hosts inside are known to be reached by an interface that has not that role.
func (c *claim) besideInside(k *link) bool {
	r := roles{plan: c.plan}
	return slices.ContainsFunc(c.way(k.inside.prefix), func(i gateway.Interface) bool { return r.Of(i)&plane.Inside == 0 })
}

// images are what a destination becomes.
func images(e *gateway.Entry) (all []span) {
	a := &e.Action
	if s := e.Pairs(); s != nil {
		inside := sideOf(s, nat.From, e.Rule.BitLen())
		for _, one := range spansOf([]netip.Prefix{inside.prefix}, &e.Match) {
			one.set = inside.set
			all = append(all, one)
		}
		return all
	}
	if a.Prefix.IsValid() {
		return spansOf([]netip.Prefix{a.Prefix}, &e.Match)
	}
	add := func(prefixes []netip.Prefix, ports nat.Ports) {
		if ports.First == 0 {
			all = append(all, spansOf(prefixes, &e.Match)...)
			return
		}
		for _, p := range prefixes {
			all = append(all, span{prefix: p, protocol: e.Protocol, ports: ports})
		}
	}
	for _, b := range a.Backends {
		if b.Address.IsValid() {
			add([]netip.Prefix{nat.Host(b.Address)}, nat.Ports{First: b.Port, Last: max(b.Port, b.Last)})
		}
	}
	for _, r := range a.To { // another program's
		add(r.Prefixes(), a.Ports)
	}
	return all
}

// overlap reports whether one of some prefixes, none for any, has addresses of p.
func overlap(prefixes []netip.Prefix, p netip.Prefix) bool {
	return len(prefixes) == 0 || slices.ContainsFunc(prefixes, func(o netip.Prefix) bool { return o.Overlaps(p) })
}

// widely compares an entry that is not found by addresses with all links, once for each that says the same.
func (c *claim) widely(threat string, found func(*link)) {
	if c.threats[threat] {
		return
	}
	c.threats[threat] = true
	for i := range c.links {
		if k := &c.links[i]; k.tracked && c.claimed(k) {
			found(k)
		}
	}
}

func (c *claim) leaveSource(r rival) {
	from, bits := r.From, r.Rule.BitLen()
	if len(from) == 0 {
		from = []netip.Prefix{nat.Anywhere(bits)}
	}
	c.each(c.inside, spansOf(from, &nat.Match{Protocol: r.Protocol}), func(k *link) {
		if k.source != nil && r.wins(k.source) {
			c.refuse(k.rule, "%s is for some of its packets, and takes precedence", r.name)
		}
	})
	c.each(c.outside, c.gives(r.Entry), func(k *link) {
		if meet(r.Out, k.in) {
			c.refuse(k.rule, "%s may give %s %s to another connection; give the rule an address of its own, or bound the ports of that one", r.name, k.outside.where(), k.outside.service())
		}
	})
	c.widely(fmt.Sprint("to ", bits, r.Out, r.To, from, r.Protocol), func(k *link) {
		if k.rule.BitLen() == bits && c.onTheWay(r.Out, k, k.in) && overlap(r.To, k.inside.prefix) && has(k.inside, r.Protocol) && c.mayCome(from, k.in) {
			c.refuse(k.rule, "%s also translates the source of what comes to its hosts", r.name)
		}
	})
}

// mayCome reports whether packets from some addresses may come in by one of some interfaces: they do not where all are
// known to be on networks of others.
func (c *claim) mayCome(from []netip.Prefix, in []string) bool {
	return slices.ContainsFunc(from, func(p netip.Prefix) bool {
		way := c.way(p)
		return len(way) == 0 || slices.ContainsFunc(way, func(i gateway.Interface) bool { return slices.ContainsFunc(in, i.Is) })
	})
}

// foreign compares what other programs translate with the links: netfilter does that before what is the plan's.
func (c *claim) foreign() {
	for i := range c.facts.Foreign {
		f := &c.facts.Foreign[i]
		if f.Hook != "prerouting" && f.Hook != "postrouting" {
			continue
		}
		if f.TooMany {
			c.widely("more", func(k *link) {
				c.refuse(k.rule, "%s leads to more rules than natkit follows, which may translate its packets", f.Chain)
			})
		}
		for j := range f.NAT {
			if n := &f.NAT[j]; n.Family != "ip6" {
				c.foreignRule(n, gateway.Ref{List: "nat"})
			}
			if n := &f.NAT[j]; n.Family != "ip" {
				c.foreignRule(n, gateway.Ref{List: "ipv6"})
			}
		}
	}
}

// foreignRule compares one of them, of the family of a list.
func (c *claim) foreignRule(n *snapshot.NATRule, list gateway.Ref) {
	e := gateway.Entry{Rule: list, Match: gateway.MatchOf(n.NATCondition)}
	if family := e.Family(); n.Marked || family != 0 && family != list.BitLen() {
		return // what is marked is meant by whoever marked it
	}
	if n.First.IsValid() {
		e.Action.To = nat.AddrRanges{{First: n.First, Last: n.Last}}
	}
	if e.Action.Ports = (nat.Ports{First: n.FirstPort, Last: max(n.FirstPort, n.LastPort)}); n.PortsFromMap {
		e.Action.Ports = nat.Ports{}
	}
	r := rival{&e, fmt.Sprintf("another program's rule in %s %s %s", n.Family, n.Table, n.Chain), true}
	switch n.Kind {
	case snapshot.NATMasquerade, snapshot.NATSource:
		if e.Action.Kind = nat.SNAT; n.Kind == snapshot.NATMasquerade {
			e.Action.Kind = nat.Masquerade
		}
		c.leaveSource(r)
	default:
		if e.Action.Kind = nat.DNAT; len(e.To) == 0 {
			e.To = []netip.Prefix{nat.Anywhere(list.BitLen())}
		}
		c.leaveDestination(r)
	}
}

// gives are the addresses and ports that connections may get by a source.
func (c *claim) gives(e *gateway.Entry) (all []span) {
	if s := e.Pairs(); s != nil {
		outside := sideOf(s, nat.To, e.Rule.BitLen())
		outside.protocol = e.Protocol
		return []span{outside}
	}
	prefixes := []netip.Prefix{}
	switch a := &e.Action; {
	case a.Kind == nat.Masquerade:
		prefixes = c.given(e.Out)
	case a.Prefix.IsValid():
		prefixes = append(prefixes, a.Prefix.Masked())
	default:
		for _, r := range a.To {
			prefixes = append(prefixes, r.Prefixes()...)
		}
	}
	ports := nat.AllPorts
	if e.Action.Ports != (nat.Ports{}) && !e.Action.Keep {
		ports = e.Action.Ports
	}
	for _, p := range prefixes {
		if p.Addr().BitLen() == e.Rule.BitLen() {
			all = append(all, span{prefix: p, protocol: e.Protocol, ports: ports})
		}
	}
	return all
}

// leavePair refuses rules of connections that a pair is in the way of: it comes first; and pairs whose addresses another
// one has.
func (c *claim) leavePair(e *gateway.Entry) {
	compare := func(x *index, s span, out func(*link) []string) {
		x.overlapping(s, func(i int) {
			if k := &c.links[i]; k.rule != e.Rule && meet(e.Out, out(k)) {
				c.refuse(k.rule, "%s is for some of its packets, and comes first", e.Rule)
			}
		})
	}
	outside, inside := sides(e)
	compare(c.outside, outside, func(k *link) []string { return k.in })
	compare(c.inside, inside, func(k *link) []string { return k.out })
	for i := range c.links {
		k := &c.links[i]
		ofFamily := k.rule.BitLen() == e.Rule.BitLen()
		if c.claimed(k) && ofFamily && e.Reflects() && k.neutral {
			c.refuse(k.rule, "%s leads inside what its hosts send, before they have its address", e.Rule)
		}
	}
}

// isLocal reports whether an address of a span of hosts is one of this host: the programs leave what goes there to the
// stack.
func (c *claim) isLocal(s span) bool {
	return slices.ContainsFunc(c.facts.Interfaces, func(i gateway.Interface) bool {
		return slices.ContainsFunc(i.Addresses, func(own netip.Prefix) bool {
			_, is := s.common(whole(nat.Host(own.Addr())))
			return is
		})
	})
}

// leaveUntracked refuses rules of connections for packets from or to what is not tracked.
func (c *claim) leaveUntracked(e *gateway.Entry) {
	on := spansOf(e.To, &e.Match)
	refuse := func(k *link) {
		c.refuse(k.rule, "%s leaves some of its packets alone", e.Rule)
	}
	c.each(c.outside, on, refuse)
	c.each(c.inside, on, refuse)
	if !c.facts.Known || !c.facts.Has(e.On().Addr()) {
		c.widely(fmt.Sprint("untracked ", e.Rule.BitLen()), func(k *link) {
			if k.inside.prefix.Addr().BitLen() == e.Rule.BitLen() {
				c.refuse(k.rule, "%s leaves packets of %s alone, also those to and from its hosts", e.Rule, e.On().Addr())
			}
		})
	}
}
