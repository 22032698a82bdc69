package iptables

import (
	"net/netip"
	"slices"
	"strings"
)

// and is the condition that both are met; false where no packet meets both.
func and(a, b Match) (Match, bool) {
	if disjoint(&a, &b) {
		return Match{}, false
	}
	m := Match{
		From: narrower(a.From, b.From), To: narrower(a.To, b.To),
		In: narrowerName(a.In, b.In), Out: narrowerName(a.Out, b.Out),
		Protocol: a.Protocol, Ports: commonPorts(a.Ports, b.Ports), SourcePorts: commonPorts(a.SourcePorts, b.SourcePorts),
		ToLocal: a.ToLocal || b.ToLocal, SYN: a.SYN || b.SYN,
	}
	if m.Protocol == "" {
		m.Protocol = b.Protocol
	}
	m.NotFrom = union(a.NotFrom, b.NotFrom)
	m.NotTo = union(a.NotTo, b.NotTo)
	m.NotIn = union(a.NotIn, b.NotIn)
	m.NotOut = union(a.NotOut, b.NotOut)
	m.Unknown = union(a.Unknown, b.Unknown)
	return m, true
}

// union shares a where b adds nothing.
func union[T comparable](a, b []T) []T {
	if len(b) == 0 {
		return a
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

// disjoint reports whether it is sure that no packet meets both. What is unknown is
// never a reason.
func disjoint(a, b *Match) bool {
	return apart(a.From, b.From) || apart(a.To, b.To) ||
		excluded(a.From, b.NotFrom) || excluded(b.From, a.NotFrom) ||
		excluded(a.To, b.NotTo) || excluded(b.To, a.NotTo) ||
		apartNames(a.In, b.In) || apartNames(a.Out, b.Out) ||
		excludedName(a.In, b.NotIn) || excludedName(b.In, a.NotIn) ||
		excludedName(a.Out, b.NotOut) || excludedName(b.Out, a.NotOut) ||
		a.Protocol != "" && b.Protocol != "" && (a.Protocol != b.Protocol || apartPorts(a.Ports, b.Ports) || apartPorts(a.SourcePorts, b.SourcePorts))
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

// nameWithin reports whether every interface that is inner is outer as well.
func nameWithin(inner, outer string) bool {
	begin, wild := strings.CutSuffix(outer, "*")
	return inner == outer || wild && strings.HasPrefix(inner, begin)
}

func apartPorts(a, b []Ports) bool {
	return len(a) > 0 && len(b) > 0 && len(commonPorts(a, b)) == 0
}

func commonPorts(a, b []Ports) []Ports {
	if len(a) == 0 {
		return b
	}
	if len(b) == 0 {
		return a
	}
	var all []Ports
	for _, x := range a {
		for _, y := range b {
			if c := (Ports{max(x.First, y.First), min(x.Last, y.Last)}); c.First <= c.Last {
				all = append(all, c)
			}
		}
	}
	return all
}

// covers reports whether it is sure that whatever meets b meets a.
func covers(a, b *Match) bool {
	return len(a.Unknown) == 0 && (!a.ToLocal || b.ToLocal) && (!a.SYN || b.SYN) &&
		coversPrefix(a.From, b.From) && coversPrefix(a.To, b.To) &&
		exceptsLess(a.NotFrom, b.From, b.NotFrom) && exceptsLess(a.NotTo, b.To, b.NotTo) &&
		coversName(a.In, b.In) && coversName(a.Out, b.Out) &&
		exceptsLessNames(a.NotIn, b.In, b.NotIn) && exceptsLessNames(a.NotOut, b.Out, b.NotOut) &&
		(a.Protocol == "" || a.Protocol == b.Protocol) && coversPorts(a.Ports, b.Ports) && coversPorts(a.SourcePorts, b.SourcePorts)
}

func coversPrefix(a, b netip.Prefix) bool { return !a.IsValid() || b.IsValid() && within(b, a) }

func coversName(a, b string) bool { return a == "" || b != "" && nameWithin(b, a) }

// exceptsLess reports whether all that a excepts is not among b anyway.
func exceptsLess(a []netip.Prefix, b netip.Prefix, notB []netip.Prefix) bool {
	for _, e := range a {
		if !apart(e, b) && !excluded(e, notB) {
			return false
		}
	}
	return true
}

func exceptsLessNames(a []string, b string, notB []string) bool {
	for _, e := range a {
		if !apartNames(e, b) && !excludedName(e, notB) {
			return false
		}
	}
	return true
}

func coversPorts(a, b []Ports) bool {
	if len(a) == 0 {
		return true
	}
	for _, y := range b {
		if !slices.ContainsFunc(a, func(x Ports) bool { return x.First <= y.First && y.Last <= x.Last }) {
			return false
		}
	}
	return len(b) > 0
}
