package read

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
)

// step is what one rule of any source means for a packet that comes to it.
type step struct {
	// rule has the conditions and, where translates, the translation.
	rule       snapshot.NATRule
	translates bool
	// netmap is x_tables' target NETMAP, of which the hook tells what it translates.
	netmap bool
	// version is 4 or 6 where the rule asks for a version of IP, else 0.
	version uint8
	// proto is the protocol that the rule compares with, which an x_tables match may
	// ask the rule for; protoNot says that it is for all others.
	proto    uint8
	protoNot bool
	// protocols is the set that the rule looks the protocol up in.
	protocols string
	// to are the chains that the rule sends packets to.
	to []string
	// leaves is true where packets that match do not come to the chain's next
	// rule: accept, drop, return, goto.
	leaves bool
	// ends is true where they do not come to any other rule of the hook either:
	// accept, drop.
	ends bool
	// refuses is "drop" or "reject" where the packets that match end so.
	refuses string
	// further are conditions of which the rule's fields say only some; unknown is true
	// where it has others that it does not have either, cause one of them.
	further Further
	unknown bool
	cause   string
	// comment is the rule's own, other the name of a target that is neither a
	// verdict nor NAT.
	comment, other string
	// prefix is true where a whole prefix replaces another, shifts where ports are
	// given by an offset (NF_NAT_RANGE_PROTO_OFFSET).
	prefix, shifts bool
	// notrack is true where it keeps the tracker off; mss bounds the segments that a SYN
	// asks for, to that many bytes, or, by clampMSS, to what the route's MTU takes.
	notrack  bool
	mss      uint16
	clampMSS bool
	// byMap is set where a map gives what sources become.
	byMap *mapUse
}

// settle says a version of IP that no address tells by all of its addresses.
func (s *step) settle(family string) {
	r := &s.rule
	told := family != "inet" || r.FromSource.IsValid() || r.ToDestination.IsValid() || r.First.IsValid()
	if s.version != 0 && !told {
		r.FromSource = everybody[s.version]
	}
	s.close()
}

var everybody = map[uint8]netip.Prefix{
	4: netip.PrefixFrom(netip.IPv4Unspecified(), 0),
	6: netip.PrefixFrom(netip.IPv6Unspecified(), 0),
}

// close tells conditions that further has from those that nothing says.
func (s *step) close() {
	s.unknown = s.rule.Partial
	s.rule.Unless = s.further.unless()
	s.rule.Partial = s.rule.Partial || s.further.partial()
}

func (s *step) refuse(how string) { s.leaves, s.ends, s.refuses = true, true, how }

// forAll reports whether every packet that comes to the rule matches.
func (s *step) forAll() bool {
	return !s.rule.Partial && s.version == 0 && len(s.rule.Unless) == 0 && s.rule.Condition() == snapshot.NATCondition{}
}

// within adds the conditions of the rule that led to this one's chain; never is true where
// no packet meets both.
func within(r, outer snapshot.NATRule) (_ snapshot.NATRule, never bool) {
	r.Protocol, never = both(r.Protocol, outer.Protocol, never)
	never = bothPorts(&r, outer) || never
	r.FromSource, never = bothPrefixes(r.FromSource, outer.FromSource, never)
	r.ToDestination, never = bothPrefixes(r.ToDestination, outer.ToDestination, never)
	r.OutInterface, never = bothNames(r.OutInterface, outer.OutInterface, never)
	r.InInterface, never = bothNames(r.InInterface, outer.InInterface, never)
	r.LocalDestination = r.LocalDestination || outer.LocalDestination
	r.Unless = slices.Concat(outer.Unless, r.Unless)
	r.Marked = r.Marked || outer.Marked
	r.Partial = r.Partial || outer.Partial
	return r, never
}

// bothPorts leaves the ports that both are for; true where there are none.
func bothPorts(r *snapshot.NATRule, outer snapshot.NATRule) bool {
	switch {
	case outer.DestinationPort == 0:
		return false
	case r.DestinationPort == 0:
		r.DestinationPort, r.LastDestinationPort = outer.DestinationPort, outer.LastDestinationPort
		return false
	}
	last := min(max(r.DestinationPort, r.LastDestinationPort), max(outer.DestinationPort, outer.LastDestinationPort))
	r.DestinationPort = max(r.DestinationPort, outer.DestinationPort)
	r.LastDestinationPort = 0
	if last > r.DestinationPort {
		r.LastDestinationPort = last
	}
	return last < r.DestinationPort
}

// bothNames is both of interfaces, of which one may be the beginning of the other.
func bothNames(inner, outer string, clash bool) (string, bool) {
	begins := func(name, stem string) bool {
		short := strings.TrimRight(stem, "+*")
		return short != stem && strings.HasPrefix(name, short)
	}
	switch {
	case begins(inner, outer):
		return inner, clash
	case begins(outer, inner):
		return outer, clash
	}
	return both(inner, outer, clash)
}

