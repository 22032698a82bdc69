package nat

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
	"sort"
	"sync"
)

// AddrPair is an address outside that stands for one inside, of the same family.
type AddrPair struct{ Outside, Inside netip.Addr }

// String is "198.51.100.7 10.0.0.7", as a file has it.
func (p AddrPair) String() string { return string(p.appendTo(nil)) }

func (p AddrPair) appendTo(b []byte) []byte {
	return p.Inside.AppendTo(append(p.Outside.AppendTo(b), ' '))
}

// Compare orders pairs by the address outside.
func (p AddrPair) Compare(o AddrPair) int {
	return cmp.Or(p.Outside.Compare(o.Outside), p.Inside.Compare(o.Inside))
}

// Mapped is a mapping of a destination: of all ports where On has none.
type Mapped struct {
	Protocol uint8
	On, To   netip.AddrPort
}

// pairs is what a Set of pairs has.
type pairs struct {
	// all is ordered by Outside; the first v4 of them are IPv4.
	all []AddrPair
	v4  int
	// byInside has the indices of all, ordered by Inside.
	byInside []int32
	// outside and inside are the sets of addresses on one side.
	outside, inside func() *Set
}

// Twice is an address that stands on one side of two pairs, with the numbers of both as they were given.
type Twice struct {
	Address       netip.Addr
	Outside       bool
	First, Second int
}

// NewPairs makes a set of pairs in any order. No address may be on one side twice: then there is no set.
func NewPairs(name string, given []AddrPair) (*Set, *Twice) {
	order := orderOf(given, func(p *AddrPair) *netip.Addr { return &p.Outside })
	if t := twice(given, order, func(p *AddrPair) netip.Addr { return p.Outside }); t != nil {
		t.Outside = true
		return nil, t
	}
	all := make([]AddrPair, len(given))
	for i, n := range order {
		all[i] = given[n]
	}
	p := &pairs{all: all, v4: sort.Search(len(all), func(i int) bool { return all[i].Outside.Is6() })}
	p.byInside = orderOf(all, func(p *AddrPair) *netip.Addr { return &p.Inside })
	if t := twice(all, p.byInside, func(p *AddrPair) netip.Addr { return p.Inside }); t != nil {
		a, b := int(order[t.First]), int(order[t.Second])
		t.First, t.Second = min(a, b), max(a, b)
		return nil, t
	}
	p.outside = sync.OnceValue(func() *Set { return p.side(name, nil, func(p *AddrPair) netip.Addr { return p.Outside }) })
	p.inside = sync.OnceValue(func() *Set { return p.side(name, p.byInside, func(p *AddrPair) netip.Addr { return p.Inside }) })
	return &Set{Name: name, pairs: p}, nil
}

// orderOf returns the indices of pairs, ordered by the address on one side; equal ones keep their order. IPv4 is sorted as 64-bit
// numbers of address and index, several times as fast as netip.Addr.
func orderOf(all []AddrPair, side func(*AddrPair) *netip.Addr) []int32 {
	keys, long := make([]uint64, 0, len(all)), []int32(nil)
	for i := range all {
		if a := side(&all[i]); a.Is4() {
			bytes := a.As4()
			keys = append(keys, uint64(binary.BigEndian.Uint32(bytes[:]))<<32|uint64(i))
		} else {
			long = append(long, int32(i))
		}
	}
	slices.Sort(keys)
	slices.SortStableFunc(long, func(a, b int32) int { return side(&all[a]).Compare(*side(&all[b])) })
	order := make([]int32, 0, len(all))
	for _, k := range keys {
		order = append(order, int32(uint32(k)))
	}
	return append(order, long...)
}

// twice is the first address that two pairs have in an order.
func twice(all []AddrPair, order []int32, side func(*AddrPair) netip.Addr) *Twice {
	for i := 1; i < len(order); i++ {
		if a := side(&all[order[i]]); a == side(&all[order[i-1]]) {
			return &Twice{Address: a, First: int(order[i-1]), Second: int(order[i])}
		}
	}
	return nil
}

// side is the set of addresses on one side; those that touch are one range.
func (p *pairs) side(name string, order []int32, of func(*AddrPair) netip.Addr) *Set {
	var ranges AddrRanges
	for i := range p.all {
		at := &p.all[i]
		if order != nil {
			at = &p.all[order[i]]
		}
		a := of(at)
		if n := len(ranges) - 1; n >= 0 && ranges[n].Last.Next() == a {
			ranges[n].Last = a
			continue
		}
		ranges = append(ranges, OneAddr(a))
	}
	return NewSet(name, ranges, nil)
}

// HasPairs reports whether the set has pairs, and not addresses or services.
func (s *Set) HasPairs() bool { return s.pairs != nil }

// Pairs returns the pairs of a family, 32 or 128, or of both for 0, ordered by Outside.
func (s *Set) Pairs(family int) []AddrPair {
	switch {
	case s.pairs == nil:
		return nil
	case family == 32:
		return s.pairs.all[:s.pairs.v4]
	case family == 128:
		return s.pairs.all[s.pairs.v4:]
	}
	return s.pairs.all
}

// Side is the set of the addresses of pairs that a condition on From (inside) or To (outside) is about; of another set
// it is the set itself.
func (s *Set) Side(of Condition) *Set {
	switch {
	case s.pairs == nil:
		return s
	case of == From:
		return s.pairs.inside()
	}
	return s.pairs.outside()
}

// Inward is the address inside that one outside stands for; not valid where there is no such pair.
func (s *Set) Inward(outside netip.Addr) netip.Addr {
	all := s.Pairs(0)
	i, found := slices.BinarySearchFunc(all, outside, func(p AddrPair, a netip.Addr) int { return p.Outside.Compare(a) })
	if !found {
		return netip.Addr{}
	}
	return all[i].Inside
}

// Outward is the address outside that stands for one inside; not valid where there is no such pair.
func (s *Set) Outward(inside netip.Addr) netip.Addr {
	if s.pairs == nil {
		return netip.Addr{}
	}
	all := s.pairs.all
	i, found := slices.BinarySearchFunc(s.pairs.byInside, inside, func(n int32, a netip.Addr) int { return all[n].Inside.Compare(a) })
	if !found {
		return netip.Addr{}
	}
	return all[s.pairs.byInside[i]].Outside
}
