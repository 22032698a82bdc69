package natrules

import (
	"net/netip"

	"github.com/natkit/natkit/internal/snapshot"
)

// Further are conditions of a rule that are not in the first fields of
// snapshot.NATRule: inverted ones, which its Unless has too, and ranges of ports, by
// which it is partial there.
type Further struct {
	NotFrom, NotTo []netip.Prefix
	NotIn, NotOut  []string
	// Ports are the destination's, SourcePorts the source's, first and last of each range.
	Ports, SourcePorts [][2]uint16
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
func bound(ports *[][2]uint16, port uint16, upper bool) {
	if len(*ports) == 0 {
		*ports = [][2]uint16{{0, 65535}}
	}
	p := &(*ports)[0]
	if upper {
		p[1] = min(p[1], port)
	} else {
		p[0] = max(p[0], port)
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
