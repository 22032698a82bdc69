package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/prefix"
)

// misses says which conditions of d the packet does not meet; none where it matches.
func (w *walk) misses(d *gateway.Destination) (why []string) {
	if !d.On.Contains(w.asked.addr) {
		why = append(why, fmt.Sprintf("it is for %s", prefix.Text(d.On)))
	}
	if !d.Port.Matches(w.packet.Protocol, w.asked.port) {
		why = append(why, "it is for "+d.Port.String())
	}
	if !contains(d.From, w.src.addr) {
		why = append(why, fmt.Sprintf("it is for clients in %s", prefix.List(d.From)))
	}
	switch local := w.packet.In == ""; {
	case local && !d.Local:
		why = append(why, "it is not for programs on the gateway itself: that would be local: true")
	case !local && !has(d.In, w.packet.In):
		why = append(why, fmt.Sprintf("it is for what comes in by %s%s", strings.Join(d.In, ", "), w.hairpinAdvice(d)))
	}
	return why
}

func (w *walk) hairpinAdvice(d *gateway.Destination) string {
	if w.plan.Inside(w.packet.In) && (d.Rule.Kind == "dnat" || d.Rule.Kind == "static") {
		return "; from inside that would be hairpin: true"
	}
	return ""
}

// sourceMisses is misses of a Source, at the end of the packet's way.
func (w *walk) sourceMisses(s *gateway.Source) (why []string) {
	if s.Hairpin.Prefix.IsValid() {
		why = w.hairpinMisses(&s.Hairpin)
	}
	if s.Rule.BitLen() != w.src.addr.BitLen() {
		return append(why, "it is for the other family")
	}
	if !contains(s.From, w.src.addr) {
		why = append(why, "it is for sources in "+prefix.List(s.From))
	}
	if !has(s.Out, w.e.Out) {
		why = append(why, fmt.Sprintf("it is for what leaves by %s, not by %s", strings.Join(s.Out, ", "), w.e.Out))
	}
	if i := slices.IndexFunc(s.NotTo, func(p netip.Prefix) bool { return p.Contains(w.dst.addr) }); i >= 0 {
		why = append(why, fmt.Sprintf("it leaves what goes to %s alone", prefix.Text(s.NotTo[i])))
	}
	return why
}

func (w *walk) hairpinMisses(h *gateway.HairpinOf) (why []string) {
	if !w.dstTranslated || w.packet.In == "" || !w.plan.Inside(w.packet.In) || !w.plan.Inside(w.e.Out) {
		why = append(why, "it is for what comes from inside and is sent back there")
	}
	if !h.Prefix.Contains(w.packet.Dst) || !h.Port.Matches(w.packet.Protocol, w.packet.DstPort) {
		why = append(why, "it is for connections to "+h.String())
	}
	return why
}

// manyNear bounds the list of near misses.
const manyNear = 5

// nearMisses are the rules about the packet's addresses that do not translate it, those
// first of which the fewest conditions fail.
func (w *walk) nearMisses() {
	if w.e.Untracked {
		return
	}
	all := map[gateway.Ref]*NearMiss{}
	for i := range w.plan.Destinations {
		if d := &w.plan.Destinations[i]; d.On.Contains(w.asked.addr) {
			keep(all, d.Rule, d.Conditions(), w.misses(d), w.e.Destination.Rule)
		}
	}
	for i := range w.plan.Sources {
		s := &w.plan.Sources[i]
		if w.e.Fate == Forwarded && !s.Hairpin.Prefix.IsValid() && s.Rule.BitLen() == w.src.addr.BitLen() && contains(s.From, w.src.addr) {
			keep(all, s.Rule, s.Conditions(), w.sourceMisses(s), w.e.Source.Rule)
		}
	}
	w.e.Near = w.nearest(all)
}

// keep remembers why a rule does not translate; of its entries the nearest one.
func keep(all map[gateway.Ref]*NearMiss, rule gateway.Ref, text string, why []string, winner *gateway.Ref) {
	if winner != nil && *winner == rule {
		return
	}
	if len(why) == 0 && winner != nil {
		why = []string{winner.String() + " is more specific"}
	}
	if old := all[rule]; len(why) > 0 && (old == nil || len(why) < len(old.Why)) {
		all[rule] = &NearMiss{Rule: rule, Text: text, Why: why}
	}
}

func (w *walk) nearest(all map[gateway.Ref]*NearMiss) (near []NearMiss) {
	for ref, miss := range all {
		if !w.acts(ref) {
			near = append(near, *miss)
		}
	}
	slices.SortFunc(near, func(a, b NearMiss) int {
		if d := len(a.Why) - len(b.Why); d != 0 {
			return d
		}
		return a.Rule.Compare(b.Rule)
	})
	if len(near) > manyNear {
		w.e.NearMore = len(near) - manyNear
		near = near[:manyNear]
	}
	return near
}

// acts reports whether a rule does something to the packet, on either side.
func (w *walk) acts(r gateway.Ref) bool {
	for _, g := range []*gateway.Ref{w.e.Source.Rule, w.e.Destination.Rule} {
		if g != nil && *g == r {
			return true
		}
	}
	return false
}

// contains reports whether a condition holds for an address: none is any.
func contains(condition []netip.Prefix, a netip.Addr) bool {
	return len(condition) == 0 || slices.ContainsFunc(condition, func(p netip.Prefix) bool { return p.Contains(a) })
}
