package gateway

import (
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/prefix"
)

// Attribution tells which rules made the entries of a connection table. It is made
// once for a plan (Attributor) and asked for each entry: it does not search, so
// that 10,000 rules cost no more than ten.
type Attribution struct {
	plan         *Plan
	destinations portIndex
	sources      sourceIndex
}

// Attributor indexes a plan.
func Attributor(p *Plan) *Attribution {
	return &Attribution{plan: p, destinations: indexDestinations(p.Destinations), sources: indexSources(p.Sources)}
}

// Attribute tells which rules translated the source and the destination of an entry;
// nil where it was not translated, or not by this plan. An entry does not tell the
// interfaces: of rules that differ only in these, and give the same, it is the most
// specific one. The references point into the plan.
func (a *Attribution) Attribute(e *conntrack.Entry) (source, destination *Ref) {
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
func (a *Attribution) destination(e *conntrack.Entry) *Destination {
	first := a.destinations.first(e.Orig.Dst, e.Orig.Proto, e.Orig.DstPort, none, func(i int) bool {
		d := &a.plan.Destinations[i]
		return d.Port.has(e.Orig.DstPort) && contains(d.From, e.Orig.Src) && d.gave(e)
	})
	if first == none {
		return nil
	}
	return &a.plan.Destinations[first]
}

func (d *Destination) gave(e *conntrack.Entry) bool {
	if d.Prefix.IsValid() {
		return e.Reply.Src == prefix.Replace(e.Orig.Dst, d.Prefix)
	}
	return e.Reply.Src == d.To.Address && (d.To.Port == 0 || e.Reply.SrcPort == d.To.Port)
}

// source is the first entry that matches e and gives what e became; those of hairpins
// count where a destination of ours was translated.
func (a *Attribution) source(e *conntrack.Entry, sentBack bool) *Source {
	first := a.sources.first(&e.Orig, func(i int) bool {
		s := &a.plan.Sources[i]
		if s.Hairpin.Prefix.IsValid() && !(sentBack && s.Hairpin.Port.has(e.Orig.DstPort)) {
			return false
		}
		return contains(s.From, e.Orig.Src) && !inAny(s.NotTo, e.Reply.Src) && s.gave(e)
	})
	if first == none {
		return nil
	}
	return &a.plan.Sources[first]
}

func (s *Source) gave(e *conntrack.Entry) bool {
	switch to := e.Reply.Dst; {
	case s.Masquerade:
		return true // whichever address the interface had
	case s.Prefix.IsValid():
		return to == prefix.Replace(e.Orig.Src, s.Prefix)
	default:
		return slices.ContainsFunc(s.To, func(r Range) bool { return r.Contains(to) })
	}
}

// Matches tells whether a protocol and a destination port are meant.
func (p Port) Matches(proto uint8, port uint16) bool {
	if p.Protocol == "" {
		return true
	}
	number, ok := p.Number()
	return ok && number == proto && p.has(port)
}

// has tells whether a port of the protocol is meant.
func (p Port) has(port uint16) bool { return p.First == 0 || p.First <= port && port <= p.last() }

// Contains tells whether a is in r.
func (r Range) Contains(a netip.Addr) bool {
	return a.BitLen() == r.First.BitLen() && r.First.Compare(a) <= 0 && a.Compare(r.Last) <= 0
}

// contains tells whether a condition holds for an address: none is any.
func contains(condition []netip.Prefix, a netip.Addr) bool {
	return len(condition) == 0 || inAny(condition, a)
}

func inAny(list []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
}
