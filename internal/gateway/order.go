package gateway

import (
	"cmp"
	"math"
	"net/netip"
	"slices"
	"strings"
)

// The ranks of Sources. The first one wins.
const (
	rankOwnHairpin = 0 // connections that come back inside, of hosts with external addresses
	rankHairpin    = 3 // … of other hosts
	rankKinds      = 4 // all other connections
)

func (s *Source) rank() int {
	switch {
	case !s.Hairpin.Prefix.IsValid():
		return rankKinds + s.kindRank()
	case s.Hairpin.Prefix.Bits() == 0:
		return rankOwnHairpin + s.kindRank()
	}
	return rankHairpin
}

// kindRank puts one address for one before prefix for prefix before those who share.
func (s *Source) kindRank() int {
	switch {
	case s.Rule.Kind == "static":
		return 0
	case s.Prefix.IsValid():
		return 1
	}
	return 2
}

// compareSources tells which of two is more specific, that is, wins where both match:
// a where it is negative, b where it is positive, neither at 0. It looks at the kind
// (hairpin, static, netmap, then snat and masquerade), the length of From, the number
// of interfaces in Out, and whether some destinations are excepted.
func compareSources(a, b *Source) int {
	return cmp.Or(
		cmp.Compare(a.rank(), b.rank()),
		cmp.Compare(b.Hairpin.Prefix.Bits(), a.Hairpin.Prefix.Bits()),
		comparePorts(a.Hairpin.Port, b.Hairpin.Port),
		cmp.Compare(length(b.From), length(a.From)),
		compareNames(a.Out, b.Out),
		cmp.Compare(min(len(b.NotTo), 1), min(len(a.NotTo), 1)))
}

// compareDestinations is compareSources of destinations. It looks at the length of On,
// the number of ports, the length of From, and the number of interfaces in In.
func compareDestinations(a, b *Destination) int {
	return cmp.Or(
		cmp.Compare(b.On.Bits(), a.On.Bits()),
		comparePorts(a.Port, b.Port),
		cmp.Compare(length(b.From), length(a.From)),
		compareNames(a.In, b.In))
}

// length is that of all prefixes; -1 where there are none.
func length(prefixes []netip.Prefix) int {
	if len(prefixes) == 0 {
		return -1
	}
	return prefixes[0].Bits()
}

// comparePorts puts few ports before many before a whole protocol before all.
func comparePorts(a, b Port) int { return cmp.Compare(a.span(), b.span()) }

// span is how much a Port covers.
func (p Port) span() int {
	switch {
	case p.Protocol == "":
		return math.MaxInt
	case p.First == 0:
		return math.MaxUint16 + 1
	}
	return int(p.last()) - int(p.First) + 1
}

// last is the last port; First alone is one.
func (p Port) last() uint16 { return max(p.First, p.Last) }

// compareNames puts few interfaces before many before any.
func compareNames(a, b []string) int {
	return cmp.Compare(uint(len(a))-1, uint(len(b))-1) // none wraps around
}

// orderSources is compareSources with an order of those that it does not tell apart.
func orderSources(a, b *Source) int {
	return cmp.Or(compareSources(a, b),
		slices.CompareFunc(a.From, b.From, comparePrefixes),
		comparePrefixes(a.Hairpin.Prefix, b.Hairpin.Prefix),
		orderPorts(a.Hairpin.Port, b.Hairpin.Port),
		slices.Compare(a.Out, b.Out), a.Rule.Compare(b.Rule))
}

func orderDestinations(a, b *Destination) int {
	return cmp.Or(compareDestinations(a, b),
		comparePrefixes(a.On, b.On), orderPorts(a.Port, b.Port),
		slices.CompareFunc(a.From, b.From, comparePrefixes),
		slices.Compare(a.In, b.In), a.Rule.Compare(b.Rule))
}

func orderPairs(a, b Pair) int {
	return cmp.Or(comparePrefixes(a.Inside, b.Inside), comparePrefixes(a.Outside, b.Outside), a.Rule.Compare(b.Rule))
}

func orderUntracked(a, b Untracked) int {
	return cmp.Or(a.On.Compare(b.On), comparePorts(a.Port, b.Port), orderPorts(a.Port, b.Port), a.Rule.Compare(b.Rule))
}

func orderPorts(a, b Port) int {
	return cmp.Or(strings.Compare(a.Protocol, b.Protocol), cmp.Compare(a.First, b.First), cmp.Compare(a.Last, b.Last))
}
