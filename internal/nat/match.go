package nat

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
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
	// Zone is the name of the zone that it comes from; empty for none.
	Zone string `json:"zone,omitempty"`
	// Mark is skb->mark, DSCP the upper six bits of the traffic class.
	Mark uint32 `json:"mark,omitempty"`
	DSCP uint8  `json:"dscp,omitempty"`
	// User and Group own its socket, where Owned: it is one of the host's own programs.
	Owned bool   `json:"owned,omitempty"`
	User  uint32 `json:"user,omitempty"`
	Group uint32 `json:"group,omitempty"`
	// At is when it comes.
	At time.Time `json:"at,omitzero"`
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
	Ports       []Ports `json:"ports,omitempty"`
	SourcePorts []Ports `json:"source_ports,omitempty"`
	// NotServices are met by a packet to none of them.
	NotServices []Service      `json:"not_services,omitempty"`
	From        []netip.Prefix `json:"from,omitempty"`
	NotFrom     []netip.Prefix `json:"not_from,omitempty"`
	NotTo       []netip.Prefix `json:"not_to,omitempty"`
	// In and Out are met by one of the interfaces, NotIn and NotOut by none of them; a
	// name that ends in "*" stands for all that begin so, "group 10" for those of a link group, which a packet meets
	// where its own interface is named so.
	In     []string `json:"in,omitempty"`
	NotIn  []string `json:"not_in,omitempty"`
	Out    []string `json:"out,omitempty"`
	NotOut []string `json:"not_out,omitempty"`
	// Zone is met by what comes from the zone of that name.
	Zone string `json:"zone,omitempty"`
	// ToLocal asks for a destination that is an address of the host.
	ToLocal bool `json:"to_local,omitempty"`
	Mark    Mark `json:"mark,omitzero"`
	// NotMarks are met by a packet that has none of them.
	NotMarks []Mark `json:"not_marks,omitempty"`
	// Users and Groups are met by what a program of one of them sends from this host, NotUsers and NotGroups by
	// what a program of none of them sends; packets of other hosts meet neither (meta skuid, skgid).
	Users     []IDs `json:"users,omitempty"`
	NotUsers  []IDs `json:"not_users,omitempty"`
	Groups    []IDs `json:"groups,omitempty"`
	NotGroups []IDs `json:"not_groups,omitempty"`
	// DSCP is met by one of the code points (RFC 2474), NotDSCP by none of them.
	DSCP    []uint8 `json:"dscp,omitempty"`
	NotDSCP []uint8 `json:"not_dscp,omitempty"`
	// Members ask for sets.
	Members []Member `json:"members,omitempty"`
	// Hours and Days are met at these times of UTC, NotHours and NotDays at all others; each for itself: with hours
	// after midnight the day is the later one.
	Hours    []Hours        `json:"utc_hours,omitempty"`
	NotHours []Hours        `json:"not_utc_hours,omitempty"`
	Days     []time.Weekday `json:"utc_days,omitempty"`
	NotDays  []time.Weekday `json:"not_utc_days,omitempty"`
}

// Hours are the seconds of a day from First to Last, both included.
type Hours IDs

// Has reports whether a time of UTC is among them.
func (h Hours) Has(t time.Time) bool {
	hour, minute, second := t.UTC().Clock()
	at := uint32(hour*3600 + minute*60 + second)
	return h.First <= at && at <= h.Last
}

// String is "08:00-18:00", the end being the first second after them.
func (h Hours) String() string { return clock(h.First) + "-" + clock(h.Last+1) }

func clock(second uint32) string { return fmt.Sprintf("%02d:%02d", second/3600, second/60%60) }

// DayName is "mon".
func DayName(d time.Weekday) string { return strings.ToLower(d.String()[:3]) }

// Mark asks for Value in those bits of skb->mark that Mask has.
type Mark struct {
	Value uint32 `json:"value"`
	Mask  uint32 `json:"mask"`
}

// Has reports whether skb->mark is so.
func (k Mark) Has(mark uint32) bool { return (mark^k.Value)&k.Mask == 0 }

