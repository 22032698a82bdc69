package explain

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// sees reports whether packets of the family come to the chain, and whether it can do
// anything to them.
func sees(f *gateway.Foreign, p Packet) bool {
	fits := f.Family == "inet" || (f.Family == "ip") == p.Src.Is4() && (f.Family == "ip" || f.Family == "ip6")
	return fits && (f.Rules > 0 || f.Policy == "drop")
}

// foreign takes the packet through another program's chain, as far as its rules are
// understood: those that translate.
func (w *walk) foreign(f *gateway.Foreign, s *Step) {
	s.Chain, s.Owner = strings.Join([]string{f.Family, f.Table, f.Chain}, " "), f.Owner
	if f.Type != "nat" {
		s.Unsure = true
		s.Does = fmt.Sprintf("%s that natkit does not follow", units.Plural(f.Rules, "rule", "rules"))
		if f.Policy == "drop" || f.Policy == "reject" {
			w.unless("the rules of %s do not accept it", s.Chain)
		}
		switch f.Policy {
		case "drop":
			s.Does += "; what none of them accepts is dropped"
		case "reject":
			s.Does += "; what none of them accepts is rejected"
		}
		return
	}
	switch {
	case w.e.Untracked:
		return
	case w.decided(f):
		s.Does = "not asked: it is translated already"
		return
	}
	w.foreignRules(f, s)
}

// foreignRules asks the rules of a nat chain one after the other. Those that have conditions
// which natkit does not know are passed over, and told.
func (w *walk) foreignRules(f *gateway.Foreign, s *Step) {
	var may *snapshot.NATRule
	for i := range f.NAT {
		r := &f.NAT[i]
		match := w.foreignMatch(r)
		if match == matches {
			w.foreignTranslates(r, s)
			break
		}
		if match == mayMatch && (may == nil || may.Marked && !r.Marked) {
			may = r
		}
	}
	s.Unsure = may != nil || f.TooMany
	switch {
	case f.TooMany:
		w.note("too many to follow: more jumps and elements of sets lead to rules of %s than natkit follows; if one of them translates it, natkit's rules are not asked", s.Chain)
		s.Does = "too many to follow: a rule that translates may be for it"
		w.unless("one of too many rules of %s translates it", s.Chain)
	case may != nil && !may.Marked:
		note := "if %q in %s translates it, natkit's rules are not asked, and it becomes something else"
		if s.Does != "" {
			note = "or what %q in %s makes of it: natkit's rules are not asked in either case"
		}
		w.note(note, may.Text, s.Chain)
		w.unless("%q in %s translates it", may.Text, s.Chain)
		first := fmt.Sprintf("%q may translate it first: it has conditions that natkit does not know", may.Text)
		s.Does = strings.Join(slices.DeleteFunc([]string{first, s.Does}, func(text string) bool { return text == "" }), "; otherwise ")
	case s.Does != "":
	case may != nil:
		// kube-proxy marks what it translates, and nothing else; others may mark anything.
		if f.Owner != "kubernetes" || w.dstTranslated && w.e.Destination.Rule == nil {
			w.note("if it carries the mark that %q in %s asks for, it becomes something else", may.Text, s.Chain)
			w.unless("it carries the mark that %q in %s asks for", may.Text, s.Chain)
		}
		s.Does = fmt.Sprintf("no rule that translates is for it, unless it carries the mark that %q asks for", may.Text)
	default:
		s.Does = "no rule that translates is for it"
	}
}

// unless notes what may make something else of the packet.
func (w *walk) unless(format string, args ...any) {
	w.e.Unless = append(w.e.Unless, fmt.Sprintf(format, args...))
}

// decided reports whether this direction is translated already.
func (w *walk) decided(f *gateway.Foreign) bool {
	if f.Hook == hookPostrouting || f.Hook == hookInput {
		return w.srcDone
	}
	return w.dstDone
}

type matching int

const (
	noMatch matching = iota
	mayMatch
	matches
)

func (w *walk) foreignMatch(r *snapshot.NATRule) matching {
	switch {
	case !w.meets(r.Condition()) || slices.ContainsFunc(r.Unless, w.meets):
		return noMatch
	case r.Partial || r.PortsFromMap:
		return mayMatch
	}
	return matches
}

// meets reports whether the packet, as it is by now, is what a condition asks for.
func (w *walk) meets(c snapshot.NATCondition) bool {
	return (c.Protocol == "" || c.Protocol == w.packet.name()) &&
		(c.DestinationPort == 0 || c.DestinationPort <= w.dst.port && w.dst.port <= max(c.DestinationPort, c.LastDestinationPort)) &&
		(!c.FromSource.IsValid() || c.FromSource.Contains(w.src.addr)) &&
		(!c.ToDestination.IsValid() || c.ToDestination.Contains(w.dst.addr)) &&
		isInterface(c.OutInterface, w.e.Out) && isInterface(c.InInterface, w.packet.In) &&
		(!c.LocalDestination || w.isLocal())
}

// isLocal reports whether the routing table takes the destination for this host's own.
func (w *walk) isLocal() bool {
	hop, err := w.route(Lookup{Destination: w.dst.addr})
	w.err = cmp.Or(w.err, err)
	return hop.Local
}

// isInterface: iptables writes eth+ for all that begin so, nft eth*.
func isInterface(condition, name string) bool {
	if prefix, ok := strings.CutSuffix(condition, "+"); ok {
		return strings.HasPrefix(name, prefix)
	}
	if prefix, ok := strings.CutSuffix(condition, "*"); ok {
		return strings.HasPrefix(name, prefix)
	}
	return condition == "" || condition == name
}

// foreignTranslates does what another program's rule does; natkit's chain is not asked
// then (nf_nat_inet_fn stops at the first chain that decides).
func (w *walk) foreignTranslates(r *snapshot.NATRule, s *Step) {
	if r.TranslatesSource() {
		pool := gateway.Source{Masquerade: r.Kind == snapshot.NATMasquerade || !r.First.IsValid(), To: []gateway.Range{{First: r.First, Last: r.Last}},
			Ports: gateway.Ports{First: r.FirstPort, Last: r.LastPort}}
		if r.Random || r.FullyRandom {
			pool.Random = gateway.RandomFully
		}
		w.e.Source, w.srcDone = w.give(&pool), true
		s.Does = fmt.Sprintf("%s: the source becomes %s; natkit's chain is not asked", r.Text, w.words(w.e.Source, &pool))
		return
	}
	before := w.dst
	w.dst = w.foreignTarget(r)
	w.dstDone, w.dstTranslated = true, w.dst != before
	w.e.Destination = as(w.dst)
	s.Does = fmt.Sprintf("%s: the destination becomes %s; natkit's chain is not asked", r.Text, w.dst)
}

// foreignTarget is the first address of a rule's, where it has several.
func (w *walk) foreignTarget(r *snapshot.NATRule) endpoint {
	to := w.dst
	switch {
	case r.First.IsValid():
		to.addr = r.First
	case r.Kind == snapshot.NATRedirect:
		to.addr = w.redirected()
	}
	if r.FirstPort != 0 {
		to.port = r.FirstPort
	}
	return to
}

// redirected is the address of the interface by which the packet came (nf_nat_redirect).
func (w *walk) redirected() netip.Addr {
	for _, p := range w.facts.AddressesOf(w.packet.In) {
		if p.Addr().BitLen() == w.dst.addr.BitLen() {
			return p.Addr()
		}
	}
	return w.dst.addr
}
