package attribute

import (
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/gateway"
)

// sourceIndex finds Sources by a connection's tuple, in the plan's order.
type sourceIndex struct {
	// hairpin are those for one original destination, from all others.
	hairpin portIndex
	from    prefixIndex
}

// prefixIndex lists entries by prefix, their numbers ascending.
type prefixIndex struct {
	entries map[netip.Prefix][]int
	// bits are the lengths that there are, of IPv4 and of IPv6.
	bits [2][]int
}

func (x *prefixIndex) add(p netip.Prefix, entry int) {
	if x.entries == nil {
		x.entries = map[netip.Prefix][]int{}
	}
	x.entries[p] = append(x.entries[p], entry)
	lengths := &x.bits[family(p.Addr())]
	if !slices.Contains(*lengths, p.Bits()) {
		*lengths = append(*lengths, p.Bits())
	}
}

func family(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

// first is the least entry of a prefix that has a and that ok accepts, if less than
// limit; limit where there is none.
func (x *prefixIndex) first(a netip.Addr, limit int, ok func(int) bool) int {
	for _, bits := range x.bits[family(a)] {
		p, err := a.Prefix(bits)
		if err != nil {
			continue
		}
		limit = least(x.entries[p], limit, ok)
	}
	return limit
}

// least is the first of ascending entries below limit that ok accepts.
func least(entries []int, limit int, ok func(int) bool) int {
	for _, i := range entries {
		if i >= limit {
			break
		}
		if ok(i) {
			return i
		}
	}
	return limit
}

func indexSources(list []gateway.Source) (x sourceIndex) {
	for i, s := range list {
		if s.Hairpin.Prefix.Bits() > 0 {
			x.hairpin.add(s.Hairpin.Prefix, s.Hairpin.Port, i)
			continue
		}
		for _, p := range s.From {
			x.from.add(p, i)
		}
	}
	return x
}

// first is the least entry for a connection's tuple that ok accepts.
func (x *sourceIndex) first(t *conntrack.Tuple, ok func(int) bool) int {
	limit := x.hairpin.first(t.Dst, t.Proto, t.DstPort, none, ok)
	return x.from.first(t.Src, limit, ok)
}

// none is more than the number of an entry can be.
const none = int(^uint(0) >> 1)

// portIndex lists entries by address, protocol and port, their numbers ascending.
type portIndex struct {
	entries map[portKey][]int
	bits    [2][]int
}

// portKey is a prefix and what of the ports: all (proto 0), a protocol, one port, or a
// block of 256 that a range of ports meets.
type portKey struct {
	on    netip.Prefix
	proto uint8
	part  portPart
	port  uint16
}

type portPart uint8

const (
	allPorts portPart = iota
	onePort
	blockOfPorts
)

func indexDestinations(list []gateway.Destination) (x portIndex) {
	for i, d := range list {
		x.add(d.On.Masked(), d.Port, i)
	}
	return x
}

func (x *portIndex) add(on netip.Prefix, port gateway.Port, entry int) {
	if x.entries == nil {
		x.entries = map[portKey][]int{}
	}
	for _, key := range portKeys(on, port) {
		x.entries[key] = append(x.entries[key], entry)
	}
	lengths := &x.bits[family(on.Addr())]
	if !slices.Contains(*lengths, on.Bits()) {
		*lengths = append(*lengths, on.Bits())
	}
}

func portKeys(on netip.Prefix, port gateway.Port) (keys []portKey) {
	proto, _ := port.Number()
	key, last := portKey{on: on, proto: proto}, max(port.First, port.Last)
	switch {
	case port.First == 0:
		return []portKey{key}
	case port.First == last:
		key.part, key.port = onePort, port.First
		return []portKey{key}
	}
	key.part = blockOfPorts
	for block := port.First >> 8; block <= last>>8; block++ {
		key.port = block
		keys = append(keys, key)
	}
	return keys
}

// first is the least entry for a destination that ok accepts, if less than limit;
// limit where there is none. Of ranges of ports ok has to look at the port.
func (x *portIndex) first(dst netip.Addr, proto uint8, port uint16, limit int, ok func(int) bool) int {
	for _, bits := range x.bits[family(dst)] {
		on, err := dst.Prefix(bits)
		if err != nil {
			continue
		}
		for _, key := range [...]portKey{{on, proto, onePort, port}, {on, proto, blockOfPorts, port >> 8}, {on, proto, allPorts, 0}, {on: on}} {
			limit = least(x.entries[key], limit, ok)
		}
	}
	return limit
}
