package nft

import (
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// variant is one of the rules that a group needs: protocols differ in what a port is.
type variant struct {
	// protocols that it is for; all where empty.
	protocols []byte
	// suffix of its map's name.
	suffix string
	// ports says whether it bounds them, loads how a port is kept.
	ports bool
	keep  expression
}

// withPorts are the protocols whose ports the kernel translates
// (nf_nat_l4proto_unique_tuple); of ICMP it is the identifier of an echo.
var withPorts = []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_DCCP, unix.IPPROTO_SCTP, unix.IPPROTO_UDPLITE}

// variants of a group: where ports are chosen, those with ports, then the others.
func (g *group) variants() []variant {
	switch {
	case g.action.ports.Keep:
		return []variant{
			{protocols: withPorts, keep: payload(expr.PayloadBaseTransportHeader, 0, 2, reg3)},
			{protocols: []byte{g.f.icmp}, keep: payload(expr.PayloadBaseTransportHeader, 4, 2, reg3), suffix: "-echo"},
			{suffix: "-other"},
		}
	case g.action.ports.First > 0 || g.action.ports.Last > 0:
		return []variant{{protocols: slices.Concat([]byte{g.f.icmp}, withPorts), ports: true}, {suffix: "-other"}}
	}
	return []variant{{}}
}

// emit writes a group into a chain.
func (t *table) emit(chain string, g *group) {
	if g.hairpin {
		chain = hairpinChain
	}
	if t.handNetmap && (g.kind == actSourcePrefix || g.kind == actDestinationPrefix) {
		t.emitByHand(chain, g)
		return
	}
	for _, v := range g.variants() {
		exprs := t.conditions(g)
		if len(g.entries) == 1 {
			exprs = append(exprs, t.single(g, v)...)
		} else {
			exprs = append(exprs, t.mapped(g, v)...)
		}
		t.rules = append(t.rules, rule{chain: chain, exprs: exprs, comment: g.comment()})
	}
}

// emitByHand is for kernels that cannot replace a prefix: a rule for each, which puts
// the new address together. Ports are not chosen with prefixes.
func (t *table) emitByHand(chain string, g *group) {
	for _, e := range g.entries {
		exprs := t.conditions(g)
		for i, p := range g.parts() {
			exprs = append(exprs, p.match(g.f, e.values[i])...)
		}
		exprs = append(exprs, t.exceptions(g, variant{})...)
		n := g.nat()
		n.Prefix, n.RegAddrMin = false, reg1
		offset := g.f.saddr
		if g.kind == actDestinationPrefix {
			offset = g.f.daddr
		}
		exprs = append(exprs, &expr.Counter{}, payload(expr.PayloadBaseNetworkHeader, offset, uint32(g.f.bytes), reg1),
			g.f.replaced(e.to.prefix, g.f.bytes), n)
		t.rules = append(t.rules, rule{chain: chain, exprs: exprs, comment: e.rule.String()})
	}
}

// comment names the rule of the file, or how many there are.
func (g *group) comment() string {
	first := g.entries[0].rule
	if slices.ContainsFunc(g.entries, func(e entry) bool { return e.rule != first }) {
		return fmt.Sprintf("%d entries of @%s", len(g.entries), g.name)
	}
	return first.String()
}

// conditions are those on interfaces.
func (t *table) conditions(g *group) []expression {
	all := append(g.f.is(), t.interfaces(expr.MetaKeyIIFNAME, g.in, false)...)
	all = append(all, t.interfaces(expr.MetaKeyOIFNAME, g.out, false)...)
	if g.proto != 0 {
		all = append(all, t.protocols(g.proto)...)
	}
	return all
}

// exceptions are the conditions that narrow down what the key says. A map is asked
// after them, so that it counts what the rule does.
func (t *table) exceptions(g *group, v variant) []expression {
	all := t.addresses(g.f, g.f.daddr, g.notTo, true)
	if g.shape.ports[1] > 0 {
		all = append(all, g.wide()...)
	}
	if len(v.protocols) > 0 {
		all = append(all, t.protocols(v.protocols...)...)
	}
	return all
}

