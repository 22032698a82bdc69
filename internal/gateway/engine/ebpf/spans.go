package ebpf

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/nat"
)

// span is addresses, and services at them: of every protocol where that is 0, all ports where they are nat.AllPorts.
type span struct {
	prefix   netip.Prefix
	protocol uint8
	ports    nat.Ports
	// set has the addresses of the prefix that are meant, each on its own; nil for all.
	set *nat.Set
}

// whole are all packets of a prefix.
func whole(p netip.Prefix) span { return span{prefix: p.Masked(), ports: nat.AllPorts} }

// sideOf are all packets of the addresses on one side of pairs of a family.
func sideOf(pairs *nat.Set, side nat.Condition, bits int) span {
	s := whole(nat.Anywhere(bits))
	s.set = pairs.Side(side)
	return s
}

// isOfHosts reports whether it is of single addresses, and of no prefix.
func (s span) isOfHosts() bool { return s.set != nil || s.prefix.IsSingleIP() }

// samePlace reports whether two spans that have an address in common have one entry of a table for it.
func (s span) samePlace(o span) bool {
	same := s.prefix == o.prefix
	if s.set != nil || o.set != nil {
		same = s.isOfHosts() && o.isOfHosts()
	}
	return same && s.protocol == o.protocol
}

// where names its addresses.
func (s span) where() string {
	if s.set != nil {
		return "addresses of $" + s.set.Name
	}
	return nat.PrefixString(s.prefix)
}

// spansOf are prefixes with the services of a match, or all of its protocol.
func spansOf(prefixes []netip.Prefix, m *nat.Match) (all []span) {
	services := m.Services()
	if len(services) == 0 {
		services = []nat.Service{{Ports: nat.AllPorts}}
	}
	for _, p := range prefixes {
		for _, s := range services {
			all = append(all, span{prefix: p.Masked(), protocol: s.Protocol, ports: s.Ports})
		}
	}
	return all
}

// common is what two spans have in common.
func (s span) common(o span) (both span, ok bool) {
	if both.prefix, ok = nat.CommonPrefix(s.prefix, o.prefix); !ok || s.protocol != 0 && o.protocol != 0 && s.protocol != o.protocol {
		return both, false
	}
	if !s.hasSome(o) || !o.hasSome(s) {
		return both, false
	}
	both.protocol = max(s.protocol, o.protocol)
	both.ports, ok = s.ports.Common(o.ports)
	return both, ok
}

// hasSome reports whether one of the addresses of s, if it has a set of them, is among those of o.
func (s span) hasSome(o span) bool {
	switch {
	case s.set == nil:
		return true
	case o.set == nil:
		return len(s.set.Of(o.prefix.Addr().BitLen()).Within(nat.RangeOf(o.prefix))) > 0
	}
	side := func(set *nat.Set) *nat.Match {
		return &nat.Match{Members: []nat.Member{{Of: nat.To, Name: set.Name, Set: set}}}
	}
	return side(s.set).Overlaps(side(o.set))
}

// index finds the spans that overlap one, by their numbers.
type index struct {
	spans     []span
	runs      map[runKey]*run
	protocols []uint8
	// lengths are those of the prefixes, which are in order of their addresses.
	lengths  []int
	prefixes []netip.Prefix
	// tables are the spans that have sets.
	tables []int
}

type runKey struct {
	prefix   netip.Prefix
	protocol uint8
}

// run are spans of one prefix and protocol in the order of their first ports; longest is the number of ports of the
// longest one.
type run struct {
	numbers []int
	longest int
}

func indexed(spans []span) *index {
	x := &index{spans: spans, runs: map[runKey]*run{}}
	seen := map[netip.Prefix]bool{}
	for i, s := range spans {
		if s.set != nil {
			x.tables = append(x.tables, i)
			continue
		}
		key := runKey{s.prefix, s.protocol}
		if x.runs[key] == nil {
			x.runs[key] = &run{}
		}
		r := x.runs[key]
		r.numbers, r.longest = append(r.numbers, i), max(r.longest, int(s.ports.Last-s.ports.First))
		if !slices.Contains(x.protocols, s.protocol) {
			x.protocols = append(x.protocols, s.protocol)
		}
		if !slices.Contains(x.lengths, s.prefix.Bits()) {
			x.lengths = append(x.lengths, s.prefix.Bits())
		}
		if !seen[s.prefix] {
			seen[s.prefix], x.prefixes = true, append(x.prefixes, s.prefix)
		}
	}
	for _, r := range x.runs {
		slices.SortStableFunc(r.numbers, func(a, b int) int { return cmp.Compare(spans[a].ports.First, spans[b].ports.First) })
	}
	slices.SortFunc(x.prefixes, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	return x
}

// overlapping calls found for each span that has something in common with s.
func (x *index) overlapping(s span, found func(number int)) {
	if s.set != nil {
		for i, o := range x.spans {
			if _, meet := s.common(o); meet {
				found(i)
			}
		}
		return
	}
	for _, i := range x.tables {
		if _, meet := x.spans[i].common(s); meet {
			found(i)
		}
	}
	for _, bits := range x.lengths {
		if bits > s.prefix.Bits() || bits > s.prefix.Addr().BitLen() {
			continue
		}
		x.at(netip.PrefixFrom(s.prefix.Addr(), bits).Masked(), s, found)
	}
	if s.prefix.IsSingleIP() {
		return
	}
	first, _ := slices.BinarySearchFunc(x.prefixes, s.prefix.Addr(), func(p netip.Prefix, a netip.Addr) int { return p.Addr().Compare(a) })
	for _, p := range x.prefixes[first:] {
		if !s.prefix.Contains(p.Addr()) {
			break
		}
		if p.Bits() > s.prefix.Bits() {
			x.at(p, s, found)
		}
	}
}

// at is overlapping among the spans of one prefix.
func (x *index) at(p netip.Prefix, s span, found func(number int)) {
	for _, protocol := range x.protocols {
		r := x.runs[runKey{p, protocol}]
		if r == nil || protocol != 0 && s.protocol != 0 && protocol != s.protocol {
			continue
		}
		first, _ := slices.BinarySearchFunc(r.numbers, int(s.ports.First)-r.longest, func(i, port int) int { return cmp.Compare(int(x.spans[i].ports.First), port) })
		for _, i := range r.numbers[first:] {
			if x.spans[i].ports.First > s.ports.Last {
				break
			}
			if x.spans[i].ports.Last >= s.ports.First {
				found(i)
			}
		}
	}
}
