package nft

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/gateway"
)

// stateless writes the pairs of one family: on the way in the destination becomes the
// one inside, on the way out the source the one outside, packet by packet. The tracker
// sees neither. ICMP errors carry the packet that they are about: the address in there
// is translated as well.
func (t *table) stateless(p *gateway.Plan, f *family) {
	for i, pairs := range pairGroups(p, f) {
		r := rewriter{t, f, pairs, fmt.Sprintf("stateless%s-%d", f.suffix, i+1), map[string]*set{}}
		if f.v6 && i == 0 {
			r.passNeighbours()
			t.neutralHairpins(p)
		}
		r.write()
	}
}

// pairGroups puts single addresses with the same interfaces together; each prefix is
// one by itself.
func pairGroups(p *gateway.Plan, f *family) [][]gateway.Pair {
	var all [][]gateway.Pair
	at := map[string]int{}
	for _, pair := range p.Stateless {
		if familyOf(pair.Inside.Addr()) != f {
			continue
		}
		out := strings.Join(pair.Out, " ")
		i, known := at[out]
		if pair.Inside.Bits() == f.bits() && known {
			all[i] = append(all[i], pair)
			continue
		}
		if pair.Inside.Bits() == f.bits() {
			at[out] = len(all)
		}
		all = append(all, []gateway.Pair{pair})
	}
	return all
}

// passNeighbours leaves neighbour discovery alone (RFC 4861): no router forwards it, and
// who asks for an address outside that is the gateway's as well has to be answered.
func (r *rewriter) passNeighbours() {
	s := &set{key: nftables.TypeICMP6Type}
	for kind := byte(133); kind <= 137; kind++ { // router solicitation to redirect
		s.elements = append(s.elements, element{key: []byte{kind}})
	}
	exprs := slices.Concat(r.f.is(), r.t.protocols(r.f.icmp), []expression{
		payload(expr.PayloadBaseTransportHeader, 0, 1, reg1), r.t.anonymous(s).lookup(reg1, false),
		&expr.Verdict{Kind: expr.VerdictAccept}})
	r.add("raw-prerouting", exprs)
}

type rewriter struct {
	t     *table
	f     *family
	pairs []gateway.Pair
	name  string
	maps  map[string]*set
}

func (r *rewriter) write() {
	out := r.pairs[0].Out
	r.bothPlaces("raw-prerouting", func() []expression {
		return append(r.f.is(), r.t.interfaces(expr.MetaKeyIIFNAME, out, false)...)
	}, true)
	r.notrackLeaving(out)
	r.bothPlaces("stateless", func() []expression {
		return append(r.f.is(), r.t.interfaces(expr.MetaKeyOIFNAME, out, false)...)
	}, false)
}

// conditions make the first expressions of a rule. Each rule gets its own, as a set
// without a name belongs to one rule alone.
type conditions func() []expression

// bothPlaces translates, in one direction, the address that ICMP errors quote (on the
// way in the source of what was sent from inside, on the way out the destination of
// what came in), and the packet's own.
func (r *rewriter) bothPlaces(chain string, start conditions, in bool) {
	at := r.f.quoted(!in)
	errors := func() []expression { return append(start(), r.icmpErrors()...) }
	if !r.pairs[0].Neutral { // which changes no checksum
		for _, q := range r.f.quotedTransports() {
			at.quoted = q.checksum
			r.translate(chain, func() []expression { return append(errors(), q.is()...) }, at, in, "-quoted", nil)
		}
	}
	// An address that one of these has translated is no longer one to translate.
	at.quoted = 0
	r.translate(chain, errors, at, in, "-quoted", nil)
	var untrack []expression
	if in {
		untrack = []expression{&expr.Notrack{}}
	}
	r.translate(chain, start, r.f.header(in), in, "", untrack)
}

// quotedTransport is a protocol with a pseudo header in its checksum, in a packet that
// an ICMP error quotes, behind an IP header without options.
type quotedTransport struct {
	f        *family
	protocol byte
	checksum uint32 // its offset from the ICMP header; beyond what is quoted the rule does nothing
}

func (f *family) quotedTransports() []quotedTransport {
	if f.v6 {
		const at = 8 + 40
		return []quotedTransport{{f, unix.IPPROTO_UDP, at + 6}, {f, unix.IPPROTO_TCP, at + 16}, {f, unix.IPPROTO_ICMPV6, at + icmpChecksum}}
	}
	const at = 8 + 20
	return []quotedTransport{{f, unix.IPPROTO_UDP, at + 6}, {f, unix.IPPROTO_TCP, at + 16}}
}

// is asks for the protocol, and that there is a checksum.
func (q quotedTransport) is() []expression {
	th := expr.PayloadBaseTransportHeader
	if q.f.v6 {
		return []expression{payload(th, 8+6, 1, reg1), equal(reg1, []byte{q.protocol})}
	}
	all := []expression{
		payload(th, 8, 1, reg1), equal(reg1, []byte{0x45}),
		payload(th, 8+9, 1, reg1), equal(reg1, []byte{q.protocol}),
	}
	if q.protocol == unix.IPPROTO_UDP {
		all = append(all, payload(th, q.checksum, 2, reg1), unequal(reg1, []byte{0, 0}))
	}
	return all
}

