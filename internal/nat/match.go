package nat

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Packet is what a Match can ask of a packet, where a rule sees it. What is not known has
// its zero value.
type Packet struct {
	// Protocol is the number of the IP protocol.
	Protocol uint8      `json:"protocol_number"`
	Src      netip.Addr `json:"source"`
	Dst      netip.Addr `json:"destination"`
	// SrcPort and DstPort are 0 where the protocol has none; of an echo request both are
	// its identifier.
	SrcPort uint16 `json:"source_port,omitempty"`
	DstPort uint16 `json:"destination_port,omitempty"`
	// In is the interface by which it comes; empty for one of the host's own programs.
	In string `json:"in,omitempty"`
	// Out is the interface by which it leaves; empty before the routing decision.
	Out string `json:"-"`
	// ToLocal is set where the destination is an address of the host.
	ToLocal bool `json:"-"`
	// OriginalDst and OriginalPort are the destination before it was translated; not valid
	// where it was not.
	OriginalDst  netip.Addr `json:"-"`
	OriginalPort uint16     `json:"-"`
	// Mark is skb->mark.
	Mark uint32 `json:"-"`
}

// String is "tcp 192.168.0.2:4000 -> 198.51.100.9:443".
func (p Packet) String() string {
	to := p.DstPort
	if IsICMP(p.Protocol) {
		to = 0 // the identifier is printed once
	}
	return fmt.Sprintf("%s %s -> %s", ProtocolName(p.Protocol), Backend{Address: p.Src, Port: p.SrcPort}, Backend{Address: p.Dst, Port: to})
}

// Match is a set of packets: those that meet all of its conditions. A condition without
// a value is met by every packet, so that the zero Match is all packets.
//
// A condition that is added here needs an entry in conditions, by which Matches and String
// go, and a line in Overlaps, Covers and And.
type Match struct {
	// Original and OriginalPorts are about the destination before its translation: where
	// one of them is there, connections whose destination was not translated do not match.
	Original      []netip.Prefix `json:"original,omitempty"`
	OriginalPorts []Ports        `json:"original_ports,omitempty"`
	// To and From are met by an address in one of the prefixes, NotTo and NotFrom by one
	// in none of them.
	To       []netip.Prefix `json:"to,omitempty"`
	Protocol uint8          `json:"protocol,omitempty"`
	// Ports are of the destination, SourcePorts of the source.
	Ports       []Ports        `json:"ports,omitempty"`
	SourcePorts []Ports        `json:"source_ports,omitempty"`
	From        []netip.Prefix `json:"from,omitempty"`
	NotFrom     []netip.Prefix `json:"not_from,omitempty"`
	NotTo       []netip.Prefix `json:"not_to,omitempty"`
	// In and Out are met by one of the interfaces, NotIn and NotOut by none of them; a
	// name that ends in "*" stands for all that begin so.
	In     []string `json:"in,omitempty"`
	NotIn  []string `json:"not_in,omitempty"`
	Out    []string `json:"out,omitempty"`
	NotOut []string `json:"not_out,omitempty"`
	// ToLocal asks for a destination that is an address of the host.
	ToLocal bool `json:"to_local,omitempty"`
	Mark    Mark `json:"mark,omitzero"`
}

// Mark asks for Value in those bits of skb->mark that Mask has.
type Mark struct {
	Value uint32 `json:"value"`
	Mask  uint32 `json:"mask"`
}

// Condition names a field of Match.
type Condition string

// The conditions, by the names of their fields.
const (
	Original      Condition = "original"
	OriginalPorts Condition = "original_ports"
	To            Condition = "to"
	Protocol      Condition = "protocol"
	DestPorts     Condition = "ports"
	SourcePorts   Condition = "source_ports"
	From          Condition = "from"
	In            Condition = "in"
	Out           Condition = "out"
	ToLocal       Condition = "to_local"
	MarkBits      Condition = "mark"
)

// condition is one of a Match's: how a packet meets it, and its text.
type condition struct {
	name Condition
	met  func(m *Match, p *Packet) bool
	text func(m *Match) string
}

