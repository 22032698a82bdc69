package ruleset

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/snapshot"
)

// mostDrops bounds the places that may drop a packet.
const mostDrops = 8

// Filter judges a packet at hooks, one after the other.
func Filter(tables []*Table, p *Packet, hooks ...string) *snapshot.Filter {
	j := Judge(tables, p, hooks...)
	f := &snapshot.Filter{Passes: j.Passes}
	for _, d := range j.Drops[:min(len(j.Drops), mostDrops)] {
		f.Drops = append(f.Drops, d.Recorded())
	}
	if last := len(j.Drops) - 1; !j.Passes && last >= 0 {
		f.Accepts = j.Drops[last].acceptsBelow(p)
	}
	return f
}

// acceptsBelow is the rule for such packets that would accept one, had the place not dropped it.
func (p Place) acceptsBelow(packet *Packet) *snapshot.RulePlace {
	at := slices.Index(p.Chain.Rules, p.Rule)
	if p.Rule == nil || at < 0 {
		return nil
	}
	for _, r := range p.Chain.Rules[at+1:] {
		m := &r.Match
		if sure, _ := m.judge(packet); sure == yes && r.Target.Kind == Accept && len(m.Ports)+len(m.To)+len(m.From)+len(m.In)+len(m.Out) > 0 {
			place := Place{Table: p.Table, Chain: p.Chain, Rule: r}.Recorded()
			return &place
		}
	}
	return nil
}

// Destination returns what rules of type nat make of a packet's destination at a hook; not valid where
// they leave it, or where that is not known. here is the address that they redirect to.
func Destination(tables []*Table, hook string, p *Packet, here netip.Addr) netip.AddrPort {
	type base struct {
		*Table
		*Chain
	}
	var chains []base
	for _, t := range tables {
		for _, c := range t.Chains {
			if c.Hook == hook && c.Type == "nat" && (t.Family == "inet" || (t.Family == "ip") == p.isIPv4()) {
				chains = append(chains, base{t, c})
			}
		}
	}
	slices.SortStableFunc(chains, func(a, b base) int { return cmp.Compare(a.Priority, b.Priority) })
	w := &translating{packet: p, here: here, steps: mostTranslating}
	for _, c := range chains {
		if w.table = c.Table; w.ends(c.Chain) {
			break
		}
	}
	return w.to
}

// mostTranslating bounds the rules that Destination asks.
const mostTranslating = 100_000

// translating takes a packet through chains of type nat.
type translating struct {
	table  *Table
	packet *Packet
	here   netip.Addr
	to     netip.AddrPort
	steps  int
}

// ends reports whether the way of the packet ends in a chain, or may.
func (w *translating) ends(c *Chain) bool {
	if c == nil {
		return false
	}
	for _, r := range c.Rules {
		if w.steps--; w.steps < 0 {
			return true
		}
		switch met, _ := r.Match.judge(w.packet); {
		case met == no:
		case r.Target.Kind == Pass:
		case met == maybe:
			return true
		case r.Target.Kind == Jump || r.Target.Kind == Goto:
			if slices.ContainsFunc(r.Target.Chains, func(name string) bool { return w.ends(w.table.Find(name)) }) {
				return true
			}
			if r.Target.Kind == Goto {
				return false
			}
		case r.Target.Kind == Return:
			return false
		default:
			w.take(&r.Target)
			return true
		}
	}
	return false
}

// take notes the destination that a target gives.
func (w *translating) take(t *Target) {
	to := t.First
	switch {
	case t.AddrsVary || t.PortsVary || t.First != t.Last:
		return
	case t.Kind == Redirect:
		to = w.here
	case t.Kind != DNAT:
		return
	}
	port := w.packet.DstPort
	if t.Ports.First != 0 {
		if port = t.Ports.First; t.Ports.First != t.Ports.Last {
			return
		}
	}
	if to.IsValid() {
		w.to = netip.AddrPortFrom(to, port)
	}
}
