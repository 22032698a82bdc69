package observe

import (
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/nat"
)

// sourceIndex finds Sources by a connection's tuple, in the plan's order.
type sourceIndex struct {
	// hairpin are those for one original destination, from all others.
	hairpin portIndex
	from    portIndex
}

func family(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

// least is the first of ascending entries below limit that ok accepts.
func least(entries []int, limit int, ok func(int) bool) int {
	for _, i := range entries {
		if i >= limit {
			break
		}
		if ok(i) {
			return i
		}
	}
	return limit
}

func indexSources(list []gateway.Entry) (x sourceIndex) {
	for i := range list {
		s := &list[i]
		if s.IsHairpin() && s.Original[0].Bits() > 0 {
			x.hairpin.add(s.Original[0], s.Protocol, s.OriginalPorts, i)
			continue
		}
		for _, p := range s.From {
			x.from.add(p, 0, nil, i)
		}
	}
	return x
}

// first is the least entry for a connection's tuple that ok accepts.
func (x *sourceIndex) first(t *conntrack.Tuple, ok func(int) bool) int {
	limit := x.hairpin.first(t.Dst, t.Proto, t.DstPort, none, ok)
	return x.from.first(t.Src, 0, 0, limit, ok)
}

// none is more than the number of an entry can be.
const none = int(^uint(0) >> 1)

// portIndex lists entries by address, protocol and port, their numbers ascending.
type portIndex struct {
	entries map[portKey][]int
	bits    [2][]int
}

// portKey is a prefix and what of the ports: all (proto 0), a protocol, one port, or a
// block of 256 that a range of ports meets.
type portKey struct {
	on    netip.Prefix
	proto uint8
	part  portPart
	port  uint16
}

type portPart uint8

const (
	allPorts portPart = iota
	onePort
	blockOfPorts
)

func indexDestinations(list []gateway.Entry) (x portIndex) {
	for i := range list {
		x.add(list[i].On().Masked(), list[i].Protocol, list[i].Ports, i)
	}
	return x
}

func (x *portIndex) add(on netip.Prefix, protocol uint8, ports []nat.Ports, entry int) {
	if x.entries == nil {
		x.entries = map[portKey][]int{}
	}
	for _, key := range portKeys(on, protocol, ports) {
		x.entries[key] = append(x.entries[key], entry)
	}
	lengths := &x.bits[family(on.Addr())]
	if !slices.Contains(*lengths, on.Bits()) {
		*lengths = append(*lengths, on.Bits())
	}
}

func portKeys(on netip.Prefix, protocol uint8, ports []nat.Ports) (keys []portKey) {
	if len(ports) == 0 {
		return []portKey{{on: on, proto: protocol}}
	}
	for _, p := range ports {
		if p.Len() == 1 {
			keys = append(keys, portKey{on, protocol, onePort, p.First})
			continue
		}
		for block := p.First >> 8; block <= p.Last>>8; block++ {
			keys = append(keys, portKey{on, protocol, blockOfPorts, block})
		}
	}
	return keys
}

// first is the least entry for an address, a protocol (0: whatever it is) and a port that
// ok accepts, if less than limit; limit where there is none. Of ranges of ports ok has to
// check the port.
func (x *portIndex) first(dst netip.Addr, proto uint8, port uint16, limit int, ok func(int) bool) int {
	for _, bits := range x.bits[family(dst)] {
		on, err := dst.Prefix(bits)
		if err != nil {
			continue
		}
		limit = least(x.entries[portKey{on: on}], limit, ok)
		if proto == 0 {
			continue
		}
		for _, key := range [...]portKey{{on, proto, onePort, port}, {on, proto, blockOfPorts, port >> 8}, {on, proto, allPorts, 0}} {
			limit = least(x.entries[key], limit, ok)
		}
	}
	return limit
}

// Untranslated finds connections that pass as they are although a rule is for them: they
// began when the rule was not in force yet, and their inside address leaves with every
// packet.
type Untranslated struct {
	rules *Attribution
	facts *gateway.Facts
	route Router
	// ways are routes that were asked for, budget how many more may be.
	ways   map[Lookup]Hop
	budget int
}

// Untranslated asks for at most that many routes; facts have the interfaces' addresses.
func (a *Attribution) Untranslated(facts *gateway.Facts, route Router, routes int) *Untranslated {
	if on := a.plan.On(facts); on != a.plan { // as interfaces are compared by their names
		a = Attribute(on)
	}
	return &Untranslated{rules: a, facts: facts, route: route, ways: map[Lookup]Hop{}, budget: routes}
}

// Exhausted reports whether there were connections for which no route could be asked any more.
func (u *Untranslated) Exhausted() bool { return u.budget < 0 }

// Of returns the rule that is for an untranslated entry, and would make it another one; nil
// if there is none. An entry does not record its ingress interface: that is taken to be the
// one which leads to its source.
func (u *Untranslated) Of(e *conntrack.Entry) (*gateway.Ref, error) {
	if e.IsSNAT() || e.IsDNAT() || !routed(e.Orig.Src) || !routed(e.Orig.Dst) || !u.concerns(e) {
		return nil, nil
	}
	in, err := u.entrance(e)
	if err != nil || in.Unreachable != "" {
		return nil, err
	}
	if d := u.destination(e, in); d != nil && !destinationGave(d, e) {
		return &d.Rule, nil
	}
	forward := Lookup{Source: e.Orig.Src, Destination: e.Orig.Dst, Mark: e.Mark & u.rules.plan.Marks}
	switch from := u.rules.plan.ZoneNumbered(e.Zone); {
	case from != nil: // its routes come first, and the main table has others back to its sources
		forward.Source, forward.Mark = netip.Addr{}, forward.Mark|from.Mark
	case !in.Local:
		forward.In = in.Out
	}
	out, err := u.way(forward)
	if err != nil || out.Local || out.Unreachable != "" {
		return nil, err
	}
	if s := u.source(e, out); s != nil && !u.gives(s, e, out.Out) {
		return &s.Rule, nil
	}
	return nil, nil
}

// entrance is the way that an entry's packets came by, backwards.
func (u *Untranslated) entrance(e *conntrack.Entry) (Hop, error) {
	if z := u.rules.plan.ZoneNumbered(e.Zone); z != nil {
		return Hop{Out: z.Interfaces[0]}, nil
	}
	return u.way(Lookup{Destination: e.Orig.Src})
}

// routed reports whether an address is one host's, and of more than one link.
func routed(a netip.Addr) bool {
	return a.IsGlobalUnicast() && a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// concerns reports whether a rule may be for an entry, before routes are asked: most are for
// the host itself or stay inside.
func (u *Untranslated) concerns(e *conntrack.Entry) bool {
	any := func(int) bool { return true }
	if u.rules.destinations.first(e.Orig.Dst, e.Orig.Proto, e.Orig.DstPort, none, any) != none {
		return true
	}
	return !u.facts.Has(e.Orig.Dst) && u.rules.sources.from.first(e.Orig.Src, 0, 0, none, any) != none
}

func (u *Untranslated) destination(e *conntrack.Entry, in Hop) *gateway.Entry {
	first := u.rules.firstDestination(e, func(i int) bool {
		d := &u.rules.plan.Destinations[i]
		comes := in.Local && d.Local || !in.Local && !d.IsOwn() && has(d.In, in.Out) && !nat.InNames(d.NotIn, in.Out)
		return comes && isCertain(d)
	})
	if first == none {
		return nil
	}
	return &u.rules.plan.Destinations[first]
}

// source leaves those of hairpins out: they are for what a destination rule translated.
func (u *Untranslated) source(e *conntrack.Entry, out Hop) *gateway.Entry {
	first := u.rules.firstSource(e, false, func(i int) bool {
		s := &u.rules.plan.Sources[i]
		return has(s.Out, out.Out) && !nat.InNames(s.NotOut, out.Out) && isCertain(s)
	})
	if first == none {
		return nil
	}
	return &u.rules.plan.Sources[first]
}

// isCertain reports whether a connection's entry says all that a rule asks for, but for interfaces.
func isCertain(e *gateway.Entry) bool {
	return !e.IsTimed() && e.Mark.Mask == 0 && len(e.NotMarks)+len(e.DSCP)+len(e.NotDSCP) == 0 && !e.IsOwn() && (len(e.In)+len(e.NotIn) == 0 || !e.Action.Kind.TranslatesSource())
}

// gives reports whether a rule may leave the source as it is, as a masquerade does that of
// the interface itself.
func (u *Untranslated) gives(s *gateway.Entry, e *conntrack.Entry, out string) bool {
	switch {
	case s.Action.Kind == nat.Masquerade:
		return slices.ContainsFunc(u.facts.AddressesOf(out), func(p netip.Prefix) bool { return p.Addr() == e.Orig.Src })
	case s.Action.Prefix.IsValid():
		return nat.Replace(e.Orig.Src, s.Action.Prefix) == e.Orig.Src
	}
	return s.Action.To.Contains(e.Orig.Src)
}

func (u *Untranslated) way(l Lookup) (Hop, error) {
	if hop, known := u.ways[l]; known {
		return hop, nil
	}
	if u.budget--; u.budget < 0 {
		return Hop{Unreachable: "not asked"}, nil
	}
	hop, err := u.route(l)
	if err == nil {
		u.ways[l] = hop
	}
	return hop, err
}
