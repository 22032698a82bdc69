package attribute

import (
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/explain"
	"github.com/natkit/natkit/internal/prefix"
)

// Untranslated finds connections that pass as they are although a rule is for them: they
// began when the rule was not in force yet, and their inside address leaves with every
// packet.
type Untranslated struct {
	rules *Rules
	facts *gateway.Facts
	route explain.Router
	// ways are routes that were asked for, budget how many more may be.
	ways   map[explain.Lookup]explain.Hop
	budget int
}

// Untranslated asks for at most so many routes; facts have the interfaces' addresses.
func (a *Rules) Untranslated(facts *gateway.Facts, route explain.Router, routes int) *Untranslated {
	return &Untranslated{rules: a, facts: facts, route: route, ways: map[explain.Lookup]explain.Hop{}, budget: routes}
}

// Exhausted reports whether there were connections for which no route could be asked any more.
func (u *Untranslated) Exhausted() bool { return u.budget < 0 }

// Of is the rule that is for an untranslated entry, and would make it another one; nil
// where none is. An entry does not tell by which interface it came: that is the one which
// leads to its source.
func (u *Untranslated) Of(e *conntrack.Entry) (*gateway.Ref, error) {
	if e.IsSNAT() || e.IsDNAT() || !routed(e.Orig.Src) || !routed(e.Orig.Dst) || !u.concerns(e) {
		return nil, nil
	}
	in, err := u.way(explain.Lookup{Destination: e.Orig.Src})
	if err != nil || in.Unreachable != "" {
		return nil, err
	}
	if d := u.destination(e, in); d != nil && !destinationGave(d, e) {
		return &d.Rule, nil
	}
	forward := explain.Lookup{Source: e.Orig.Src, Destination: e.Orig.Dst}
	if !in.Local {
		forward.In = in.Out
	}
	out, err := u.way(forward)
	if err != nil || out.Local || out.Unreachable != "" {
		return nil, err
	}
	if s := u.source(e, out); s != nil && !u.gives(s, e, out.Out) {
		return &s.Rule, nil
	}
	return nil, nil
}

// routed reports whether an address is one host's, and of more than one link.
func routed(a netip.Addr) bool {
	return a.IsGlobalUnicast() && a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// concerns reports whether a rule may be for an entry, before routes are asked: most are for
// the host itself or stay inside.
func (u *Untranslated) concerns(e *conntrack.Entry) bool {
	any := func(int) bool { return true }
	if u.rules.destinations.first(e.Orig.Dst, e.Orig.Proto, e.Orig.DstPort, none, any) != none {
		return true
	}
	return !u.facts.Has(e.Orig.Dst) && u.rules.sources.from.first(e.Orig.Src, none, any) != none
}

func (u *Untranslated) destination(e *conntrack.Entry, in explain.Hop) *gateway.Destination {
	first := u.rules.destinations.first(e.Orig.Dst, e.Orig.Proto, e.Orig.DstPort, none, func(i int) bool {
		d := &u.rules.plan.Destinations[i]
		comes := in.Local && d.Local || !in.Local && named(d.In, in.Out)
		return comes && has(d.Port, e.Orig.DstPort) && contains(d.From, e.Orig.Src)
	})
	if first == none {
		return nil
	}
	return &u.rules.plan.Destinations[first]
}

// source leaves those of hairpins out: they are for what a destination rule translated.
func (u *Untranslated) source(e *conntrack.Entry, out explain.Hop) *gateway.Source {
	first := u.rules.sources.from.first(e.Orig.Src, none, func(i int) bool {
		s := &u.rules.plan.Sources[i]
		return !s.Hairpin.Prefix.IsValid() && named(s.Out, out.Out) && !inAny(s.NotTo, e.Orig.Dst)
	})
	if first == none {
		return nil
	}
	return &u.rules.plan.Sources[first]
}

// gives reports whether a rule may leave the source as it is, as a masquerade does that of
// the interface itself.
func (u *Untranslated) gives(s *gateway.Source, e *conntrack.Entry, out string) bool {
	has := func(r gateway.Range) bool { return r.Contains(e.Orig.Src) }
	switch {
	case s.Masquerade:
		return slices.ContainsFunc(u.facts.AddressesOf(out), func(p netip.Prefix) bool { return p.Addr() == e.Orig.Src })
	case s.Prefix.IsValid():
		return prefix.Replace(e.Orig.Src, s.Prefix) == e.Orig.Src
	}
	return slices.ContainsFunc(s.To, has)
}

// named reports whether a condition on interfaces holds: none is any.
func named(names []string, name string) bool {
	return len(names) == 0 || slices.Contains(names, name)
}

func (u *Untranslated) way(l explain.Lookup) (explain.Hop, error) {
	if hop, known := u.ways[l]; known {
		return hop, nil
	}
	if u.budget--; u.budget < 0 {
		return explain.Hop{Unreachable: "not asked"}, nil
	}
	hop, err := u.route(l)
	if err == nil {
		u.ways[l] = hop
	}
	return hop, err
}