// both is the one condition that there is; where there are two, the inner one,
// and a clash.
func both[T comparable](inner, outer T, clash bool) (T, bool) {
	var none T
	switch {
	case inner == none:
		return outer, clash
	case outer == none || inner == outer:
		return inner, clash
	}
	return inner, true
}

// bothPrefixes is both of two of which one may lie in the other.
func bothPrefixes(inner, outer netip.Prefix, clash bool) (netip.Prefix, bool) {
	switch {
	case !inner.IsValid() || !outer.IsValid() || !inner.Overlaps(outer):
		return both(inner, outer, clash)
	case inner.Bits() < outer.Bits():
		return outer, clash
	}
	return inner, clash
}

// setPrefix notes an address condition; a second one, elsewhere, is more than a field
// holds.
func (s *step) setPrefix(field *netip.Prefix, p netip.Prefix) {
	if !p.IsValid() {
		s.rule.Partial = true
		return
	}
	*field, s.rule.Partial = bothPrefixes(p, *field, s.rule.Partial)
}

func (s *step) setText(field *string, v string) {
	if *field != "" && *field != v || v == "" {
		s.rule.Partial = true
		return
	}
	*field = v
}

// Further are conditions of a rule that are not in the first fields of
// snapshot.NATRule: inverted ones, which its Unless has too, and ranges of ports, by
// which it is partial there.
type Further struct {
	NotFrom, NotTo []netip.Prefix
	NotIn, NotOut  []string
	// Ports are the destination's, SourcePorts the source's.
	Ports, SourcePorts []nat.Ports
	// SYN: TCP segments that open a connection.
	SYN bool
}

// partial reports whether the fields of a rule say less than that.
func (f *Further) partial() bool { return len(f.Ports)+len(f.SourcePorts) > 0 || f.SYN }

// unless are the inverted ones.
func (f *Further) unless() (all []snapshot.NATCondition) {
	for _, p := range f.NotFrom {
		all = append(all, snapshot.NATCondition{FromSource: p})
	}
	for _, p := range f.NotTo {
		all = append(all, snapshot.NATCondition{ToDestination: p})
	}
	for _, name := range f.NotIn {
		all = append(all, snapshot.NATCondition{InInterface: name})
	}
	for _, name := range f.NotOut {
		all = append(all, snapshot.NATCondition{OutInterface: name})
	}
	return all
}

// bound notes one end of a range of ports; the other one comes as a comparison of
// its own.
func bound(ports *[]nat.Ports, port uint16, upper bool) {
	if len(*ports) == 0 {
		*ports = []nat.Ports{nat.AllPorts}
	}
	p := &(*ports)[0]
	if upper {
		p.Last = min(p.Last, port)
	} else {
		p.First = max(p.First, port)
	}
}

func (f *Further) sourcePort(port uint16) {
	bound(&f.SourcePorts, port, false)
	bound(&f.SourcePorts, port, true)
}

// notEqual is the contrary of equal, for what Further has a field for.
func (m *machine) notEqual(c content, data []byte) {
	m.not(func(is *machine) { is.equal(c, data) })
}

// noneOf is a lookup that finds none of the elements.
func (m *machine) noneOf(a attrs, elements []element) {
	for _, e := range elements {
		m.not(func(is *machine) { is.isBetween(slot(a.u32(nftLookupSreg)), e) })
	}
}

// not is the contrary of one condition.
func (m *machine) not(condition func(*machine)) {
	is := *m
	is.step = step{version: m.step.version}
	condition(&is)
	r, f := &is.step.rule, &m.step.further
	switch {
	case r.Partial || is.step.conditions() != 1:
		m.step.rule.Partial = true
	case r.FromSource.IsValid():
		f.NotFrom = append(f.NotFrom, r.FromSource)
	case r.ToDestination.IsValid():
		f.NotTo = append(f.NotTo, r.ToDestination)
	case r.InInterface != "":
		f.NotIn = append(f.NotIn, r.InInterface)
	case r.OutInterface != "":
		f.NotOut = append(f.NotOut, r.OutInterface)
	default:
		m.step.rule.Partial = true
	}
}

// conditions counts those that the rule's own fields have.
func (s *step) conditions() (n int) {
	c := s.rule.Condition()
	for _, set := range []bool{c.Protocol != "", c.DestinationPort != 0, c.FromSource.IsValid(), c.ToDestination.IsValid(), c.InInterface != "", c.OutInterface != ""} {
		if set {
			n++
		}
	}
	return n
}

// between is a range of destination ports (enum nft_range_attributes).
func (m *machine) between(a attrs) {
	const sreg, op, from, to = 1, 2, 3, 4
	c := m.held(a.u32(sreg))
	first, last := a.nested(from).get(nftDataValue), a.nested(to).get(nftDataValue)
	if a.u32(op) != 0 || !c.isDestinationPort() || len(first) != 2 || len(last) != 2 { // NFT_RANGE_EQ
		m.step.rule.Partial, m.step.cause = true, "range"
		return
	}
	bound(&m.step.further.Ports, beUint16(first), false)
	bound(&m.step.further.Ports, beUint16(last), true)
}
