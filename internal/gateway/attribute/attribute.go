// Package attribute tells which rules of a gateway's plan made the entries of a connection
// table.
package attribute

import (
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/prefix"
)

// Rules tells which rules made the entries of a connection table. It is made
// once for a plan (New) and asked for each entry: it does not search, so
// that 10,000 rules cost no more than ten.
type Rules struct {
	plan         *gateway.Plan
	destinations portIndex
	sources      sourceIndex
}

// New indexes a plan.
func New(p *gateway.Plan) *Rules {
	return &Rules{plan: p, destinations: indexDestinations(p.Destinations), sources: indexSources(p.Sources)}
}

// Of tells which rules translated the source and the destination of an entry;
// nil where it was not translated, or not by this plan. An entry does not tell the
// interfaces: of rules that differ only in these, and give the same, it is the most
// specific one. The references point into the plan.
func (a *Rules) Of(e *conntrack.Entry) (source, destination *gateway.Ref) {
	if e.IsDNAT() {
		if d := a.destination(e); d != nil {
			destination = &d.Rule
		}
	}
	if e.IsSNAT() {
		if s := a.source(e, destination != nil); s != nil {
			source = &s.Rule
		}
	}
	return source, destination
}

// destination is the first entry that matches e and gives what e became.
func (a *Rules) destination(e *conntrack.Entry) *gateway.Destination {
	first := a.destinations.first(e.Orig.Dst, e.Orig.Proto, e.Orig.DstPort, none, func(i int) bool {
		d := &a.plan.Destinations[i]
		return has(d.Port, e.Orig.DstPort) && contains(d.From, e.Orig.Src) && destinationGave(d, e)
	})
	if first == none {
		return nil
	}
	return &a.plan.Destinations[first]
}

func destinationGave(d *gateway.Destination, e *conntrack.Entry) bool {
	if d.Prefix.IsValid() {
		return e.Reply.Src == prefix.Replace(e.Orig.Dst, d.Prefix)
	}
	return e.Reply.Src == d.To.Address && (d.To.Port == 0 || e.Reply.SrcPort == d.To.Port)
}

// source is the first entry that matches e and gives what e became; those of hairpins
// count where a destination of ours was translated.
func (a *Rules) source(e *conntrack.Entry, sentBack bool) *gateway.Source {
	first := a.sources.first(&e.Orig, func(i int) bool {
		s := &a.plan.Sources[i]
		if s.Hairpin.Prefix.IsValid() && !(sentBack && has(s.Hairpin.Port, e.Orig.DstPort)) {
			return false
		}
		return contains(s.From, e.Orig.Src) && !inAny(s.NotTo, e.Reply.Src) && sourceGave(s, e)
	})
	if first == none {
		return nil
	}
	return &a.plan.Sources[first]
}

func sourceGave(s *gateway.Source, e *conntrack.Entry) bool {
	switch to := e.Reply.Dst; {
	case s.Masquerade:
		return true // whichever address the interface had
	case s.Prefix.IsValid():
		return to == prefix.Replace(e.Orig.Src, s.Prefix)
	default:
		return slices.ContainsFunc(s.To, func(r gateway.Range) bool { return r.Contains(to) })
	}
}

// contains reports whether a condition holds for an address: none is any.
func contains(condition []netip.Prefix, a netip.Addr) bool {
	return len(condition) == 0 || inAny(condition, a)
}

func inAny(list []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
}

// has reports whether a port is meant, of the protocol that is.
func has(p gateway.Port, port uint16) bool {
	return p.First == 0 || p.First <= port && port <= max(p.First, p.Last)
}
