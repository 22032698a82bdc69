package lab

import (
	"encoding/binary"
	"net/netip"
)

// maxPool bounds the addresses of one prefix that a mix uses.
const maxPool = 1 << 20

// pool is a row of addresses that hosts can have.
type pool struct {
	first netip.Addr
	n     uint64
}

// hosts are the addresses of a prefix without those that no host has: IPv4's
// first and last one, IPv6's first (RFC 4291, 2.6.1: the routers' anycast).
func hosts(p netip.Prefix) pool {
	free := p.Addr().BitLen() - p.Bits()
	n := uint64(1) << min(free, 62)
	switch {
	case free < 2:
		return pool{p.Addr(), n}
	case p.Addr().Is4():
		return pool{p.Addr().Next(), n - 2}
	}
	return pool{p.Addr().Next(), n - 1}
}

func (s Sources) pool() pool {
	p := hosts(s.Prefix.Prefix)
	if s.Hosts > 0 {
		p.n = uint64(s.Hosts)
	}
	return p
}

// at is the i-th address. Only the last 62 bits of an address can differ.
func (p pool) at(i uint64) netip.Addr {
	if p.first.Is4() {
		a := p.first.As4()
		binary.BigEndian.PutUint32(a[:], binary.BigEndian.Uint32(a[:])+uint32(i))
		return netip.AddrFrom4(a)
	}
	a := p.first.As16()
	binary.BigEndian.PutUint64(a[8:], binary.BigEndian.Uint64(a[8:])+i)
	return netip.AddrFrom16(a)
}

func (p pool) overlaps(o pool) bool {
	return p.first.BitLen() == o.first.BitLen() &&
		p.first.Compare(o.at(o.n-1)) <= 0 && o.first.Compare(p.at(p.n-1)) <= 0
}

// endpoints are pools with a port each, numbered one after the other.
type endpoints []struct {
	pool
	port uint16
}

func poolsOf(list []Endpoint) endpoints {
	all := make(endpoints, len(list))
	for i, e := range list {
		all[i].pool, all[i].port = hosts(e.Prefix), e.Port
	}
	return all
}

func (e endpoints) len() (n uint64) {
	for i := range e {
		n += e[i].n
	}
	return n
}

func (e endpoints) at(i uint64) (netip.Addr, uint16) {
	for k := range e {
		if i < e[k].n {
			return e[k].at(i), e[k].port
		}
		i -= e[k].n
	}
	return netip.Addr{}, 0
}

// overlaps reports whether an address is in both; with ports, under the same one.
func (e endpoints) overlaps(o endpoints, ports bool) bool {
	for i := range e {
		for k := range o {
			if e[i].overlaps(o[k].pool) && (!ports || e[i].port == o[k].port) {
				return true
			}
		}
	}
	return false
}
