package ruleset

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/nat"
)

// And returns the condition that both are met; false if no packet meets both.
func (a *Match) And(b *Match) (Match, bool) {
	if a.Disjoint(b) {
		return Match{}, false
	}
	m := Match{
		Version: max(a.Version, b.Version),
		From:    narrower(a.From, b.From), To: narrower(a.To, b.To),
		In: narrowerName(a.In, b.In), Out: narrowerName(a.Out, b.Out),
		Protocol: a.Protocol, Ports: commonPorts(a.Ports, b.Ports), SourcePorts: commonPorts(a.SourcePorts, b.SourcePorts),
		ToLocal: a.ToLocal || b.ToLocal, SYN: a.SYN || b.SYN, Marked: a.Marked || b.Marked, Original: a.Original || b.Original,
		NotFrom: Union(a.NotFrom, b.NotFrom), NotTo: Union(a.NotTo, b.NotTo), NotIn: Union(a.NotIn, b.NotIn), NotOut: Union(a.NotOut, b.NotOut),
		Unknown: Union(a.Unknown, b.Unknown),
	}
	if m.Protocol == "" {
		m.Protocol = b.Protocol
	}
	return m, true
}

// Union is what is in a or b. It may share their memory.
func Union[T comparable](a, b []T) []T {
	switch {
	case len(b) == 0:
		return a
	case len(a) == 0:
		return b
	}
	all, seen := make([]T, 0, len(a)+len(b)), map[T]bool{}
	for _, list := range [][]T{a, b} {
		for _, x := range list {
			if !seen[x] {
				all, seen[x] = append(all, x), true
			}
		}
	}
	return all
}

func narrower(a, b netip.Prefix) netip.Prefix {
	if !a.IsValid() || b.IsValid() && b.Bits() > a.Bits() {
		return b
	}
	return a
}

func narrowerName(a, b string) string {
	if a == "" || strings.HasSuffix(a, "*") && b != "" && !(strings.HasSuffix(b, "*") && len(b) < len(a)) {
		return b
	}
	return a
}

// Disjoint reports whether it is certain that no packet meets both. What is unknown is
// never a reason.
func (a *Match) Disjoint(b *Match) bool {
	return a.Version != 0 && b.Version != 0 && a.Version != b.Version ||
		apart(a.From, b.From) || apart(a.To, b.To) ||
		excluded(a.From, b.NotFrom) || excluded(b.From, a.NotFrom) ||
		excluded(a.To, b.NotTo) || excluded(b.To, a.NotTo) ||
		apartNames(a.In, b.In) || apartNames(a.Out, b.Out) ||
		excludedName(a.In, b.NotIn) || excludedName(b.In, a.NotIn) ||
		excludedName(a.Out, b.NotOut) || excludedName(b.Out, a.NotOut) ||
		a.Protocol != "" && b.Protocol != "" && a.Protocol != b.Protocol ||
		apartPorts(a.Ports, b.Ports) || apartPorts(a.SourcePorts, b.SourcePorts)
}

func apart(a, b netip.Prefix) bool { return a.IsValid() && b.IsValid() && !a.Overlaps(b) }

// excluded reports whether all of p is excepted.
func excluded(p netip.Prefix, except []netip.Prefix) bool {
	return p.IsValid() && slices.ContainsFunc(except, func(e netip.Prefix) bool { return within(p, e) })
}

func within(inner, outer netip.Prefix) bool {
	return outer.Bits() <= inner.Bits() && outer.Contains(inner.Addr())
}

func apartNames(a, b string) bool {
	return a != "" && b != "" && !nameWithin(a, b) && !nameWithin(b, a)
}

func excludedName(name string, except []string) bool {
	return name != "" && slices.ContainsFunc(except, func(e string) bool { return nameWithin(name, e) })
}

// nameWithin reports whether every interface that inner matches is matched by outer.
func nameWithin(inner, outer string) bool {
	begin, wild := strings.CutSuffix(outer, "*")
	return inner == outer || wild && strings.HasPrefix(inner, begin)
}

func apartPorts(a, b []nat.Ports) bool {
	return len(a) > 0 && len(b) > 0 && len(commonPorts(a, b)) == 0
}

func commonPorts(a, b []nat.Ports) []nat.Ports {
	if len(a) == 0 {
		return b
	}
	if len(b) == 0 {
		return a
	}
	var all []nat.Ports
	for _, x := range a {
		for _, y := range b {
			if c, meet := x.Common(y); meet {
				all = append(all, c)
			}
		}
	}
	return all
}

// Covers reports whether it is certain that whatever meets b meets a.
func (a *Match) Covers(b *Match) bool {
	return len(a.Unknown) == 0 && (!a.ToLocal || b.ToLocal) && (!a.SYN || b.SYN) && (a.Version == 0 || a.Version == b.Version) &&
		(!a.From.IsValid() || b.From.IsValid() && within(b.From, a.From)) && (!a.To.IsValid() || b.To.IsValid() && within(b.To, a.To)) &&
		exceptsLess(a.NotFrom, func(e netip.Prefix) bool { return apart(e, b.From) || excluded(e, b.NotFrom) }) &&
		exceptsLess(a.NotTo, func(e netip.Prefix) bool { return apart(e, b.To) || excluded(e, b.NotTo) }) &&
		(a.In == "" || b.In != "" && nameWithin(b.In, a.In)) && (a.Out == "" || b.Out != "" && nameWithin(b.Out, a.Out)) &&
		exceptsLess(a.NotIn, func(e string) bool { return apartNames(e, b.In) || excludedName(e, b.NotIn) }) &&
		exceptsLess(a.NotOut, func(e string) bool { return apartNames(e, b.Out) || excludedName(e, b.NotOut) }) &&
		(a.Protocol == "" || a.Protocol == b.Protocol) && coversPorts(a.Ports, b.Ports) && coversPorts(a.SourcePorts, b.SourcePorts)
}

// exceptsLess reports whether all that is excepted is not among b anyway.
func exceptsLess[T any](except []T, absent func(T) bool) bool {
	return !slices.ContainsFunc(except, func(e T) bool { return !absent(e) })
}

func coversPorts(a, b []nat.Ports) bool {
	if len(a) == 0 {
		return true
	}
	for _, y := range b {
		if !slices.ContainsFunc(a, func(x nat.Ports) bool { return x.Covers(y) }) {
			return false
		}
	}
	return len(b) > 0
}

// Size is the cost of a comparison.
func (m *Match) Size() int {
	return max(1, len(m.NotFrom)+len(m.NotTo)+len(m.NotIn)+len(m.NotOut)+len(m.Ports)+len(m.SourcePorts)+len(m.Unknown))
}

// isOf reports whether packets of a version of IP can meet the match; 0 is any.
func (m *Match) isOf(version int) bool {
	if version == 0 {
		return true
	}
	is := func(p netip.Prefix) bool { return !p.IsValid() || p.Addr().Is4() == (version == 4) }
	return (m.Version == 0 || m.Version == version) && is(m.From) && is(m.To) &&
		!slices.ContainsFunc(m.NotFrom, func(p netip.Prefix) bool { return !is(p) }) && !slices.ContainsFunc(m.NotTo, func(p netip.Prefix) bool { return !is(p) })
}