// within reports whether every packet with the mark k has o as well.
func (k Mark) within(o Mark) bool { return o.Mask&^k.Mask == 0 && (k.Value^o.Value)&o.Mask == 0 }

// meets reports whether some packet has both.
func (k Mark) meets(o Mark) bool { return (k.Value^o.Value)&k.Mask&o.Mask == 0 }

// String is "0x1", or "0x10/0xf0" where not all bits count.
func (k Mark) String() string {
	if k.Mask == math.MaxUint32 {
		return fmt.Sprintf("%#x", k.Value)
	}
	return fmt.Sprintf("%#x/%#x", k.Value, k.Mask)
}

// IDs are the numbers of users or groups from First to Last, both included.
type IDs struct {
	First uint32 `json:"first"`
	Last  uint32 `json:"last"`
}

// String is "33" or "1000-1999".
func (i IDs) String() string {
	if i.First == i.Last {
		return strconv.FormatUint(uint64(i.First), 10)
	}
	return fmt.Sprintf("%d-%d", i.First, i.Last)
}

// Service is a protocol, 0 for every one, and ports of it.
type Service struct {
	Protocol uint8 `json:"protocol,omitempty"`
	Ports    Ports `json:"ports"`
}

// Has reports whether a packet is to the service.
func (s Service) Has(p *Packet) bool {
	return (s.Protocol == 0 || s.Protocol == p.Protocol) && s.Ports.Contains(p.DstPort)
}

// String is "tcp/25", or "tcp" where all ports are meant.
func (s Service) String() string {
	if s.Ports == AllPorts {
		return ServiceString(s.Protocol, nil)
	}
	return ServiceString(s.Protocol, []Ports{s.Ports})
}

// Services are those that a packet may be to by Protocol and Ports; none where every one is meant.
func (m *Match) Services() (all []Service) {
	switch {
	case m.Protocol == 0:
		return nil
	case len(m.Ports) == 0:
		return []Service{{m.Protocol, AllPorts}}
	}
	for _, p := range m.Ports {
		all = append(all, Service{m.Protocol, p})
	}
	return all
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
	NotServices   Condition = "not_services"
	SourcePorts   Condition = "source_ports"
	From          Condition = "from"
	In            Condition = "in"
	Out           Condition = "out"
	FromZone      Condition = "zone"
	ToLocal       Condition = "to_local"
	MarkBits      Condition = "mark"
	Owner         Condition = "owner"
	TrafficClass  Condition = "dscp"
	TimeOfWeek    Condition = "utc"
)

// condition is one of a Match's: how a packet meets it, and its text.
type condition struct {
	name Condition
	met  func(m *Match, p *Packet) bool
	text func(m *Match) string
}

// The conditions on addresses, protocol and ports.

func (m *Match) meetsOriginal(p *Packet) bool {
	return len(m.Original) == 0 || InAny(m.Original, p.OriginalDst)
}

func (m *Match) meetsOriginalPorts(p *Packet) bool {
	return hasPort(m.OriginalPorts, p.OriginalPort) && m.members(OriginalPorts, false, p)
}

func (m *Match) meetsTo(p *Packet) bool {
	return (len(m.To) == 0 || InAny(m.To, p.Dst)) && !InAny(m.NotTo, p.Dst) && m.members(To, false, p) && m.members(To, true, p)
}

func (m *Match) meetsFrom(p *Packet) bool {
	return (len(m.From) == 0 || InAny(m.From, p.Src)) && !InAny(m.NotFrom, p.Src) && m.members(From, false, p) && m.members(From, true, p)
}

func (m *Match) meetsProtocol(p *Packet) bool { return m.Protocol == 0 || m.Protocol == p.Protocol }

func (m *Match) meetsPorts(p *Packet) bool {
	return hasPort(m.Ports, p.DstPort) && m.members(DestPorts, false, p)
}

func (m *Match) meetsSourcePorts(p *Packet) bool { return hasPort(m.SourcePorts, p.SrcPort) }

