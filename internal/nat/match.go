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
		to = 0 // the identifier is said once
	}
	return fmt.Sprintf("%s %s -> %s", ProtocolName(p.Protocol), Backend{Address: p.Src, Port: p.SrcPort}, Backend{Address: p.Dst, Port: to})
}

// Match is a set of packets: those that meet all of its conditions. A condition without
// a value is met by every packet, so that the zero Match is all packets.
//
// A condition that is added here needs an entry in conditions, which is all that Matches,
// Overlaps, Covers and String go by.
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

// condition is one of a Match's: how a packet meets it, how two of them compare, and its
// text. family, where not 0, is the length in bits of the addresses that are considered.
type condition struct {
	name     Condition
	met      func(m *Match, p *Packet) bool
	overlaps func(m, o *Match, family int) bool
	covers   func(m, o *Match, family int) bool
	text     func(m *Match) string
}

var conditions = []condition{
	addresses(Original, "originally to", func(m *Match) (any, not []netip.Prefix) { return m.Original, nil }, func(p *Packet) netip.Addr { return p.OriginalDst }),
	ports(OriginalPorts, func(m *Match) []Ports { return m.OriginalPorts }, func(p *Packet) uint16 { return p.OriginalPort }),
	addresses(To, "on", func(m *Match) (any, not []netip.Prefix) { return m.To, m.NotTo }, func(p *Packet) netip.Addr { return p.Dst }),
	set(Protocol, func(m *Match, protocol uint8) bool { return m.Protocol == 0 || m.Protocol == protocol },
		func(m *Match) []uint8 {
			if m.Protocol == 0 {
				return nil
			}
			return []uint8{0, m.Protocol}
		},
		func(p *Packet) uint8 { return p.Protocol },
		func(m *Match) string {
			return onlyIf(len(m.Ports)+len(m.OriginalPorts) == 0, ServiceString(m.Protocol, nil))
		}),
	ports(DestPorts, func(m *Match) []Ports { return m.Ports }, func(p *Packet) uint16 { return p.DstPort }),
	ports(SourcePorts, func(m *Match) []Ports { return m.SourcePorts }, func(p *Packet) uint16 { return p.SrcPort }),
	addresses(From, "from", func(m *Match) (any, not []netip.Prefix) { return m.From, m.NotFrom }, func(p *Packet) netip.Addr { return p.Src }),
	textOnly(func(m *Match) string { return onlyIf(len(m.NotTo) > 0, "except to "+PrefixesString(m.NotTo)) }),
	interfaces(In, "in", func(m *Match) (any, not []string) { return m.In, m.NotIn }, func(p *Packet) string { return p.In }),
	interfaces(Out, "out", func(m *Match) (any, not []string) { return m.Out, m.NotOut }, func(p *Packet) string { return p.Out }),
	set(ToLocal, func(m *Match, local bool) bool { return local || !m.ToLocal },
		func(*Match) []bool { return []bool{false, true} },
		func(p *Packet) bool { return p.ToLocal },
		func(m *Match) string { return onlyIf(m.ToLocal, "to an address of this host") }),
	{MarkBits,
		func(m *Match, p *Packet) bool { return (p.Mark^m.Mark.Value)&m.Mark.Mask == 0 },
		func(m, o *Match, _ int) bool { return (m.Mark.Value^o.Mark.Value)&m.Mark.Mask&o.Mark.Mask == 0 },
		func(m, o *Match, _ int) bool {
			return m.Mark.Mask&^o.Mark.Mask == 0 && (m.Mark.Value^o.Mark.Value)&m.Mark.Mask == 0
		},
		func(m *Match) string {
			return onlyIf(m.Mark.Mask != 0, fmt.Sprintf("mark %#x/%#x", m.Mark.Value, m.Mark.Mask))
		}},
}

// set is the condition that a value of a packet is in a set. borders are the values next
// to which the set begins or ends, and nil of the set of all: of two sets one of both's
// borders tells whether they have a value in common, and whether one has all of the other.
func set[T any](name Condition, in func(*Match, T) bool, borders func(*Match) []T, of func(*Packet) T, text func(*Match) string) condition {
	return familySet(name, in, func(m *Match, _ int) []T { return borders(m) }, of, text)
}

// familySet is set of values that have a family.
func familySet[T any](name Condition, in func(*Match, T) bool, borders func(*Match, int) []T, of func(*Packet) T, text func(*Match) string) condition {
	one := func(m, o *Match, family int, is func(T) bool) bool {
		return slices.ContainsFunc(borders(m, family), is) || slices.ContainsFunc(borders(o, family), is)
	}
	return condition{name,
		func(m *Match, p *Packet) bool { return in(m, of(p)) },
		func(m, o *Match, family int) bool {
			return borders(m, family) == nil || borders(o, family) == nil || one(m, o, family, func(t T) bool { return in(m, t) && in(o, t) })
		},
		func(m, o *Match, family int) bool {
			return borders(m, family) == nil || !one(m, o, family, func(t T) bool { return in(o, t) && !in(m, t) })
		}, text}
}

// single gives a condition a shorter way for two matches that both ask for one value, as
// most do: rules are compared in pairs, and borders takes memory for each comparison.
func single[T any](c condition, one func(*Match) (T, bool), overlaps, covers func(a, b T) bool) condition {
	both := func(short func(a, b T) bool, long func(m, o *Match, family int) bool) func(m, o *Match, family int) bool {
		return func(m, o *Match, family int) bool {
			if a, ok := one(m); ok {
				if b, ok := one(o); ok {
					return short(a, b)
				}
			}
			return long(m, o, family)
		}
	}
	c.overlaps, c.covers = both(overlaps, c.overlaps), both(covers, c.covers)
	return c
}