var conditions = []condition{
	{Original, func(m *Match, p *Packet) bool { return len(m.Original) == 0 || InAny(m.Original, p.OriginalDst) },
		func(m *Match) string {
			return onlyIf(len(m.Original) > 0, "originally to "+PrefixesString(m.Original))
		}},
	{OriginalPorts, func(m *Match, p *Packet) bool { return hasPort(m.OriginalPorts, p.OriginalPort) },
		func(m *Match) string {
			return onlyIf(len(m.OriginalPorts) > 0, ServiceString(m.Protocol, m.OriginalPorts))
		}},
	{To, func(m *Match, p *Packet) bool {
		return (len(m.To) == 0 || InAny(m.To, p.Dst)) && !InAny(m.NotTo, p.Dst)
	},
		func(m *Match) string { return onlyIf(len(m.To) > 0, "on "+PrefixesString(m.To)) }},
	{Protocol, func(m *Match, p *Packet) bool { return m.Protocol == 0 || m.Protocol == p.Protocol },
		func(m *Match) string {
			return onlyIf(len(m.Ports)+len(m.OriginalPorts) == 0, ServiceString(m.Protocol, nil))
		}},
	{DestPorts, func(m *Match, p *Packet) bool { return hasPort(m.Ports, p.DstPort) },
		func(m *Match) string { return onlyIf(len(m.Ports) > 0, ServiceString(m.Protocol, m.Ports)) }},
	{SourcePorts, func(m *Match, p *Packet) bool { return hasPort(m.SourcePorts, p.SrcPort) },
		func(m *Match) string {
			return onlyIf(len(m.SourcePorts) > 0, "source port "+ServiceString(0, m.SourcePorts))
		}},
	{From, func(m *Match, p *Packet) bool {
		return (len(m.From) == 0 || InAny(m.From, p.Src)) && !InAny(m.NotFrom, p.Src)
	},
		func(m *Match) string { // NotTo stands behind it
			return joinWords(onlyIf(len(m.From) > 0, "from "+PrefixesString(m.From)), onlyIf(len(m.NotFrom) > 0, "except from "+PrefixesString(m.NotFrom)),
				onlyIf(len(m.NotTo) > 0, "except to "+PrefixesString(m.NotTo)))
		}},
	{In, func(m *Match, p *Packet) bool {
		return (len(m.In) == 0 || InNames(m.In, p.In)) && !InNames(m.NotIn, p.In)
	},
		func(m *Match) string { return namesText("in", m.In, m.NotIn) }},
	{Out, func(m *Match, p *Packet) bool {
		return (len(m.Out) == 0 || InNames(m.Out, p.Out)) && !InNames(m.NotOut, p.Out)
	},
		func(m *Match) string { return namesText("out", m.Out, m.NotOut) }},
	{ToLocal, func(m *Match, p *Packet) bool { return p.ToLocal || !m.ToLocal },
		func(m *Match) string { return onlyIf(m.ToLocal, "to an address of this host") }},
	{MarkBits, func(m *Match, p *Packet) bool { return (p.Mark^m.Mark.Value)&m.Mark.Mask == 0 },
		func(m *Match) string {
			return onlyIf(m.Mark.Mask != 0, fmt.Sprintf("mark %#x/%#x", m.Mark.Value, m.Mark.Mask))
		}},
}

func hasPort(list []Ports, port uint16) bool {
	return len(list) == 0 || slices.ContainsFunc(list, func(p Ports) bool { return p.Contains(port) })
}

func namesText(word string, any, not []string) string {
	return joinWords(onlyIf(len(any) > 0, word+" "+strings.Join(any, ", ")), onlyIf(len(not) > 0, "not "+word+" "+strings.Join(not, ", ")))
}

// Overlaps reports whether some packet matches both.
func (m *Match) Overlaps(o *Match) bool {
	f, g := m.Family(), o.Family()
	if f != 0 && g != 0 && f != g {
		return false
	}
	f = max(f, g)
	return addresses.overlap(m.To, m.NotTo, o.To, o.NotTo, f) &&
		(m.Protocol == 0 || o.Protocol == 0 || m.Protocol == o.Protocol) &&
		ports.overlap(m.Ports, nil, o.Ports, nil, f) &&
		addresses.overlap(m.From, m.NotFrom, o.From, o.NotFrom, f) &&
		interfaces.overlap(m.In, m.NotIn, o.In, o.NotIn, f) &&
		interfaces.overlap(m.Out, m.NotOut, o.Out, o.NotOut, f) &&
		ports.overlap(m.SourcePorts, nil, o.SourcePorts, nil, f) &&
		addresses.overlap(m.Original, nil, o.Original, nil, f) &&
		ports.overlap(m.OriginalPorts, nil, o.OriginalPorts, nil, f) &&
		(m.Mark.Value^o.Mark.Value)&m.Mark.Mask&o.Mark.Mask == 0
}