// icmpErrors asks for an ICMP message that quotes a packet.
func (r *rewriter) icmpErrors() []expression {
	types, kind := []byte{3, 11, 12}, nftables.TypeICMPType // unreachable, time exceeded, parameter problem
	if r.f.v6 {
		types, kind = []byte{1, 2, 3, 4}, nftables.TypeICMP6Type
	}
	s := &set{key: kind}
	for _, v := range types {
		s.elements = append(s.elements, element{key: []byte{v}})
	}
	all := r.t.protocols(r.f.icmp)
	return append(all, payload(expr.PayloadBaseTransportHeader, 0, 1, reg1), r.t.anonymous(s).lookup(reg1, false))
}

// translate makes rules that replace the address at a place.
func (r *rewriter) translate(chain string, start conditions, at place, in bool, suffix string, untrack []expression) {
	pair, size := r.pairs[0], uint32(r.f.bytes)
	from, to := pair.Inside, pair.Outside
	if in {
		from, to = to, from
	}
	switch {
	case pair.Neutral:
		r.neutral(chain, start, at, from, to, untrack)
	case len(r.pairs) > 1:
		s := r.pairMap(in, suffix)
		r.add(chain, slices.Concat(start(), []expression{at.load(size), s.translate(reg1)}, untrack, at.write(r.f, size)))
	default:
		become := []expression{immediate(reg1, to.Masked().Addr().AsSlice())}
		if from.Bits() < r.f.bits() {
			become = []expression{at.load(size), r.f.replaced(to, int(size))}
		}
		r.add(chain, slices.Concat(start(), at.within(r.f, from), []expression{&expr.Counter{}}, untrack, become, at.write(r.f, size)))
	}
}

// replaced puts a prefix in the place of as many bits of the first bytes of an address
// that reg1 has.
func (f *family) replaced(prefix netip.Prefix, bytes int) expression {
	mask := f.mask(prefix.Bits())[:bytes]
	for i := range mask {
		mask[i] = ^mask[i]
	}
	return &expr.Bitwise{SourceRegister: reg1, DestRegister: reg1, Len: uint32(bytes), Mask: mask, Xor: prefix.Masked().Addr().AsSlice()[:bytes]}
}

func (r *rewriter) add(chain string, exprs []expression) {
	comment := r.pairs[0].Rule.String()
	if len(r.pairs) > 1 {
		comment = fmt.Sprintf("%d entries of @%s", len(r.pairs), r.name)
	}
	r.t.rules = append(r.t.rules, rule{chain: chain, exprs: exprs, comment: comment})
}

// pairMap is the map of all pairs in one direction. Both places of a packet have one
// of their own: its entries count.
func (r *rewriter) pairMap(in bool, suffix string) *set {
	direction := "-out"
	if in {
		direction = "-in"
	}
	if s := r.maps[direction+suffix]; s != nil {
		return s
	}
	s := &set{name: r.name + direction + suffix, key: r.f.address, data: r.f.address, flags: unix.NFT_SET_MAP, counted: suffix == "", about: r.name}
	seen := map[netip.Addr]bool{}
	for _, p := range r.pairs {
		from, to := p.Inside.Addr(), p.Outside.Addr()
		if in {
			from, to = to, from
		}
		if !seen[from] {
			seen[from] = true
			s.elements = append(s.elements, element{key: from.AsSlice(), data: to.AsSlice(), comment: p.Rule.String()})
		}
	}
	r.maps[direction+suffix] = s
	return r.t.add(s)
}

// notrackLeaving keeps the tracker from what goes out from inside: what a route leads
// to one of the interfaces.
func (r *rewriter) notrackLeaving(out []string) {
	exprs := r.f.is()
	exprs = append(exprs, r.t.leavesBy(out)...)
	if len(r.pairs) == 1 {
		exprs = append(exprs, r.f.within(r.f.saddr, r.pairs[0].Inside, expr.CmpOpEq)...)
	} else {
		s := &set{name: r.name + "-inside", key: r.f.address, about: r.name}
		seen := map[netip.Addr]bool{}
		for _, p := range r.pairs {
			if a := p.Inside.Addr(); !seen[a] {
				seen[a] = true
				s.elements = append(s.elements, element{key: a.AsSlice()})
			}
		}
		exprs = append(exprs, payload(expr.PayloadBaseNetworkHeader, r.f.saddr, uint32(r.f.bytes), reg1), r.t.add(s).lookup(reg1, false))
	}
	r.add("raw-prerouting", append(exprs, &expr.Notrack{}))
}

// leavesBy asks the routes for the interface, before there is one: raw comes before
// the routing decision.
func (t *table) leavesBy(names []string) []expression {
	if len(names) == 0 {
		return nil
	}
	all := t.interfaces(expr.MetaKeyOIFNAME, names, false)
	all[0] = &expr.Fib{Register: reg1, ResultOIFNAME: true, FlagDADDR: true}
	return all
}
