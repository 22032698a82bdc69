package gateway

import (
	"net/netip"
	"slices"
)

// overlapSources tells whether some connection matches both, whatever wins.
func overlapSources(a, b *Source) bool {
	return overlapPrefixes(a.From, b.From) && overlapNames(a.Out, b.Out) &&
		a.Hairpin.Prefix.IsValid() == b.Hairpin.Prefix.IsValid() &&
		(!a.Hairpin.Prefix.IsValid() || a.Hairpin.Prefix.Overlaps(b.Hairpin.Prefix)) &&
		overlapPorts(a.Hairpin.Port, b.Hairpin.Port) &&
		a.givenBits() == b.givenBits()
}

// coversSource tells whether a matches all that b does.
func coversSource(a, b *Source) bool {
	return coversPrefixes(a.From, b.From) && coversNames(a.Out, b.Out) &&
		(len(a.NotTo) == 0 || len(b.NotTo) > 0 && coversPrefixes(b.NotTo, a.NotTo)) &&
		!a.Hairpin.Prefix.IsValid() && !b.Hairpin.Prefix.IsValid()
}

func overlapDestinations(a, b *Destination) bool {
	return a.On.Overlaps(b.On) && overlapPorts(a.Port, b.Port) &&
		overlapPrefixes(a.From, b.From) && overlapNames(a.In, b.In)
}

func coversDestination(a, b *Destination) bool {
	return coversPrefix(a.On, b.On) && coversPort(a.Port, b.Port) &&
		coversPrefixes(a.From, b.From) && coversNames(a.In, b.In) &&
		(a.Local || !b.Local)
}

// overlapPrefixes: an empty list is any address.
func overlapPrefixes(a, b []netip.Prefix) bool {
	if len(a) == 0 || len(b) == 0 {
		return true
	}
	return slices.ContainsFunc(a, func(p netip.Prefix) bool {
		return slices.ContainsFunc(b, p.Overlaps)
	})
}

// coversPrefixes tells whether each of b lies in one of a.
func coversPrefixes(a, b []netip.Prefix) bool {
	if len(a) == 0 {
		return true
	}
	if len(b) == 0 {
		return slices.ContainsFunc(a, func(p netip.Prefix) bool { return p.Bits() == 0 })
	}
	for _, q := range b {
		if !slices.ContainsFunc(a, func(p netip.Prefix) bool { return coversPrefix(p, q) }) {
			return false
		}
	}
	return true
}

func coversPrefix(a, b netip.Prefix) bool { return a.Bits() <= b.Bits() && a.Contains(b.Addr()) }

// overlapNames: an empty list is any interface.
func overlapNames(a, b []string) bool {
	return len(a) == 0 || len(b) == 0 ||
		slices.ContainsFunc(a, func(n string) bool { return slices.Contains(b, n) })
}

func coversNames(a, b []string) bool {
	if len(a) == 0 {
		return true
	}
	return len(b) > 0 && !slices.ContainsFunc(b, func(n string) bool { return !slices.Contains(a, n) })
}

func overlapPorts(a, b Port) bool {
	switch {
	case a.Protocol == "" || b.Protocol == "":
		return true
	case a.Protocol != b.Protocol:
		return false
	}
	return a.First == 0 || b.First == 0 || a.First <= b.last() && b.First <= a.last()
}

func coversPort(a, b Port) bool {
	switch {
	case a.Protocol == "":
		return true
	case a.Protocol != b.Protocol:
		return false
	}
	return a.First == 0 || b.First != 0 && a.First <= b.First && b.last() <= a.last()
}