func (m *Match) meetsNotServices(p *Packet) bool {
	for _, s := range m.NotServices {
		if s.Has(p) {
			return false
		}
	}
	return m.members(DestPorts, true, p)
}

func (m *Match) meetsZone(p *Packet) bool { return m.Zone == "" || m.Zone == p.Zone }

// MatchesTuple reports whether a packet meets the conditions on addresses, protocol, ports and zone, which are what the
// tracker's entry of its connection shows. It is asked for every entry of a table, and takes no memory.
func (m *Match) MatchesTuple(p *Packet) bool {
	return m.meetsProtocol(p) && m.meetsPorts(p) && m.meetsFrom(p) && m.meetsTo(p) && m.meetsSourcePorts(p) && m.meetsNotServices(p) &&
		m.meetsOriginal(p) && m.meetsOriginalPorts(p) && m.meetsZone(p)
}

var conditions = []condition{
	{Original, (*Match).meetsOriginal,
		func(m *Match) string {
			return onlyIf(len(m.Original) > 0, "originally to "+PrefixesString(m.Original))
		}},
	{OriginalPorts, (*Match).meetsOriginalPorts,
		func(m *Match) string {
			return servicesText(m.Protocol, m.OriginalPorts, m.named(OriginalPorts, false))
		}},
	{To, (*Match).meetsTo, func(m *Match) string { return listed("on", places(m.To, m.named(To, false))) }},
	{Protocol, (*Match).meetsProtocol,
		func(m *Match) string {
			return onlyIf(len(m.Ports)+len(m.OriginalPorts) == 0, ServiceString(m.Protocol, nil))
		}},
	{DestPorts, (*Match).meetsPorts,
		func(m *Match) string { return servicesText(m.Protocol, m.Ports, m.named(DestPorts, false)) }},
	{NotServices, (*Match).meetsNotServices, func(m *Match) string {
		return listed("except", strings.Join(append(texts(m.NotServices), m.named(DestPorts, true)...), ", "))
	}},
	{SourcePorts, (*Match).meetsSourcePorts,
		func(m *Match) string {
			return onlyIf(len(m.SourcePorts) > 0, "source port "+ServiceString(0, m.SourcePorts))
		}},
	{From, (*Match).meetsFrom,
		func(m *Match) string { // NotTo stands behind it
			return joinWords(listed("from", places(m.From, m.named(From, false))), listed("except from", places(m.NotFrom, m.named(From, true))),
				listed("except to", places(m.NotTo, m.named(To, true))))
		}},
	{FromZone, (*Match).meetsZone, func(m *Match) string { return listed("zone", m.Zone) }},
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
	{MarkBits, func(m *Match, p *Packet) bool {
		return m.Mark.Has(p.Mark) && !slices.ContainsFunc(m.NotMarks, func(k Mark) bool { return k.Has(p.Mark) })
	}, func(m *Match) string {
		return joinWords(onlyIf(m.Mark.Mask != 0, "mark "+m.Mark.String()), listText("not mark", m.NotMarks))
	}},
	{Owner, func(m *Match, p *Packet) bool {
		return (p.Owned || !m.IsOwn()) && hasID(m.Users, m.NotUsers, p.User) && hasID(m.Groups, m.NotGroups, p.Group)
	}, func(m *Match) string {
		return joinWords(listText("user", m.Users), listText("not user", m.NotUsers), listText("group", m.Groups), listText("not group", m.NotGroups))
	}},
	{TrafficClass, func(m *Match, p *Packet) bool {
		return (len(m.DSCP) == 0 || slices.Contains(m.DSCP, p.DSCP)) && !slices.Contains(m.NotDSCP, p.DSCP)
	}, func(m *Match) string {
		return joinWords(namedText("dscp", m.DSCP, DSCPName), namedText("not dscp", m.NotDSCP, DSCPName))
	}},
	{TimeOfWeek, func(m *Match, p *Packet) bool {
		if !m.IsTimed() {
			return true
		}
		has := func(h Hours) bool { return h.Has(p.At) }
		day := p.At.UTC().Weekday()
		return (len(m.Hours) == 0 || slices.ContainsFunc(m.Hours, has)) && !slices.ContainsFunc(m.NotHours, has) &&
			(len(m.Days) == 0 || slices.Contains(m.Days, day)) && !slices.Contains(m.NotDays, day)
	}, func(m *Match) string {
		return joinWords(listText("utc-hours", m.Hours), listText("not utc-hours", m.NotHours), namedText("utc-days", m.Days, DayName), namedText("not utc-days", m.NotDays, DayName))
	}},
}

