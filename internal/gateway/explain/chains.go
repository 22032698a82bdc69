package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/prefix"
)

// track is the tracker's place (nf_conntrack_in).
func (w *walk) track(s *Step) {
	s.Does = "conntrack: a new connection; its first packet alone asks the nat chains"
	if w.e.Untracked {
		s.Does = "conntrack: not tracked; no nat chain is asked"
	}
}

// raw is what is done before the tracker sees the packet. A stateless pair needs no
// tracker: it translates what is not tracked for another reason too.
func (w *walk) raw(s *Step) {
	s.Does = "no rule is for it: it is tracked"
	for i := range w.plan.Untracked {
		if u := &w.plan.Untracked[i]; concerns(u, w.packet) {
			w.e.Untracked, s.Rule, s.Does = true, &u.Rule, "not tracked"
			break
		}
	}
	if w.reflected(s) {
		return
	}
	for i := range w.plan.Stateless {
		if w.statelessIn(&w.plan.Stateless[i], s) {
			return
		}
	}
}

// reflected reports whether the packet goes back inside without state.
func (w *walk) reflected(s *Step) bool {
	out, in := w.reflector(func(p *gateway.Pair) bool { return p.Inside.Contains(w.src.addr) }),
		w.reflector(func(p *gateway.Pair) bool { return p.Outside.Contains(w.dst.addr) })
	if out == nil || in == nil || w.packet.In == "" {
		return false
	}
	if !w.becomes(&w.src, out.Outward(w.src.addr), out, s) || !w.becomes(&w.dst, in.Inward(w.dst.addr), in, s) {
		return true
	}
	w.e.Source, w.e.Destination = as(w.src), as(w.dst)
	w.e.Source.Rule, w.e.Destination.Rule = &out.Rule, &in.Rule
	w.e.Untracked = true
	s.Does = fmt.Sprintf("not tracked; the source becomes %s, the destination %s, packet by packet", w.src, w.dst)
	return true
}

// becomes gives one end the address that a pair has for it. Where it has none the packet
// is dropped (RFC 6296, section 3.5).
func (w *walk) becomes(end *endpoint, a netip.Addr, p *gateway.Pair, s *Step) bool {
	s.Rule = &p.Rule
	if !a.IsValid() {
		w.e.Fate, w.e.Untracked = Dropped, true
		s.Does = fmt.Sprintf("dropped: the last 64 bits of %s are all ones, and no word of them could keep its checksums right", end.addr)
		return false
	}
	end.addr = a
	return true
}

// reflector is the first pair that reflects, not for the interface by which the packet
// comes in, and is for it.
func (w *walk) reflector(is func(*gateway.Pair) bool) *gateway.Pair {
	i := slices.IndexFunc(w.plan.Stateless, func(p gateway.Pair) bool {
		return p.Reflects() && !slices.Contains(p.Out, w.packet.In) && is(&p)
	})
	if i < 0 {
		return nil
	}
	return &w.plan.Stateless[i]
}

func concerns(u *gateway.Untracked, p Packet) bool {
	return u.On == p.Dst && u.Port.Matches(p.Protocol, p.DstPort) ||
		u.On == p.Src && u.Port.Matches(p.Protocol, p.SrcPort)
}

// statelessIn reports whether a pair is for a packet that comes in, from either side.
func (w *walk) statelessIn(p *gateway.Pair, s *Step) bool {
	switch {
	case p.Outside.Contains(w.dst.addr) && w.packet.In != "" && has(p.Out, w.packet.In):
		if !w.becomes(&w.dst, p.Inward(w.dst.addr), p, s) {
			return true
		}
		s.Does = fmt.Sprintf("not tracked; the destination becomes %s, packet by packet", w.dst)
		w.e.Destination = as(w.dst)
		w.e.Destination.Rule = &p.Rule
	case p.Inside.Contains(w.src.addr) && w.leavesBy(p.Out):
		s.Does = "not tracked"
	default:
		return false
	}
	w.e.Untracked, s.Rule = true, &p.Rule
	return true
}

// leavesBy reports whether a route leads by one of the interfaces, before it is asked for
// the packet: the rules in raw look at the destination alone.
func (w *walk) leavesBy(out []string) bool {
	hop, err := w.route(Lookup{Destination: w.dst.addr})
	if err != nil {
		w.err = err
	}
	return !hop.Local && hop.Unreachable == "" && has(out, hop.Out)
}

