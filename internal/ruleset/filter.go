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
	last := len(j.Drops) - 1
	if last >= 0 && p.Conn&ConnNew != 0 {
		f.AcceptsOthers = j.Drops[last].acceptsOthers(p)
	}
	if !j.Passes && last >= 0 {
		f.Accepts = j.Drops[last].acceptsBelow(p)
		f.AcceptsBefore = j.Drops[last].acceptsUntranslated(p)
	}
	return f
}

// Exempts returns the rule that keeps the tracker from a packet at a hook, so that it is not translated; nil where there
// is none, or where that is not known.
func Exempts(tables []*Table, p *Packet, hook string) *snapshot.RulePlace {
	one := *p // Judge leaves marks
	if by := Judge(tables, &one, hook).Exempts; by != nil {
		return new(by.Recorded())
	}
	return nil
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

// acceptsUntranslated is the rule, of the chain that drops a packet or one that it leads to, which would accept it
// with the destination that it had before its translation.
func (p Place) acceptsUntranslated(packet *Packet) *snapshot.RulePlace {
	if p.Early || packet.Reply || packet.Conn&ConnDNAT == 0 {
		return nil
	}
	before := []Packet{*packet, *packet, *packet}
	before[0].Dst, before[0].DstPort = packet.OriginalDst, packet.OriginalPort
	before[1].Dst, before[2].DstPort = packet.OriginalDst, packet.OriginalPort
	for i := range before {
		only := func(m *Match) bool { return m.meansOnly(&before[i], packet) }
		if found := p.Table.accepting(p.Chain, &before[i], only, map[*Chain]bool{}); found != nil {
			return found
		}
	}
	return nil
}

// acceptsOthers is the rule, of the chain that drops a packet or one that it leads to, that would accept it from
// another source.
func (p Place) acceptsOthers(packet *Packet) *snapshot.RulePlace {
	other := *packet
	other.Src = netip.Addr{}
	if !packet.Dst.IsValid() {
		return nil
	}
	// One that is for sources, and does not surely accept that which it has.
	return p.Table.accepting(p.Chain, &other, func(m *Match) bool {
		own, _ := m.judge(packet)
		return m.names() && own != yes
	}, map[*Chain]bool{})
}

// Accepts is the rule at a hook that surely accepts a packet and is for the interfaces that it comes and goes by, where
// one at hooks before, for interfaces and destinations alone, drops it: what drops sources or ports is meant to come
// first. It is nil where there is none.
func Accepts(tables []*Table, packet *Packet, hook string, before ...string) (found *snapshot.RulePlace) {
	one := *packet // Judge leaves marks
	drops := Judge(tables, &one, before...).Drops
	if len(drops) == 0 || !drops[len(drops)-1].isForNetworks() {
		return nil
	}
	surely := func(m *Match) bool {
		met, _ := m.judge(packet)
		return met == yes && len(m.In) > 0 && len(m.Out) > 0
	}
	for _, t := range tables {
		for _, c := range t.Chains {
			if c.Hook == hook && found == nil && (t.Family == "inet" || (t.Family == "ip") == packet.isIPv4()) {
				found = t.accepting(c, packet, surely, map[*Chain]bool{})
			}
		}
	}
	return found
}

// isForNetworks reports whether a place is a rule for interfaces and destinations alone.
func (p Place) isForNetworks() bool {
	if p.Rule == nil {
		return false
	}
	m := &p.Rule.Match
	return !m.Opaque && !m.Source().IsValid() && len(m.NotFrom)+len(m.Sets)+len(m.Ports)+len(m.SourcePorts) == 0 && len(m.To) > 0
}

// accepting finds a rule from a chain on that a packet may come to, and that accepts what it means.
func (t *Table) accepting(c *Chain, packet *Packet, means func(*Match) bool, seen map[*Chain]bool) *snapshot.RulePlace {
	if c == nil || seen[c] {
		return nil
	}
	seen[c] = true
	for _, r := range c.Rules {
		m := &r.Match
		if met, _ := m.judge(packet); met == no {
			continue
		}
		if r.Target.Kind == Accept && means(m) {
			return new(Place{Table: t, Chain: c, Rule: r}.Recorded())
		}
		for _, name := range r.Target.Chains {
			if found := t.accepting(t.Find(name), packet, means, seen); found != nil {
				return found
			}
		}
	}
	return nil
}

// meansOnly reports whether a match is surely met by a packet with its destination as it was, and by that alone.
func (m *Match) meansOnly(was, now *Packet) bool {
	if m.BeforeNAT || !was.Dst.IsValid() || was.DstPort == 0 || !(was.Dst != now.Dst && len(m.To) > 0 || was.DstPort != now.DstPort && len(m.Ports) > 0) {
		return false
	}
	met, _ := m.judge(was)
	meets, _ := m.judge(now)
	return met == yes && meets == no
}

// Destination returns what rules of type nat make of a packet's destination at a hook; not valid where
// they leave it, or where that is not known. here is the address that they redirect to.
func Destination(tables []*Table, hook string, p *Packet, here netip.Addr) netip.AddrPort {
	w := &translating{packet: p, here: here, steps: mostTranslating}
	for _, c := range natChains(tables, hook, p) {
		if w.table = c.Table; w.ends(c.Chain) {
			break
		}
	}
	return w.to
}

// natChains are the base chains that translate at a hook, in their order.
func natChains(tables []*Table, hook string, p *Packet) (chains []atHook) {
	for _, t := range tables {
		for _, c := range t.Chains {
			if c.Hook == hook && c.Type == "nat" && (t.Family == "inet" || (t.Family == "ip") == p.isIPv4()) {
				chains = append(chains, atHook{t, c})
			}
		}
	}
	slices.SortStableFunc(chains, func(a, b atHook) int { return cmp.Compare(a.Priority, b.Priority) })
	return chains
}

// Source returns the rule of type nat that translates a packet's source as it leaves, or that which spares it
// from one below; none where there is none, or where that is not known.
func Source(tables []*Table, p *Packet) (by, spared *snapshot.RulePlace) {
	w := &translating{packet: p, source: true, steps: mostTranslating}
	for _, c := range natChains(tables, "postrouting", p) {
		if w.table = c.Table; !w.ends(c.Chain) {
			continue
		}
		if k := w.rule.Kind(); k == Accept {
			continue
		} else if k == Masquerade || k == SNAT || k == Netmap {
			return new(w.rule.Recorded()), nil
		}
		return nil, nil
	}
	if w.spared.Rule != nil {
		spared = new(w.spared.Recorded())
	}
	return nil, spared
}

// Kind is what the rule does; empty of the policy of a chain.
func (p Place) Kind() Kind {
	if p.Rule == nil {
		return ""
	}
	return p.Rule.Target.Kind
}

// spares notes a rule that ends the way of the packet through a chain, where it is for such packets and one
// below would translate the source.
func (w *translating) spares(c *Chain, at int) {
	m := &c.Rules[at].Match
	if !w.source || len(m.To)+len(m.From)+len(m.Ports)+len(m.In)+len(m.Out)+len(m.Sets) == 0 {
		return
	}
	for _, r := range c.Rules[at+1:] {
		if met, _ := r.Match.judge(w.packet); met == yes && (r.Target.Kind == Masquerade || r.Target.Kind == SNAT) {
			w.spared = Place{Table: w.table, Chain: c, Rule: c.Rules[at]}
			return
		}
	}
}

// excepts notes a rule that would translate the source, were it not for the addresses that it leaves out.
func (w *translating) excepts(c *Chain, r *Rule) {
	if k := r.Target.Kind; !w.source || k != Masquerade && k != SNAT || len(r.Match.NotTo)+len(r.Match.NotFrom) == 0 {
		return
	}
	all := r.Match
	all.NotTo, all.NotFrom = nil, nil
	if met, _ := all.judge(w.packet); met == yes && w.spared.Rule == nil {
		w.spared = Place{Table: w.table, Chain: c, Rule: r}
	}
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
	// source is true where the source is asked about: rule is then the one that ended the way, spared one
	// that keeps the packet from a translation.
	source       bool
	rule, spared Place
}

// ends reports whether the way of the packet ends in a chain, or may.
func (w *translating) ends(c *Chain) bool {
	if c == nil {
		return false
	}
	for i, r := range c.Rules {
		if w.steps--; w.steps < 0 {
			return true
		}
		met, _ := r.Match.judge(w.packet)
		jumps := r.Target.Kind == Jump || r.Target.Kind == Goto
		switch {
		case met == no:
			w.excepts(c, r)
		case r.Target.Kind == Pass:
		case met == maybe && !(w.source && jumps): // what left untranslated is taken to meet a jump's condition
			return true
		case jumps:
			if slices.ContainsFunc(r.Target.Chains, func(name string) bool { return w.ends(w.table.Find(name)) }) {
				return true
			}
			if r.Target.Kind == Goto {
				return false
			}
		case r.Target.Kind == Return:
			w.spares(c, i)
			return false
		default:
			if w.rule = (Place{Table: w.table, Chain: c, Rule: r}); r.Target.Kind == Accept {
				w.spares(c, i)
			}
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