// IsTimed reports whether the match asks when a packet comes.
func (m *Match) IsTimed() bool { return len(m.Hours)+len(m.NotHours)+len(m.Days)+len(m.NotDays) > 0 }

// IsOwn reports whether the match is for packets of the host's own programs alone.
func (m *Match) IsOwn() bool {
	return len(m.Users)+len(m.NotUsers)+len(m.Groups)+len(m.NotGroups) > 0
}

func hasID(list, not []IDs, id uint32) bool {
	in := func(list []IDs) bool {
		return slices.ContainsFunc(list, func(i IDs) bool { return i.First <= id && id <= i.Last })
	}
	return (len(list) == 0 || in(list)) && !in(not)
}

// listText is a word and the values behind it; empty where there are none.
func listText[T fmt.Stringer](word string, list []T) string {
	return listed(word, strings.Join(texts(list), ", "))
}

func texts[T fmt.Stringer](list []T) []string {
	texts := make([]string, len(list))
	for i, v := range list {
		texts[i] = v.String()
	}
	return texts
}

// listed is a word and a list behind it; empty where that is.
func listed(word, list string) string { return onlyIf(list != "", word+" "+list) }

// servicesText is ports of a protocol, and sets of services.
func servicesText(protocol uint8, ports []Ports, sets []string) string {
	if len(ports) > 0 {
		sets = append([]string{ServiceString(protocol, ports)}, sets...)
	}
	return strings.Join(sets, ", ")
}

func namedText[T any](word string, list []T, name func(T) string) string {
	texts := make([]string, len(list))
	for i, v := range list {
		texts[i] = name(v)
	}
	return onlyIf(len(list) > 0, word+" "+strings.Join(texts, ", "))
}

func hasPort(list []Ports, port uint16) bool {
	for _, p := range list {
		if p.Contains(port) {
			return true
		}
	}
	return len(list) == 0
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
		(m.Zone == "" || o.Zone == "" || m.Zone == o.Zone) &&
		ports.overlap(m.Ports, nil, o.Ports, nil, f) &&
		addresses.overlap(m.From, m.NotFrom, o.From, o.NotFrom, f) &&
		interfaces.overlap(m.In, m.NotIn, o.In, o.NotIn, f) &&
		interfaces.overlap(m.Out, m.NotOut, o.Out, o.NotOut, f) &&
		ports.overlap(m.SourcePorts, nil, o.SourcePorts, nil, f) &&
		addresses.overlap(m.Original, nil, o.Original, nil, f) &&
		ports.overlap(m.OriginalPorts, nil, o.OriginalPorts, nil, f) &&
		services.overlap(m.Services(), m.NotServices, o.Services(), o.NotServices, f) &&
		m.marksOverlap(o) && m.membersOverlap(o, f) &&
		ids.overlap(m.Users, m.NotUsers, o.Users, o.NotUsers, f) &&
		ids.overlap(m.Groups, m.NotGroups, o.Groups, o.NotGroups, f) &&
		codePoints.overlap(m.DSCP, m.NotDSCP, o.DSCP, o.NotDSCP, f) &&
		hours.overlap(m.Hours, m.NotHours, o.Hours, o.NotHours, f) &&
		days.overlap(m.Days, m.NotDays, o.Days, o.NotDays, f)
}

