package nft

import (
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"

	"github.com/natkit/natkit/internal/gateway"
)

// neutralChain is for what goes back inside without state: other packets pay for the
// rule that leads there, and not for those in it.
const neutralChain = "stateless-hairpin"

// neutralHairpins bring back what hosts inside send to addresses outside of the same
// site (RFC 6296, section 4.3): as if it had left, and come in. Both are done before
// there is a route, as behind that nothing tells such a packet from others inside.
// Where a pair is for any interface, its own rules do both.
func (t *table) neutralHairpins(p *gateway.Plan) {
	var all []*rewriter
	var insides, outsides []netip.Prefix
	for _, pair := range p.Stateless {
		if pair.Reflects() {
			all = append(all, &rewriter{t: t, f: ip6, pairs: []gateway.Pair{pair}})
			insides, outsides = append(insides, pair.Inside), append(outsides, pair.Outside)
		}
	}
	if len(all) == 0 {
		return
	}
	t.rules = append(t.rules, rule{chain: "raw-prerouting", comment: all[0].pairs[0].Rule.String(), exprs: slices.Concat(ip6.is(),
		t.interfaces(expr.MetaKeyIIFNAME, all[0].pairs[0].Out, true),
		t.addresses(ip6, ip6.daddr, outsides, false), t.addresses(ip6, ip6.saddr, insides, false),
		[]expression{&expr.Notrack{}, &expr.Verdict{Kind: expr.VerdictGoto, Chain: neutralChain}})})
	// An error quotes what came from an address outside, to one inside.
	for _, r := range all {
		r.reflect(r.icmpErrors, ip6.quoted(false), ip6.quoted(true))
	}
	for _, r := range all {
		r.reflect(func() []expression { return nil }, ip6.header(true), ip6.header(false))
	}
}

// reflect translates an address outside into the one inside at one place, and the other
// way round at another.
func (r *rewriter) reflect(start conditions, in, out place) {
	pair := r.pairs[0]
	r.neutral(neutralChain, start, out, pair.Inside, pair.Outside, nil)
	r.neutral(neutralChain, start, in, pair.Outside, pair.Inside, nil)
}
