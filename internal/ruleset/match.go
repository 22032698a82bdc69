package ruleset

import (
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/unix"
)

// And returns the condition that both are met; false if no packet meets both.
func (m *Match) And(o *Match) (both Match, ok bool) {
	if both.Match, ok = m.Match.And(&o.Match); !ok {
		return both, false
	}
	both.SYN, both.Marked, both.BeforeNAT = m.SYN || o.SYN, m.Marked || o.Marked, m.BeforeNAT || o.BeforeNAT
	both.Limits = m.Limits || o.Limits
	both.Unknown, both.Nearly = nat.Union(m.Unknown, o.Unknown), nat.Union(m.Nearly, o.Nearly)
	both.Flags, both.Conditions = slices.Concat(m.Flags, o.Flags), slices.Concat(m.Conditions, o.Conditions)
	both.Part, both.Random, both.Loose = m.Part || o.Part, m.Random || o.Random, m.Loose || o.Loose
	if both.Share = max(m.Share, o.Share); m.Share > 0 && o.Share > 0 {
		both.Share = uint32(uint64(m.Share) * uint64(o.Share) >> 31)
	}
	both.Conn, both.Sets, both.Opaque = slices.Concat(m.Conn, o.Conn), slices.Concat(m.Sets, o.Sets), m.Opaque || o.Opaque
	return both, true
}

// Disjoint reports whether it is certain that no packet meets both. What is unknown is
// never a reason.
func (m *Match) Disjoint(o *Match) bool { return !m.Overlaps(&o.Match) }

// Covers reports whether it is certain that whatever meets o meets m.
func (m *Match) Covers(o *Match) bool {
	return len(m.Unknown) == 0 && (!m.SYN || o.SYN) && m.Match.Covers(&o.Match)
}

// isAll reports whether every packet meets the match.
func (m *Match) isAll() bool { return m.Covers(&Match{}) }

// Size is the cost of a comparison.
func (m *Match) Size() int {
	return max(1, len(m.NotFrom)+len(m.NotTo)+len(m.NotIn)+len(m.NotOut)+len(m.Ports)+len(m.SourcePorts)+len(m.Unknown))
}

// isOf reports whether packets of a version of IP can meet the match; 0 is any.
func (m *Match) isOf(version int) bool {
	return version == 0 || m.Family() == 0 || m.Family() == bitsOf(version)
}

func bitsOf(version int) int { return map[int]int{4: 32, 6: 128}[version] }

// of makes the match one for a version of IP.
func (m *Match) of(version int) {
	if m.Family() == 0 && version != 0 {
		m.From = []netip.Prefix{nat.Anywhere(bitsOf(version))}
	}
}

// Source is the prefix of sources; not valid if any is. Dest is that of destinations, In
// and Out name the interfaces.
func (m *Match) Source() netip.Prefix { return onePrefix(m.From) }

// Dest: see Source.
func (m *Match) Dest() netip.Prefix { return onePrefix(m.To) }

func onePrefix(list []netip.Prefix) (p netip.Prefix) {
	if len(list) > 0 && list[0].Bits() > 0 {
		p = list[0]
	}
	return p
}

// InName: see Source.
func (m *Match) InName() string { return oneName(m.In) }

// OutName: see Source.
func (m *Match) OutName() string { return oneName(m.Out) }

func oneName(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return list[0]
}

// Some is a list of one value; none of the zero value.
func Some[T comparable](v T) []T {
	var zero T
	if v == zero {
		return nil
	}
	return []T{v}
}

// protocol is the name of the protocol; empty for all.
func (m *Match) protocol() string {
	if m.Protocol == 0 {
		return ""
	}
	return nat.ProtocolName(m.Protocol)
}

// SeveralProtocols are those of the sets that a match looks the protocol up in; none where it looks up none.
func (m *Match) SeveralProtocols() (all []uint8) {
	for i := range m.Sets {
		s := &m.Sets[i]
		if s.not || len(s.fields) != 1 || s.fields[0].from != metaData || s.fields[0].key != unix.NFT_META_L4PROTO {
			continue
		}
		for _, e := range s.elements {
			if len(e.first) == 1 && len(e.last) == 1 && e.first[0] == e.last[0] {
				all = append(all, e.first[0])
			}
		}
	}
	return all
}