// wide compares ports with a range.
func (g *group) wide() []expression {
	return []expression{
		part{field: g.widePorts}.loadAll(g.f, reg1),
		&expr.Cmp{Op: expr.CmpOpGte, Register: reg1, Data: portBytes(g.shape.ports[0])},
		&expr.Cmp{Op: expr.CmpOpLte, Register: reg1, Data: portBytes(g.shape.ports[1])},
	}
}

// single compares the key with the only entry's.
func (t *table) single(g *group, v variant) []expression {
	var all []expression
	e := g.entries[0]
	for i, p := range g.parts() {
		all = append(all, p.match(g.f, e.values[i])...)
	}
	all = append(all, t.exceptions(g, v)...)
	if !g.again() {
		all = append(all, &expr.Counter{})
	}
	all = append(all, t.choose(g)...)
	return append(all, g.act(v, e.to)...)
}

// mapped looks the key up in a map, which counts by entries.
func (t *table) mapped(g *group, v variant) []expression {
	all := t.exceptions(g, v)
	word := uint32(0)
	for _, p := range g.parts() {
		all = append(all, p.load(g.f, word00+word)...)
		word += words(p.datatype(g.f).Bytes)
	}
	s := t.mapOf(g, v)
	if s.flags&unix.NFT_SET_MAP == 0 {
		all = append(append(all, s.lookup(reg1, false)), t.choose(g)...)
		return append(all, g.act(v, target{firstPort: g.action.ports.First, lastPort: g.action.ports.Last})...)
	}
	return append(append(all, s.translate(reg1)), g.actMapped(v, s)...)
}

// words is how many registers of four bytes a value takes.
func words(bytes uint32) uint32 { return (bytes + 3) / 4 }

func (g *group) parts() []part { return g.key[:g.keys] }

// givesAddresses reports whether the addresses are different by entry, and so stand in
// a map.
func (g *group) givesAddresses() bool {
	return g.kind != actMasquerade && g.kind != actNotrack && len(g.pool) == 0
}

// mapOf is the map, or set, of a group's entries.
func (t *table) mapOf(g *group, v variant) *set {
	var types []nftables.SetDatatype
	for _, p := range g.parts() {
		types = append(types, p.datatype(g.f))
	}
	s := &set{name: g.name + v.suffix, key: concat(types...), counted: !g.again(), about: g.comment()}
	if g.givesAddresses() {
		s.flags, s.data = unix.NFT_SET_MAP, g.f.address
		s.ranges = v.ports || g.kind == actSourcePrefix || g.kind == actDestinationPrefix ||
			slices.ContainsFunc(g.entries, func(e entry) bool { return e.to.first != e.to.last })
		if v.ports || g.toPort {
			s.data = concat(g.f.address, nftables.TypeInetService)
		}
	}
	for _, e := range g.entries {
		s.elements = append(s.elements, g.element(e, v, s))
	}
	return t.add(s)
}

func concat(types ...nftables.SetDatatype) nftables.SetDatatype {
	if len(types) == 1 {
		return types[0]
	}
	return nftables.MustConcatSetType(types...) // never more than five
}

// element is an entry as the map has it.
func (g *group) element(e entry, v variant, s *set) element {
	out := element{comment: e.rule.String()}
	for i := range g.parts() {
		out.key = appendPadded(out.key, e.values[i])
	}
	if s.flags&unix.NFT_SET_MAP == 0 {
		return out
	}
	withPort := v.ports || g.toPort
	out.data = appendPadded(nil, e.to.first.AsSlice())
	if withPort {
		out.data = appendPadded(out.data, portBytes(e.to.firstPort))
	}
	if s.ranges {
		out.data = appendPadded(out.data, e.to.last.AsSlice())
		if withPort {
			out.data = appendPadded(out.data, portBytes(e.to.lastPort))
		}
	}
	return out
}

// appendPadded fills a value up to a whole register.
func appendPadded(b, value []byte) []byte {
	b = append(b, value...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}