// textOnly is no condition of its own, but a text.
func textOnly(text func(*Match) string) condition {
	always := func(_, _ *Match, _ int) bool { return true }
	return condition{"", func(*Match, *Packet) bool { return true }, always, always, text}
}

func addresses(name Condition, word string, asked func(*Match) (any, not []netip.Prefix), of func(*Packet) netip.Addr) condition {
	in := func(m *Match, a netip.Addr) bool {
		any, not := asked(m)
		return (len(any) == 0 || InAny(any, a)) && !InAny(not, a)
	}
	borders := func(m *Match, family int) []netip.Addr {
		any, not := asked(m)
		if len(any)+len(not) == 0 {
			return nil
		}
		all := []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}
		for _, p := range slices.Concat(any, not) {
			first, last := p.Masked().Addr(), LastAddr(p)
			all = append(all, first, last, first.Prev(), last.Next())
		}
		all = slices.DeleteFunc(all, func(a netip.Addr) bool { return !a.IsValid() || family != 0 && a.BitLen() != family })
		if name == Original {
			all = append(all, netip.Addr{}) // not translated
		}
		return all
	}
	text := func(m *Match) string {
		any, not := asked(m)
		if name == To {
			not = nil // said behind From
		}
		return anyNot(word, "except from ", PrefixesString(any), PrefixesString(not))
	}
	one := func(m *Match) (p netip.Prefix, ok bool) {
		if any, not := asked(m); len(any) == 1 && len(not) == 0 {
			return any[0], true
		}
		return p, false
	}
	return single(familySet(name, in, borders, of, text), one, netip.Prefix.Overlaps,
		func(a, b netip.Prefix) bool { return a.Bits() <= b.Bits() && a.Contains(b.Addr()) })
}

func ports(name Condition, asked func(*Match) []Ports, of func(*Packet) uint16) condition {
	in := func(m *Match, port uint16) bool {
		any := asked(m)
		return len(any) == 0 || slices.ContainsFunc(any, func(p Ports) bool { return p.Contains(port) })
	}
	borders := func(m *Match) []uint16 {
		if len(asked(m)) == 0 {
			return nil
		}
		all := []uint16{0}
		for _, p := range asked(m) {
			all = append(all, p.First, p.Last, p.First-1, p.Last+1) // 65535+1 is 0, which is no port's border less
		}
		return all
	}
	text := func(m *Match) string {
		if any := asked(m); len(any) > 0 && name == SourcePorts {
			return "source port " + ServiceString(0, any)
		} else if len(any) > 0 {
			return ServiceString(m.Protocol, any)
		}
		return ""
	}
	one := func(m *Match) (p Ports, ok bool) {
		if any := asked(m); len(any) == 1 {
			return any[0], true
		}
		return p, false
	}
	return single(set(name, in, borders, of, text), one,
		func(a, b Ports) bool { _, common := a.Common(b); return common }, Ports.Covers)
}

func interfaces(name Condition, word string, asked func(*Match) (any, not []string), of func(*Packet) string) condition {
	in := func(m *Match, name string) bool {
		any, not := asked(m)
		return (len(any) == 0 || InNames(any, name)) && !InNames(not, name)
	}
	borders := func(m *Match) []string {
		any, not := asked(m)
		if len(any)+len(not) == 0 {
			return nil
		}
		all := []string{"", otherName}
		for _, n := range slices.Concat(any, not) {
			if stem, pattern := strings.CutSuffix(n, "*"); pattern {
				all = append(all, stem, stem+otherName)
			} else {
				all = append(all, n)
			}
		}
		return all
	}
	return set(name, in, borders, of, func(m *Match) string {
		any, not := asked(m)
		return anyNot(word, "not "+word+" ", strings.Join(any, ", "), strings.Join(not, ", "))
	})
}

// otherName is part of no interface's name (dev_valid_name in net/core/dev.c).
const otherName = "/"

// InNames reports whether an interface has one of the names, of which those that end in
// "*" stand for all that begin so.
func InNames(names []string, name string) bool {
	return slices.ContainsFunc(names, func(n string) bool {
		stem, pattern := strings.CutSuffix(n, "*")
		return n == name || pattern && strings.HasPrefix(name, stem)
	})
}

func onlyIf(is bool, text string) string {
	if is {
		return text
	}
	return ""
}

func anyNot(word, notWord, any, not string) string {
	return strings.TrimSpace(onlyIf(any != "", word+" "+any) + onlyIf(not != "", " "+notWord+not))
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

// Overlaps reports whether some packet matches both.
func (m *Match) Overlaps(o *Match) bool {
	f, g := m.Family(), o.Family()
	if f != 0 && g != 0 && f != g {
		return false
	}
	return !slices.ContainsFunc(conditions, func(c condition) bool { return !c.overlaps(m, o, max(f, g)) })
}

// Covers reports whether every packet that matches o matches m as well.
func (m *Match) Covers(o *Match) bool { return m.CoversBut(o) }

// CoversBut is Covers as if neither asked for some of the conditions.
func (m *Match) CoversBut(o *Match, but ...Condition) bool {
	family := o.Family()
	return !slices.ContainsFunc(conditions, func(c condition) bool { return !slices.Contains(but, c.name) && !c.covers(m, o, family) })
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
