package nft

import (
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"
)

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
