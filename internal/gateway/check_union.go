package gateway

import (
	"net/netip"
	"slices"
	"sort"
)

// union is what comes before a destination entry. It covers the entry where it does so
// in one dimension, all that it counts there matching whatever the entry does in the
// others: addresses, ports, or clients.
type union struct {
	of                       *Destination
	on, from                 []Range
	ports                    []Port
	byOn, byPorts, byClients []Ref
}

func (u *union) add(on netip.Prefix, port Port, from []netip.Prefix, rule Ref) {
	if !portsMeet(port, u.of.Port) {
		return
	}
	coversOn := RangeOf(on).covers(RangeOf(u.of.On))
	coversPort := coversPorts([]Port{port}, u.of.Port)
	coversFrom := len(from) == 0 || len(u.of.From) > 0 && coversEach(from, u.of.From)
	if coversPort && coversFrom {
		u.on, u.byOn = append(u.on, RangeOf(on)), append(u.byOn, rule)
	}
	if coversOn && coversFrom {
		u.ports, u.byPorts = append(u.ports, port), append(u.byPorts, rule)
	}
	if coversOn && coversPort {
		for _, p := range from {
			u.from = append(u.from, RangeOf(p))
		}
		u.byClients = append(u.byClients, rule)
	}
}

// covering are the rules that cover the entry; none where something is left to it.
func (u *union) covering() []Ref {
	switch {
	case coverAll(u.on, RangeOf(u.of.On)):
		return u.byOn
	case coversPorts(u.ports, u.of.Port):
		return u.byPorts
	case len(u.byClients) > 0 && u.clients():
		return u.byClients
	}
	return nil
}

func (u *union) clients() bool {
	of := u.of.From
	if len(of) == 0 {
		of = []netip.Prefix{anywhere(u.of.On.Addr().BitLen())}
	}
	return !slices.ContainsFunc(of, func(p netip.Prefix) bool { return !coverAll(u.from, RangeOf(p)) })
}

// coversEach reports whether each of b lies in one of a.
func coversEach(a, b []netip.Prefix) bool {
	return !slices.ContainsFunc(b, func(p netip.Prefix) bool {
		return !slices.ContainsFunc(a, func(q netip.Prefix) bool { return RangeOf(q).covers(RangeOf(p)) })
	})
}

// coverAll reports whether ranges together cover r.
func coverAll(ranges []Range, r Range) bool {
	return slices.ContainsFunc(JoinRanges(ranges), func(joined Range) bool { return joined.covers(r) })
}

// coversPorts reports whether ports together cover p.
func coversPorts(ports []Port, p Port) bool {
	if p.First == 0 {
		return slices.ContainsFunc(ports, func(o Port) bool { return o.Protocol == "" || o.Protocol == p.Protocol && o.First == 0 })
	}
	ports = slices.Clone(ports)
	slices.SortFunc(ports, orderPorts)
	next := int(p.First)
	for _, o := range ports {
		switch {
		case o.Protocol == "" || o.Protocol == p.Protocol && o.First == 0:
			return true
		case o.Protocol == p.Protocol && int(o.First) <= next:
			next = max(next, int(o.last())+1)
		}
	}
	return next > int(p.last())
}

// entryIndex finds entries by a prefix that they have.
type entryIndex struct {
	of     map[netip.Prefix][]int
	sorted []netip.Prefix
}

func (x *entryIndex) add(p netip.Prefix, entry int) {
	if x.of == nil {
		x.of = map[netip.Prefix][]int{}
	}
	if _, known := x.of[p]; !known {
		x.sorted = append(x.sorted, p)
	}
	x.of[p] = append(x.of[p], entry)
}

func (x *entryIndex) sort() {
	slices.SortFunc(x.sorted, func(a, b netip.Prefix) int {
		if c := a.Addr().Compare(b.Addr()); c != 0 {
			return c
		}
		return a.Bits() - b.Bits()
	})
}

// meeting calls look for every entry whose prefix contains p or lies in it: those
// above p by their names, those within from where p begins to where it ends.
func (x *entryIndex) meeting(p netip.Prefix, look func(entry int)) {
	for bits := 0; bits < p.Bits(); bits++ {
		for _, e := range x.of[netip.PrefixFrom(p.Addr(), bits).Masked()] {
			look(e)
		}
	}
	last := RangeOf(p).Last
	at := sort.Search(len(x.sorted), func(i int) bool { return !x.sorted[i].Addr().Less(p.Addr()) })
	for ; at < len(x.sorted) && x.sorted[at].Addr().Compare(last) <= 0; at++ {
		if x.sorted[at].Bits() < p.Bits() {
			continue // above, begins at the same address
		}
		for _, e := range x.of[x.sorted[at]] {
			look(e)
		}
	}
}
