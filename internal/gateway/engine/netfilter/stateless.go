package netfilter

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables/expr"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/nat"
	"golang.org/x/sys/unix"
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
		r.write(p.LeavingBy(pairs[0].Out))
	}
}

// pairGroups puts single addresses with the same interfaces together; each prefix is a
// group of its own.
func pairGroups(p *gateway.Plan, f *family) [][]gateway.Entry {
	var all [][]gateway.Entry
	at := map[string]int{}
	for _, pair := range p.Stateless {
		if familyOf(pair.Inside().Addr()) != f {
			continue
		}
		out := strings.Join(pair.Out, " ")
		i, known := at[out]
		if pair.Action.Pairs != "" {
			all = append(all, []gateway.Entry{pair})
			continue
		}
		if pair.Inside().Bits() == f.bits() && known {
			all[i] = append(all[i], pair)
			continue
		}
		if pair.Inside().Bits() == f.bits() {
			at[out] = len(all)
		}
		all = append(all, []gateway.Entry{pair})
	}
	return all
}

// passNeighbours leaves neighbour discovery alone (RFC 4861): no router forwards it, and
// who asks for an address outside that is the gateway's as well has to be answered.
func (r *rewriter) passNeighbours() {
	// Router solicitation and advertisement, neighbour solicitation and advertisement, redirect.
	exprs := slices.Concat(r.f.is(), r.t.icmpTypes(r.f, 133, 134, 135, 136, 137), []expression{&expr.Verdict{Kind: expr.VerdictAccept}})
	r.add("raw-prerouting", exprs)
}

type rewriter struct {
	t     *table
	f     *family
	pairs []gateway.Entry
	name  string
	maps  map[string]*set
}

// write has leaving for the interfaces by which the routes may lead out.
func (r *rewriter) write(leaving []string) {
	out := r.pairs[0].Out
	r.bothPlaces("raw-prerouting", func() []expression { return r.t.interfaces(expr.MetaKeyIIFNAME, out, false) }, true)
	r.notrackLeaving(leaving)
	r.bothPlaces("stateless", func() []expression { return r.t.interfaces(expr.MetaKeyOIFNAME, out, false) }, false)
}

// conditions make the first expressions of a rule. Each rule gets its own, as a set
// without a name belongs to one rule alone.
type conditions func() []expression