// Covers reports whether every packet that matches o matches m as well.
func (m *Match) Covers(o *Match) bool {
	f := o.Family()
	return addresses.cover(m.To, m.NotTo, o.To, o.NotTo, f) &&
		(m.Protocol == 0 || m.Protocol == o.Protocol) &&
		ports.cover(m.Ports, nil, o.Ports, nil, f) &&
		addresses.cover(m.From, m.NotFrom, o.From, o.NotFrom, f) &&
		interfaces.cover(m.In, m.NotIn, o.In, o.NotIn, f) &&
		interfaces.cover(m.Out, m.NotOut, o.Out, o.NotOut, f) &&
		ports.cover(m.SourcePorts, nil, o.SourcePorts, nil, f) &&
		(len(m.Original) == 0 || len(o.Original) > 0) && // else it matches what is not translated
		addresses.cover(m.Original, nil, o.Original, nil, f) &&
		ports.cover(m.OriginalPorts, nil, o.OriginalPorts, nil, f) &&
		(o.ToLocal || !m.ToLocal) &&
		m.Mark.Mask&^o.Mark.Mask == 0 && (m.Mark.Value^o.Mark.Value)&m.Mark.Mask == 0
}

// And returns the match of the packets that match both; false if there are none.
func (m *Match) And(o *Match) (both Match, ok bool) {
	if !m.Overlaps(o) {
		return both, false
	}
	return Match{
		Original: addresses.both(m.Original, o.Original), OriginalPorts: ports.both(m.OriginalPorts, o.OriginalPorts),
		To: addresses.both(m.To, o.To), NotTo: Union(m.NotTo, o.NotTo),
		Protocol: max(m.Protocol, o.Protocol),
		Ports:    ports.both(m.Ports, o.Ports), SourcePorts: ports.both(m.SourcePorts, o.SourcePorts),
		From: addresses.both(m.From, o.From), NotFrom: Union(m.NotFrom, o.NotFrom),
		In: interfaces.both(m.In, o.In), NotIn: Union(m.NotIn, o.NotIn),
		Out: interfaces.both(m.Out, o.Out), NotOut: Union(m.NotOut, o.NotOut),
		ToLocal: m.ToLocal || o.ToLocal,
		Mark:    Mark{m.Mark.Value&m.Mark.Mask | o.Mark.Value&o.Mark.Mask, m.Mark.Mask | o.Mark.Mask},
	}, true
}

// sets compares sets of values that are listed as ranges of some kind: prefixes, ranges of
// ports, patterns of names.
type sets[T comparable] struct {
	// all are the values of a family.
	all func(family int) []T
	// common is what two ranges have in common: b itself if a has all of b.
	common func(a, b T) (T, bool)
	// halves are the two parts of a range; false if it is one value, or has no end.
	halves func(T) (a, b T, ok bool)
}

// within reports whether all of a range is in the ranges of two lists.
func (s *sets[T]) within(r T, a, b []T) bool {
	n := 0
	for _, list := range [2][]T{a, b} {
		for _, x := range list {
			c, ok := s.common(x, r)
			if ok && c == r {
				return true
			}
			if ok {
				n++
			}
		}
	}
	if n < 2 { // one that has not all of it leaves a rest
		return false
	}
	x, y, ok := s.halves(r)
	if !ok {
		return false
	}
	parts := make([]T, 0, 8) // a few need no memory
	for _, list := range [2][]T{a, b} {
		for _, x := range list {
			if _, ok := s.common(x, r); ok {
				parts = append(parts, x)
			}
		}
	}
	return s.filled(x, parts) && s.filled(y, parts)
}

// filled reports whether all of a range is in parts, of which it changes the order: what
// has something of the range comes first, and its halves look at nothing else.
func (s *sets[T]) filled(r T, parts []T) bool {
	n := 0
	for i, part := range parts {
		c, ok := s.common(part, r)
		if ok && c == r {
			return true
		}
		if ok {
			parts[n], parts[i] = part, parts[n]
			n++
		}
	}
	if n < 2 {
		return false
	}
	x, y, ok := s.halves(r)
	return ok && s.filled(x, parts[:n]) && s.filled(y, parts[:n])
}

// overlap reports whether a value is in one of a and of b, and in none of notA and notB.
func (s *sets[T]) overlap(a, notA, b, notB []T, family int) bool {
	if len(a)+len(notA) == 0 || len(b)+len(notB) == 0 {
		return true
	}
	for _, x := range s.or(a, family) {
		for _, y := range s.or(b, family) {
			if c, ok := s.common(x, y); ok && !s.within(c, notA, notB) {
				return true
			}
		}
	}
	return false
}

// cover reports whether all values in b and not in notB are in a and not in notA.
func (s *sets[T]) cover(a, notA, b, notB []T, family int) bool {
	if len(a)+len(notA) == 0 {
		return true
	}
	for _, x := range s.or(b, family) {
		if len(a) > 0 && !s.within(x, a, notB) {
			return false
		}
		for _, n := range notA {
			if c, ok := s.common(n, x); ok && !s.within(c, notB, nil) {
				return false
			}
		}
	}
	return true
}

