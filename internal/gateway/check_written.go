package gateway

import "net/netip"

// use is what a rule does with an address that stands in it.
type use int

const (
	useFrom   use = iota // whose packets it is about
	useExcept            // who is left alone
	useGive              // what becomes a source outside
	useOn                // what becomes another destination
	useTo                // what a destination becomes
	useInside            // both of one rule
	useOutside
	useUntracked
)

// written is an address, range or prefix as it stands in a rule.
type written struct {
	use   use
	addrs Range
	// text is how it is written, path where, below the rule's word.
	text string
	path []any
}

// written are all addresses of a rule.
func (r Rule) written() (all []written) {
	one := func(u use, key string, a netip.Addr) {
		if a.IsValid() {
			all = append(all, written{u, Range{a, a}, a.String(), []any{key}})
		}
	}
	prefix := func(u use, p Prefix, path ...any) {
		all = append(all, written{u, RangeOf(p.Prefix), p.String(), path})
	}
	prefixes := func(u use, key string, list Prefixes) {
		for i, p := range list {
			prefix(u, p, key, i)
		}
	}
	sources := func(s *Sources) {
		prefixes(useFrom, "from", s.From)
		prefixes(useExcept, "except-to", s.ExceptTo)
	}
	switch {
	case r.Masquerade != nil:
		sources(&r.Masquerade.Sources)
	case r.SNAT != nil:
		sources(&r.SNAT.Sources)
		for i, to := range r.SNAT.To {
			all = append(all, written{useGive, to, to.String(), []any{"to", i}})
		}
	case r.DNAT != nil:
		one(useOn, "on", r.DNAT.On.Address)
		prefixes(useFrom, "from", r.DNAT.From)
		one(useTo, "to", r.DNAT.To.Address)
	case r.Static != nil:
		one(useInside, "inside", r.Static.Inside.Addr)
		one(useOutside, "outside", r.Static.Outside.Addr)
	case r.Netmap != nil:
		prefix(useInside, r.Netmap.Inside, "inside")
		prefix(useOutside, r.Netmap.Outside, "outside")
	case r.Notrack != nil:
		one(useUntracked, "on", r.Notrack.On.Addr)
	}
	return all
}

// inside is the address of the host inside that it is, if it is one.
func (w written) inside() (netip.Addr, bool) {
	return w.addrs.First, (w.use == useTo || w.use == useInside) && w.addrs.First == w.addrs.Last
}

// Targets are the hosts inside that rules are about, each once.
func (c *Config) Targets() (all []netip.Addr) {
	known := map[netip.Addr]bool{}
	c.each(func(r Rule, _ Ref) {
		for _, w := range r.written() {
			if a, ok := w.inside(); ok && !known[a] {
				known[a], all = true, append(all, a)
			}
		}
	})
	return all
}

// overlaps reports whether two ranges have an address in common.
func (r Range) overlaps(s Range) bool {
	return r.First.BitLen() == s.First.BitLen() && r.First.Compare(s.Last) <= 0 && s.First.Compare(r.Last) <= 0
}

// covers reports whether s lies within r.
func (r Range) covers(s Range) bool {
	return r.First.BitLen() == s.First.BitLen() && r.First.Compare(s.First) <= 0 && s.Last.Compare(r.Last) <= 0
}