// bothPlaces translates, in one direction, the address that ICMP errors quote (on the
// way in the source of what was sent from inside, on the way out the destination of
// what came in), and the packet's own.
func (r *rewriter) bothPlaces(chain string, interfaces conditions, in bool) {
	at := r.f.quoted(!in)
	start := func() []expression { return append(r.f.is(), interfaces()...) }
	// What most packets are not comes first.
	errors := func() []expression { return slices.Concat(r.f.is(), r.icmpErrors(), interfaces()) }
	if !r.pairs[0].Action.Neutral { // which changes no checksum
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
	if r.f.v6 {
		return r.t.icmpTypes(r.f, 1, 2, 3, 4)
	}
	return r.t.icmpTypes(r.f, 3, 11, 12) // unreachable, time exceeded, parameter problem
}

// translate makes rules that replace the address at a place.
func (r *rewriter) translate(chain string, start conditions, at place, in bool, suffix string, untrack []expression) {
	pair, size := r.pairs[0], uint32(r.f.bytes)
	from, to := pair.Inside(), pair.Outside()
	if in {
		from, to = to, from
	}
	switch {
	case pair.Action.Neutral:
		r.neutral(chain, start, at, from, to, untrack)
	case pair.Action.Pairs != "":
		r.add(chain, slices.Concat(start(), []expression{at.load(size), r.ofPairs(in).translate(reg1), &expr.Counter{}}, untrack, at.write(r.f, size)))
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

// ofPairs is the map of a set of pairs for the way in, or out.
func (r *rewriter) ofPairs(in bool) *set {
	from := nat.From
	if in {
		from = nat.To
	}
	return r.t.pairs(r.pairs[0].Pairs(), r.f, from)
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
	comment := r.pairs[0].Rule.Label()
	if len(r.pairs) > 1 {
		comment = fmt.Sprintf("%d entries of @%s", len(r.pairs), r.name)
	}
	r.t.rules = append(r.t.rules, rule{chain: chain, exprs: exprs, comment: comment})
}

// pairMap is the map of all pairs in one direction. Both places of a packet have one
// of their own: its entries count.
func (r *rewriter) pairMap(in bool, suffix string) *set {
	name := r.name + map[bool]string{true: "-in", false: "-out"}[in] + suffix
	if r.maps[name] == nil {
		s := r.pairSet(name, in)
		s.data, s.flags, s.counted = r.f.address, unix.NFT_SET_MAP, suffix == ""
		r.maps[name] = r.t.add(s)
	}
	return r.maps[name]
}

// pairSet has all addresses inside, or those outside, with the other one of the pair.
func (r *rewriter) pairSet(name string, in bool) *set {
	s := &set{name: name, key: r.f.address, about: r.name}
	seen := map[netip.Addr]bool{}
	for _, p := range r.pairs {
		from, to := p.Inside().Addr(), p.Outside().Addr()
		if in {
			from, to = to, from
		}
		if !seen[from] {
			seen[from] = true
			s.elements = append(s.elements, element{key: from.AsSlice(), data: to.AsSlice(), comment: p.Rule.Label()})
		}
	}
	return s
}

// notrackLeaving keeps the tracker from what goes out from inside: what a route leads
// to one of the interfaces. Routes are asked last: that costs more than all else of the rule.
func (r *rewriter) notrackLeaving(out []string) {
	exprs := r.f.is()
	if r.pairs[0].Action.Pairs != "" {
		exprs = append(exprs, r.ofPairs(false).inPairs(payload(expr.PayloadBaseNetworkHeader, r.f.saddr, uint32(r.f.bytes), reg1))...)
		exprs = append(exprs, r.f.read())
	} else if len(r.pairs) == 1 {
		exprs = append(exprs, r.f.within(r.f.saddr, r.pairs[0].Inside(), expr.CmpOpEq)...)
	} else {
		s := r.pairSet(r.name+"-inside", false)
		for i := range s.elements {
			s.elements[i] = element{key: s.elements[i].key}
		}
		exprs = append(exprs, payload(expr.PayloadBaseNetworkHeader, r.f.saddr, uint32(r.f.bytes), reg1), r.t.add(s).lookup(reg1, false))
	}
	r.add("raw-prerouting", slices.Concat(exprs, r.t.leavesBy(out), []expression{&expr.Notrack{}}))
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

// neutral is RFC 6296: the prefix is replaced, and one word of the address takes up
// the difference, so that no checksum over the address changes. nf_tables mends a
// checksum where it writes: C' = C + old - new in ones' complement (nft_csum_replace),
// which is the RFC's adjustment if the "checksum" is that word of the address. It
// gives the word zero as 0xffff, the RFC as 0x0000 (3.5): the rule writes that itself.
//
// The word is the fourth for prefixes up to 48 bits (3.4), otherwise the first one after
// the eighth byte that is not 0xffff (3.5); where all are, the packet is dropped. The
// kernel's own SNPT and DNPT can only be in a table of the name mangle.
func (r *rewriter) neutral(chain string, start conditions, at place, from, to netip.Prefix, untrack []expression) {
	words, length := []uint32{3}, uint32(6)
	if from.Bits() > 48 {
		words, length = []uint32{4, 5, 6, 7}, 8
	}
	at.pseudo, at.mends = false, true
	for i, w := range words {
		exprs := append(start(), at.within(r.f, from)...)
		if len(words) > 1 {
			exprs = append(exprs, at.taken(words[:i], w)...)
		}
		exprs = append(append(exprs, &expr.Counter{}), untrack...)
		at.checksum = at.offset + 2*w
		exprs = append(exprs, at.load(length), r.f.replaced(to, int(length)), at.store(length, reg1))
		r.add(chain, append(exprs, at.zero(w)...))
	}
	if len(words) > 1 {
		exprs := slices.Concat(start(), at.within(r.f, from), at.taken(words, 0), []expression{&expr.Counter{}, &expr.Verdict{Kind: expr.VerdictDrop}})
		r.add(chain, exprs)
	}
}

// word is a part of the address at the place.
func (p place) word(n uint32) place {
	return place{base: p.base, offset: p.offset + 2*n}
}

var allOnes = []byte{0xff, 0xff}

// taken asks that some words are 0xffff and that another one, if any, is not.
func (p place) taken(words []uint32, free uint32) []expression {
	var all []expression
	for _, w := range words {
		all = append(all, p.word(w).load(2), equal(reg1, allOnes))
	}
	if free > 0 {
		all = append(all, p.word(free).load(2), unequal(reg1, allOnes))
	}
	return all
}

// zero writes a word that is 0xffff as 0x0000.
func (p place) zero(w uint32) []expression {
	at := p.word(w)
	return []expression{at.load(2), equal(reg1, allOnes), immediate(reg1, []byte{0, 0}), at.store(2, reg1)}
}

// UntranslatableComment is that of the rules that drop what the tracker takes for
// invalid and a rule of the file would have had to translate.
const UntranslatableComment = "untranslatable"

// untranslatable drops packets through the gateway whose source a rule is for, and that
// the tracker takes for invalid: no nat chain is asked about these (nf_nat_inet_fn does
// nothing without a connection), so that they would leave with addresses from inside.
// What no rule is for passes, and so does what is untracked, which is another state. So
// does what a server sends that only a dnat leads to: its own connections leave as they
// are, and who reaches it by its own address, past the tracker one way, needs the other.
//
// It is done where packets leave (before Linux 5.5, which does not know there where they came in, where they are
// forwarded), where the tracker and NAT are at work anyway: a hook that
// nothing else is at, as that of what is forwarded may be, costs each packet twice as much.
// The priority is before that of the chain stateless, as errorsPass knows hosts by their
// addresses inside, and after that of IPVS (ip_vs_reply4, 100 of forward), which gives
// answers of real servers, invalid to the tracker, the service's address and makes them
// untracked. So are the gateway's own packets made, by chain invalid-own.
func (t *table) untranslatable(p *gateway.Plan) {
	before := len(t.rules)
	for _, f := range []*family{ip4, ip6} {
		all, narrow := leaks(p, f)
		if len(all)+len(narrow.all) > 0 {
			t.rules = append(t.rules, t.errorsPass(p, f)...)
		}
		for i, l := range all {
			t.rules = append(t.rules, t.dropOf(l, f, fmt.Sprintf("untranslatable%s-%d", f.suffix, i+1)))
		}
		t.emitAll("untranslatable", "untranslatable"+f.suffix+"-by", narrow)
	}
	if len(t.rules) > before {
		t.rules = append(t.rules, ifInvalid(invalidChain, &expr.Verdict{Kind: expr.VerdictGoto, Chain: "untranslatable"}), ifInvalid("invalid-own", &expr.Notrack{}))
	}
}

// dropped is the kind of groups of packets that cannot be translated.
const dropped nat.Kind = "drop"

// errorsPass lets ICMP errors of routers inside out that are about packets to hosts
// which are not tracked: no error about these has a connection, and without some of
// them a path's MTU is not found.
func (t *table) errorsPass(p *gateway.Plan, f *family) []rule {
	about := f.quoted(true)
	load := about.load(uint32(f.bytes))
	var all []rule
	accept := func(is ...expression) {
		exprs := slices.Concat(f.is(), (&rewriter{t: t, f: f}).icmpErrors(), is, []expression{&expr.Verdict{Kind: expr.VerdictAccept}})
		all = append(all, rule{chain: "untranslatable", exprs: exprs, comment: UntranslatableComment})
	}
	switch hosts := untracked(p, f); len(hosts) {
	case 0:
	case 1:
		accept(about.within(f, hosts[0])...)
	default:
		accept(load, t.prefixSet("untracked"+f.suffix, f, hosts).lookup(reg1, false))
	}
	for i := range p.Stateless {
		if s := &p.Stateless[i]; s.Action.Pairs != "" && familyOf(s.Inside().Addr()) == f {
			accept(append(t.pairs(s.Pairs(), f, nat.From).inPairs(load), f.read())...)
		}
	}
	return all
}

// untracked are the hosts that the tracker does not see, by their addresses inside.
func untracked(p *gateway.Plan, f *family) (hosts []netip.Prefix) {
	for _, s := range p.Stateless {
		if s.Action.Pairs == "" {
			hosts = append(hosts, s.Inside())
		}
	}
	for _, u := range p.Untracked {
		hosts = append(hosts, u.On())
	}
	return slices.DeleteFunc(hosts, func(p netip.Prefix) bool { return familyOf(p.Addr()) != f })
}

// invalidChain is the one that leads there.
const invalidChain = "invalid"

// ifInvalid does something with invalid packets: others pay for nothing else.
func ifInvalid(chain string, does expression) rule {
	return rule{chain: chain, comment: UntranslatableComment, exprs: []expression{
		&expr.Ct{Key: expr.CtKeySTATE, Register: reg1}, equal(reg1, hostUint32(expr.CtStateBitINVALID)), does,
	}}
}

// leak are the sources of rules that agree in their other conditions.
type leak struct {
	from  []netip.Prefix
	other nat.Match
}

// leaks returns the sources of one family; narrow has the rules with other conditions, whose packets are looked up
// by keys. Entries about connections that come back inside have
// none: the destination of an invalid packet is not translated, and so it does not.
func leaks(p *gateway.Plan, f *family) (all []*leak, narrow groups) {
	known, one := map[string]*leak{}, gateway.Entry{}
	for i := range p.Sources {
		s := &p.Sources[i]
		if s.IsHairpin() || familyFor(s) != f || s.IsOwn() {
			continue
		}
		if s.IsNarrow() || s.Action.Pairs != "" {
			some := false
			one = *s
			one.Action = nat.Action{Kind: dropped}
			if one.Match, some = p.ByInterface(one.Match); some {
				narrow.collect(&one, f, bySource)
			}
			continue
		}
		other := s.Match
		other.From = nil
		key := other.String()
		l := known[key]
		if l == nil {
			l = &leak{other: other}
			known[key], all = l, append(all, l)
		}
		l.from = append(l.from, s.From...)
	}
	return all, narrow
}

func (t *table) dropOf(l *leak, f *family, name string) rule {
	exprs := append(f.is(), t.byInterfaces(&l.other)...)
	exprs = append(exprs, t.oneOf(l.from, f, name)...)
	exprs = append(exprs, t.addresses(f, f.daddr, l.other.NotTo, true)...)
	exprs = append(exprs, &expr.Counter{}, &expr.Verdict{Kind: expr.VerdictDrop})
	return rule{chain: "untranslatable", exprs: exprs, comment: UntranslatableComment}
}

// oneOf is a condition on the source, by a set that has a name where there are several
// prefixes. One for any source is none.
func (t *table) oneOf(from []netip.Prefix, f *family, name string) []expression {
	switch {
	case slices.ContainsFunc(from, func(p netip.Prefix) bool { return p.Bits() == 0 }):
		return nil
	case len(from) == 1:
		return f.within(f.saddr, from[0], expr.CmpOpEq)
	}
	s := t.prefixSet(name, f, from)
	return []expression{payload(expr.PayloadBaseNetworkHeader, f.saddr, uint32(f.bytes), reg1), s.lookup(reg1, false)}
}

func (t *table) prefixSet(name string, f *family, all []netip.Prefix) *set {
	return t.add(&set{name: name, key: f.address, flags: unix.NFT_SET_INTERVAL, elements: intervals(all), about: UntranslatableComment})
}