func (s *sets[T]) or(list []T, family int) []T {
	if len(list) == 0 {
		return s.all(family)
	}
	return list
}

// both are the ranges that two lists have in common; an empty one has all.
func (s *sets[T]) both(a, b []T) (all []T) {
	switch {
	case len(a) == 0:
		return b
	case len(b) == 0:
		return a
	}
	for _, x := range a {
		for _, y := range b {
			if c, ok := s.common(x, y); ok {
				all = append(all, c)
			}
		}
	}
	return all
}

// Union returns the elements that are in a or b. It may share their memory.
func Union[T comparable](a, b []T) []T {
	switch {
	case len(b) == 0:
		return a
	case len(a) == 0:
		return b
	}
	all, seen := make([]T, 0, len(a)+len(b)), map[T]bool{}
	for _, x := range slices.Concat(a, b) {
		if !seen[x] {
			all, seen[x] = append(all, x), true
		}
	}
	return all
}

var anyAddress = []netip.Prefix{Anywhere(32), Anywhere(128)}

// allAddresses are those of a family, or of both if it is 0.
func allAddresses(family int) []netip.Prefix {
	switch family {
	case 32:
		return anyAddress[:1]
	case 128:
		return anyAddress[1:]
	}
	return anyAddress
}

var addresses = sets[netip.Prefix]{allAddresses, CommonPrefix, func(p netip.Prefix) (a, b netip.Prefix, ok bool) {
	if p.IsSingleIP() {
		return a, b, false
	}
	return netip.PrefixFrom(p.Masked().Addr(), p.Bits()+1), netip.PrefixFrom(LastAddr(p), p.Bits()+1), true
}}

// CommonPrefix is the narrower of two prefixes, if they overlap.
func CommonPrefix(a, b netip.Prefix) (netip.Prefix, bool) {
	if a.Bits() > b.Bits() {
		return a, b.Contains(a.Addr())
	}
	return b, a.Contains(b.Addr())
}

var (
	everyPort = []Ports{AllPorts}
	ports     = sets[Ports]{func(int) []Ports { return everyPort }, Ports.Common, func(p Ports) (a, b Ports, ok bool) {
		middle := p.First + (p.Last-p.First)/2
		return Ports{p.First, middle}, Ports{middle + 1, p.Last}, p.First < p.Last
	}}
	everyName  = []string{"*"}
	interfaces = sets[string]{func(int) []string { return everyName }, func(a, b string) (string, bool) {
		if InName(b, a) {
			return a, true
		}
		return b, InName(a, b)
	}, func(string) (a, b string, ok bool) { return a, b, false }}
)

// InNames reports whether an interface has one of the names, of which those that end in
// "*" stand for all that begin so.
func InNames(names []string, name string) bool {
	return slices.ContainsFunc(names, func(n string) bool { return InName(n, name) })
}

// InName reports whether an interface has a name, or all of a pattern have.
func InName(outer, inner string) bool {
	stem, pattern := strings.CutSuffix(outer, "*")
	return outer == inner || pattern && strings.HasPrefix(inner, stem)
}

func onlyIf(is bool, text string) string {
	if is {
		return text
	}
	return ""
}

// Matches reports whether a packet meets all conditions.
func (m *Match) Matches(p *Packet) bool {
	return !slices.ContainsFunc(conditions, func(c condition) bool { return !c.met(m, p) })
}

// Misses are the conditions that a packet does not meet; none where it matches.
func (m *Match) Misses(p *Packet) (misses []Condition) {
	for _, c := range conditions {
		if !c.met(m, p) {
			misses = append(misses, c.name)
		}
	}
	return misses
}

// Family is the length in bits of the addresses of the packets, 32 or 128; 0 where both
// families are meant.
func (m *Match) Family() int {
	for _, list := range [][]netip.Prefix{m.Original, m.To, m.From} {
		if len(list) > 0 {
			return list[0].Addr().BitLen()
		}
	}
	return 0
}

// String is the conditions in the words of gateway files: "on 203.0.113.7 tcp/80
// from 198.51.100.0/24 in eth0"; empty where every packet is meant.
func (m *Match) String() string {
	var parts []string
	for _, c := range conditions {
		if text := c.text(m); text != "" {
			parts = append(parts, text)
		}
	}
	return strings.Join(parts, " ")
}

// Text is one of the conditions as String has it.
func (m *Match) Text(name Condition) string {
	at := slices.IndexFunc(conditions, func(c condition) bool { return c.name == name })
	return conditions[at].text(m)
}
