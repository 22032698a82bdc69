package nft

import (
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/gateway"
)

// act is what is done to packets of which the table of rules knows the addresses.
func (g *group) act(v variant, to target) []expression {
	switch g.kind {
	case actNotrack:
		return []expression{&expr.Notrack{}}
	case actMasquerade:
		return g.masquerade(v)
	}
	n := g.nat()
	var all []expression
	if len(g.pool) > 0 {
		n.RegAddrMin, n.RegAddrMax = reg1, word00+words(uint32(g.f.bytes))
	} else {
		n.RegAddrMin = reg1
		all = append(all, immediate(reg1, to.first.AsSlice()))
		if to.first != to.last {
			n.RegAddrMax = reg2
			all = append(all, immediate(reg2, to.last.AsSlice()))
		}
	}
	if v.ports || to.firstPort > 0 && g.kind == actDestination {
		n.RegProtoMin = reg3
		all = append(all, immediate(reg3, portBytes(to.firstPort)))
		if to.lastPort != to.firstPort {
			n.RegProtoMax = reg4
			all = append(all, immediate(reg4, portBytes(to.lastPort)))
		}
	}
	if v.keep != nil {
		all, n.RegProtoMin = append(all, v.keep), reg3
	}
	return append(all, n)
}

// actMapped is what is done where a map has put the addresses into registers.
func (g *group) actMapped(v variant, s *set) []expression {
	n := g.nat()
	address, withPort := words(uint32(g.f.bytes)), v.ports || g.toPort
	n.RegAddrMin = reg1
	if withPort {
		n.RegProtoMin = word00 + address
	}
	if s.ranges {
		half := words(s.data.Bytes)
		n.RegAddrMax = word00 + half
		if withPort {
			n.RegProtoMax = word00 + half + address
		}
	}
	if v.keep != nil {
		n.RegProtoMin = reg3
		return []expression{v.keep, n}
	}
	return []expression{n}
}

// nat is the translation without registers.
func (g *group) nat() *expr.NAT {
	n := &expr.NAT{
		Type: expr.NATTypeSourceNAT, Family: uint32(g.f.proto),
		Random: g.random == gateway.RandomPorts, FullyRandom: g.random == gateway.RandomFully, Persistent: g.persistent,
		Prefix: g.kind == actSourcePrefix || g.kind == actDestinationPrefix,
	}
	if g.kind == actDestination || g.kind == actDestinationPrefix {
		n.Type = expr.NATTypeDestNAT
	}
	return n
}

// masquerade is written by hand: google/nftables leaves the flags out where there are
// ports, and kernels before 6.x want the one that says so from us.
func (g *group) masquerade(v variant) []expression {
	var all []expression
	flags, m := g.flags(), raw{name: "masq"}
	switch {
	case v.keep != nil:
		all, flags = append(all, v.keep), flags|unix.NF_NAT_RANGE_PROTO_SPECIFIED
		m.data.u32(unix.NFTA_MASQ_REG_PROTO_MIN, reg3)
	case v.ports:
		flags |= unix.NF_NAT_RANGE_PROTO_SPECIFIED
		all = append(all, immediate(reg1, portBytes(g.action.ports.First)), immediate(reg2, portBytes(g.action.ports.Last)))
		m.data.u32(unix.NFTA_MASQ_REG_PROTO_MIN, reg1)
		m.data.u32(unix.NFTA_MASQ_REG_PROTO_MAX, reg2)
	}
	if flags != 0 {
		m.data.u32(unix.NFTA_MASQ_FLAGS, flags)
	}
	return append(all, m)
}

// flags are NF_NAT_RANGE_*.
func (g *group) flags() uint32 {
	var flags uint32
	switch g.random {
	case gateway.RandomPorts:
		flags |= unix.NF_NAT_RANGE_PROTO_RANDOM
	case gateway.RandomFully:
		flags |= unix.NF_NAT_RANGE_PROTO_RANDOM_FULLY
	}
	if g.persistent {
		flags |= unix.NF_NAT_RANGE_PERSISTENT
	}
	return flags
}
