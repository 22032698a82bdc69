package nft

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/gateway"
)

// field is something of a packet that keys are made of.
type field uint8

const (
	destinationPort field = iota
	sourceAddress
	destinationAddress
	protocol
	sourcePort
	originalAddress // the destination before it was translated
	originalPort
)

// part is one field of a key; bits is how much of an address counts.
type part struct {
	field field
	bits  int
}

// shape is what rules have in common that become one rule of the table, which looks
// up in a map what differs. It is comparable: two rules of one shape share a map.
type shape struct {
	f    *family
	key  [4]part // the first parts of it
	keys int
	// in, out, notTo are conditions, as text; group has the values.
	in, out, notTo string
	// hairpin: what a Destination sent back inside. proto is its protocol.
	hairpin bool
	proto   byte
	// ports are a range of ports too wide to be taken apart, widePorts the field that
	// has them.
	ports     [2]uint16
	widePorts field
	action
}

// action is what is done to the packets, but for the addresses that a map can give.
type action struct {
	kind   actionKind
	pool   string // the ranges, where there are several
	ports  gateway.Ports
	random gateway.Random
	// persistent is NF_NAT_RANGE_PERSISTENT, toPort that map data have a port.
	persistent, toPort bool
}

type actionKind uint8

const (
	actDestination actionKind = iota
	actSource
	actMasquerade
	actDestinationPrefix
	actSourcePrefix
	actNotrack
)

// entry is one key of a group and what it leads to.
type entry struct {
	values [4][]byte // of the parts of the key
	to     target
	rule   gateway.Ref
}

// target is what an address becomes: one of a range, with a port or one of a range.
type target struct {
	first, last         netip.Addr
	firstPort, lastPort uint16
	prefix              netip.Prefix // where it becomes one
}

// group are rules of one shape.
type group struct {
	shape
	name    string // of its map
	in, out []string
	notTo   []netip.Prefix
	pool    []gateway.Range
	entries []entry
	// seen are the keys; principal are the addresses, of so many bits, that some
	// entry has in principalField.
	seen           map[string]struct{}
	principal      map[netip.Prefix]struct{}
	bits           int
	principalField field
}

// groups keep the order of rules: the first one that matches does.
type groups struct{ all []*group }

// lookBack is how many groups an entry looks at for one of its shape.
const lookBack = 16

// add puts an entry into the last group of its shape, if no rule of a group after that
// one could match the same packets: those are to win. principal is the entry's
// address by which that is told.
func (gs *groups) add(g *group, principal netip.Prefix, e entry) {
	for i := len(gs.all) - 1; i >= max(0, len(gs.all)-lookBack); i-- {
		old := gs.all[i]
		if old.shape == g.shape {
			old.put(principal, e)
			return
		}
		if old.mayMatch(g, principal) {
			break
		}
	}
	g.principal, g.seen = map[netip.Prefix]struct{}{}, map[string]struct{}{}
	g.bits = principal.Bits()
	gs.all = append(gs.all, g)
	g.put(principal, e)
}

// put leaves out what an earlier entry has taken.
func (g *group) put(principal netip.Prefix, e entry) {
	key := fmt.Sprintf("%x", e.values)
	if _, taken := g.seen[key]; taken {
		return
	}
	g.seen[key] = struct{}{}
	g.principal[principal.Masked()] = struct{}{}
	g.entries = append(g.entries, e)
}

// mayMatch is false where no packet that has an address in principal can match g. It
// may be true where none can either.
func (g *group) mayMatch(other *group, principal netip.Prefix) bool {
	if g.principalField != other.principalField || g.bits > principal.Bits() {
		return true
	}
	p, err := principal.Addr().Prefix(g.bits)
	if err != nil {
		return true
	}
	_, there := g.principal[p]
	return there
}

// again: these are connections that the same rule of the file has sent back inside, by a
// translation of their destination, which counts them.
func (g *group) again() bool {
	return slices.ContainsFunc(g.key[:g.keys], func(p part) bool { return p.field == originalAddress })
}

func (p part) datatype(f *family) nftables.SetDatatype {
	switch p.field {
	case protocol:
		return nftables.TypeInetProto
	case destinationPort, sourcePort, originalPort:
		return nftables.TypeInetService
	}
	return f.address
}

// load puts the field into a register.
func (p part) load(f *family, register uint32) []expression {
	full := []expression{p.loadAll(f, register)}
	switch p.field {
	case sourceAddress, destinationAddress, originalAddress:
		if p.bits < f.bits() {
			full = append(full, f.masked(register, p.bits))
		}
	}
	return full
}

func (p part) loadAll(f *family, register uint32) expression {
	switch p.field {
	case sourceAddress:
		return payload(expr.PayloadBaseNetworkHeader, f.saddr, uint32(f.bytes), register)
	case destinationAddress:
		return payload(expr.PayloadBaseNetworkHeader, f.daddr, uint32(f.bytes), register)
	case protocol:
		return &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register}
	case destinationPort:
		return payload(expr.PayloadBaseTransportHeader, 2, 2, register)
	case sourcePort:
		return payload(expr.PayloadBaseTransportHeader, 0, 2, register)
	case originalAddress:
		return original(f.originalDestination(), register)
	default:
		return original(unix.NFT_CT_PROTO_DST, register)
	}
}

// originalDestination is a key that other than NFT_CT_DST works in tables of family
// inet (Linux 4.17).
func (f *family) originalDestination() uint32 {
	if f.v6 {
		return unix.NFT_CT_DST_IP6
	}
	return unix.NFT_CT_DST_IP
}

// original loads what the connection's first packet had (IP_CT_DIR_ORIGINAL).
// google/nftables does not tell the direction with these keys.
func original(key, register uint32) expression {
	r := raw{name: "ct"}
	r.data.u32(unix.NFTA_CT_KEY, key)
	r.data.u32(unix.NFTA_CT_DREG, register)
	r.data.bytes(unix.NFTA_CT_DIRECTION, []byte{0})
	return r
}

// match compares the field with one value.
func (p part) match(f *family, value []byte) []expression {
	switch p.field {
	case sourceAddress, destinationAddress:
		a, _ := netip.AddrFromSlice(value)
		offset := f.saddr
		if p.field == destinationAddress {
			offset = f.daddr
		}
		return f.within(offset, netip.PrefixFrom(a, p.bits), expr.CmpOpEq)
	}
	return append(p.load(f, reg1), equal(reg1, value))
}