// marksOverlap reports whether a mark meets both, and is none of those that either excludes.
func (m *Match) marksOverlap(o *Match) bool {
	if !m.Mark.meets(o.Mark) {
		return false
	}
	both := m.Mark.and(o.Mark)
	excluded := func(n Mark) bool { return both.within(n) }
	return !slices.ContainsFunc(m.NotMarks, excluded) && !slices.ContainsFunc(o.NotMarks, excluded)
}

// and is the mark of what has both.
func (k Mark) and(o Mark) Mark { return Mark{k.Value&k.Mask | o.Value&o.Mask, k.Mask | o.Mask} }

// marksCover reports whether every mark that meets o meets m.
func (m *Match) marksCover(o *Match) bool {
	return o.Mark.within(m.Mark) && !slices.ContainsFunc(m.NotMarks, func(n Mark) bool {
		return o.Mark.meets(n) && !slices.ContainsFunc(o.NotMarks, func(x Mark) bool { return n.within(x) })
	})
}

// Covers reports whether every packet that matches o matches m as well.
func (m *Match) Covers(o *Match) bool {
	f := o.Family()
	return addresses.cover(m.To, m.NotTo, o.To, o.NotTo, f) &&
		(m.Protocol == 0 || m.Protocol == o.Protocol) &&
		(m.Zone == "" || m.Zone == o.Zone) &&
		ports.cover(m.Ports, nil, o.Ports, nil, f) &&
		addresses.cover(m.From, m.NotFrom, o.From, o.NotFrom, f) &&
		interfaces.cover(m.In, m.NotIn, o.In, o.NotIn, f) &&
		interfaces.cover(m.Out, m.NotOut, o.Out, o.NotOut, f) &&
		ports.cover(m.SourcePorts, nil, o.SourcePorts, nil, f) &&
		(len(m.Original) == 0 || len(o.Original) > 0) && // else it matches what is not translated
		addresses.cover(m.Original, nil, o.Original, nil, f) &&
		ports.cover(m.OriginalPorts, nil, o.OriginalPorts, nil, f) &&
		(o.ToLocal || !m.ToLocal) &&
		services.cover(nil, m.NotServices, o.Services(), o.NotServices, f) &&
		m.marksCover(o) && m.membersCover(o, f) &&
		(o.IsOwn() || !m.IsOwn()) &&
		ids.cover(m.Users, m.NotUsers, o.Users, o.NotUsers, f) &&
		ids.cover(m.Groups, m.NotGroups, o.Groups, o.NotGroups, f) &&
		codePoints.cover(m.DSCP, m.NotDSCP, o.DSCP, o.NotDSCP, f) &&
		hours.cover(m.Hours, m.NotHours, o.Hours, o.NotHours, f) &&
		days.cover(m.Days, m.NotDays, o.Days, o.NotDays, f)
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
		NotServices: Union(m.NotServices, o.NotServices),
		From:        addresses.both(m.From, o.From), NotFrom: Union(m.NotFrom, o.NotFrom),
		In: interfaces.both(m.In, o.In), NotIn: Union(m.NotIn, o.NotIn),
		Out: interfaces.both(m.Out, o.Out), NotOut: Union(m.NotOut, o.NotOut),
		Zone:    max(m.Zone, o.Zone),
		ToLocal: m.ToLocal || o.ToLocal,
		Mark:    m.Mark.and(o.Mark), NotMarks: Union(m.NotMarks, o.NotMarks),
		Users: ids.both(m.Users, o.Users), NotUsers: Union(m.NotUsers, o.NotUsers),
		Groups: ids.both(m.Groups, o.Groups), NotGroups: Union(m.NotGroups, o.NotGroups),
		DSCP: codePoints.both(m.DSCP, o.DSCP), NotDSCP: Union(m.NotDSCP, o.NotDSCP),
		Members: Union(m.Members, o.Members),
		Hours:   hours.both(m.Hours, o.Hours), NotHours: Union(m.NotHours, o.NotHours),
		Days: days.both(m.Days, o.Days), NotDays: Union(m.NotDays, o.NotDays),
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
	everyService = []Service{{Ports: AllPorts}}
	services     = sets[Service]{func(int) []Service { return everyService }, func(a, b Service) (Service, bool) {
		both, ok := a.Ports.Common(b.Ports)
		return Service{max(a.Protocol, b.Protocol), both}, ok && (a.Protocol == 0 || b.Protocol == 0 || a.Protocol == b.Protocol)
	}, func(s Service) (a, b Service, ok bool) {
		middle := s.Ports.First + (s.Ports.Last-s.Ports.First)/2
		return Service{s.Protocol, Ports{s.Ports.First, middle}}, Service{s.Protocol, Ports{middle + 1, s.Ports.Last}}, s.Ports.First < s.Ports.Last
	}}
	everyID = []IDs{{0, math.MaxUint32}}
	ids     = sets[IDs]{func(int) []IDs { return everyID }, func(a, b IDs) (IDs, bool) {
		c := IDs{max(a.First, b.First), min(a.Last, b.Last)}
		return c, c.First <= c.Last
	}, func(i IDs) (a, b IDs, ok bool) {
		middle := i.First + (i.Last-i.First)/2
		return IDs{i.First, middle}, IDs{middle + 1, i.Last}, i.First < i.Last
	}}
	everyHour = []Hours{{0, 24*3600 - 1}}
	hours     = sets[Hours]{func(int) []Hours { return everyHour }, func(a, b Hours) (Hours, bool) {
		c := Hours{max(a.First, b.First), min(a.Last, b.Last)}
		return c, c.First <= c.Last
	}, func(h Hours) (a, b Hours, ok bool) {
		middle := h.First + (h.Last-h.First)/2
		return Hours{h.First, middle}, Hours{middle + 1, h.Last}, h.First < h.Last
	}}
	everyDay = []time.Weekday{0, 1, 2, 3, 4, 5, 6}
	days     = sets[time.Weekday]{func(int) []time.Weekday { return everyDay }, func(a, b time.Weekday) (time.Weekday, bool) { return b, a == b },
		func(time.Weekday) (a, b time.Weekday, ok bool) { return a, b, false }}
	codePoints = sets[uint8]{func(int) []uint8 { return everyCodePoint }, func(a, b uint8) (uint8, bool) { return b, a == b },
		func(uint8) (a, b uint8, ok bool) { return a, b, false }}
	everyName  = []string{"*"}
	interfaces = sets[string]{func(int) []string { return everyName }, func(a, b string) (string, bool) {
		switch {
		case InName(b, a):
			return a, true
		case InName(a, b):
			return b, true
		}
		_, x := LinkGroup(a)
		_, y := LinkGroup(b)
		return a + " and " + b, x != y // some of a group may have the name
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
	return outer == inner || pattern && strings.HasPrefix(inner, stem) && (stem == "" || !strings.HasPrefix(inner, groupWord))
}

// groupWord begins what stands for a link group; no name of an interface has a space.
const groupWord = "group "

// LinkGroup returns the number of the link group (ip link set group) that a name stands for.
func LinkGroup(name string) (number uint32, is bool) {
	text, is := strings.CutPrefix(name, groupWord)
	n, err := strconv.ParseUint(text, 10, 32)
	return uint32(n), is && err == nil
}

// IsSeveral reports whether a name stands for interfaces that may be several: a pattern or a link group.
func IsSeveral(name string) bool {
	return strings.HasSuffix(name, "*") || strings.HasPrefix(name, groupWord)
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

// Beyond has the conditions that are not on addresses, protocol and ports.
func (m *Match) Beyond() Match {
	return Match{In: m.In, NotIn: m.NotIn, Out: m.Out, NotOut: m.NotOut, Zone: m.Zone, ToLocal: m.ToLocal, Mark: m.Mark, NotMarks: m.NotMarks,
		Users: m.Users, NotUsers: m.NotUsers, Groups: m.Groups, NotGroups: m.NotGroups, DSCP: m.DSCP, NotDSCP: m.NotDSCP,
		Hours: m.Hours, NotHours: m.NotHours, Days: m.Days, NotDays: m.NotDays}
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