// has reports whether a condition on interfaces holds: none is any.
func has(names []string, name string) bool { return len(names) == 0 || slices.Contains(names, name) }

func (w *walk) destination(s *Step) {
	if w.e.Untracked {
		return
	}
	if w.dstDone {
		s.Does = "not asked: the destination is translated already"
		return
	}
	w.asked = w.dst
	for i := range w.plan.Destinations {
		if d := &w.plan.Destinations[i]; len(w.misses(d)) == 0 {
			w.translateDestination(d, s)
			return
		}
	}
	s.Does = fmt.Sprintf("no rule is for %s: it stays", w.dst)
}

func (w *walk) translateDestination(d *gateway.Destination, s *Step) {
	before := w.dst
	switch {
	case d.Prefix.IsValid():
		w.dst.addr = prefix.Replace(w.dst.addr, d.Prefix)
	default:
		w.dst.addr = d.To.Address
		if d.To.Port != 0 {
			w.dst.port = d.To.Port
		}
	}
	w.dstDone, w.dstTranslated = true, w.dst != before
	w.e.Destination = as(w.dst)
	w.e.Destination.Rule, s.Rule = &d.Rule, &d.Rule
	s.Does = fmt.Sprintf("the destination becomes %s", w.dst)
}

func (w *walk) mss(s *Step) {
	s.Does = "MSS of the SYN is at most what the route's MTU takes"
	if w.plan.MSS.Bytes > 0 {
		s.Does = fmt.Sprintf("MSS of the SYN is at most %d bytes", w.plan.MSS.Bytes)
	}
}

// forward is the chain of limits and of the fast path.
func (w *walk) forward(s *Step) {
	var does []string
	if n := w.plan.ConnectionsPerSource; n > 0 && w.plan.Inside(w.packet.In) && !w.e.Untracked {
		does = append(does, fmt.Sprintf("dropped if %s has %d connections already", w.packet.Src, n))
	}
	if slices.Contains(w.plan.Flowtable, w.packet.In) && slices.Contains(w.plan.Flowtable, w.e.Out) && !w.e.Untracked {
		does = append(does, "once answered, the connection goes by the flowtable and comes to no hook after ingress")
	}
	s.Does = strings.Join(does, " · ")
}

// untranslatable is the chain that drops what is invalid to the tracker and a rule would
// have had to translate. Had the destination been translated, an invalid packet would
// have gone elsewhere.
func (w *walk) untranslatable(s *Step) {
	if w.e.Untracked || w.dstTranslated {
		return
	}
	for i := range w.plan.Sources {
		if r := &w.plan.Sources[i]; !r.Hairpin.Prefix.IsValid() && len(w.sourceMisses(r)) == 0 {
			s.Does = fmt.Sprintf("passes; dropped if it were invalid to conntrack, as %s could not translate it", r.Rule)
			return
		}
	}
}

func (w *walk) statelessSource(s *Step) {
	for i := range w.plan.Stateless {
		p := &w.plan.Stateless[i]
		if p.Inside.Contains(w.src.addr) && has(p.Out, w.e.Out) && w.e.Untracked {
			if !w.becomes(&w.src, p.Outward(w.src.addr), p, s) {
				return
			}
			w.e.Source = as(w.src)
			w.e.Source.Rule = &p.Rule
			s.Does = fmt.Sprintf("the source becomes %s, packet by packet", w.src)
			return
		}
	}
}

func (w *walk) source(s *Step) {
	switch {
	case w.e.Untracked:
		return
	case w.srcDone:
		s.Does = "not asked: the source is translated already"
		return
	}
	for i := range w.plan.Sources {
		if r := &w.plan.Sources[i]; len(w.sourceMisses(r)) == 0 {
			w.e.Source, w.srcDone = w.give(r), true
			w.e.Source.Rule, s.Rule = &r.Rule, &r.Rule
			s.Does = "the source becomes " + w.words(w.e.Source, r)
			return
		}
	}
	s.Does = fmt.Sprintf("no rule is for what %s sends by %s: the source stays", w.packet.Src, w.e.Out)
}
