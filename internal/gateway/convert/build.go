package convert

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/ruleset"
)

// made is a rule of the file, and what it stands for.
type made struct {
	version int
	rule    gateway.Rule
	from    []*entry
	// parts are the entries of a plan that Compile is to make of it.
	parts []part
}

// part is one entry of a plan as it has to be.
type part struct {
	of    *entry
	match ruleset.Match
	want  gateway.Entry
	// at is where the plan has it.
	at int
}

// add adds a part that is about all packets of an entry.
func (m *made) add(e *entry, want gateway.Entry) {
	m.parts = append(m.parts, part{of: e, match: e.Match, want: want})
}

// build makes rules of the entries, pairs first.
func (t *translator) build(open []*entry) {
	for _, version := range []int{4, 6} {
		later := slices.DeleteFunc(slices.Clone(open), func(x *entry) bool { return x.version != version })
		for len(later) > 0 {
			e := later[0]
			later = later[1:]
			m := &made{version: version}
			if reason := t.make(m, e, later); reason != "" {
				t.refused[e], t.again = reason, true // what comes after it has to be judged anew
				continue
			}
			if m.rule == (gateway.Rule{}) { // mss is no rule
				continue
			}
			later = slices.DeleteFunc(later, func(x *entry) bool { return slices.Contains(m.from, x) })
			t.rules = append(t.rules, m.spread()...)
		}
	}
	slices.SortStableFunc(t.rules, func(a, b made) int { return cmp.Compare(firstLine(a), firstLine(b)) })
}

func firstLine(m made) int {
	return slices.MinFunc(m.from, func(a, b *entry) int { return cmp.Compare(a.Rule.Line, b.Rule.Line) }).Rule.Line
}

// make makes one rule of an entry and, if that is one of several that belong together, of
// those, which come later.
func (t *translator) make(m *made, e *entry, later []*entry) (reason string) {
	switch kind := e.Rule.Target.Kind; {
	case kind == ruleset.MSS:
		return t.takeMSS(e)
	case kind == ruleset.Notrack:
		return m.notrack(e, later)
	case kind == ruleset.Netmap:
		return m.netmap(e, later)
	case t.static(m, e, later):
		return ""
	case kind == ruleset.DNAT:
		return t.destination(m, e, later)
	}
	if d := t.hairpinOf(e); d != nil {
		return "belongs to " + where(d.Rule) + ", which is not translated"
	}
	m.source(e)
	return ""
}

func (t *translator) takeMSS(e *entry) string {
	if len(t.mss) > 0 {
		first := t.mss[0].Rule.Target
		if first.Clamp != e.Rule.Target.Clamp || first.Bytes != e.Rule.Target.Bytes {
			return "the file has one mss, and " + where(t.mss[0].Rule) + " has another"
		}
	}
	t.mss = append(t.mss, e)
	return ""
}

// directed returns the rule about sources and the one about destinations of a pair on the
// same interface; false if they are none.
func directed(a, b *entry) (out, in *entry, ok bool) {
	if a.hook == "prerouting" {
		a, b = b, a
	}
	return a, b, a.hook == "postrouting" && b.hook == "prerouting" && a.Match.OutName() == b.Match.InName()
}

// inward is the entry of a plan about the destinations of a rule.
func inward(in *entry, a nat.Action) gateway.Entry {
	return gateway.Entry{Match: nat.Match{To: ruleset.Some(in.Match.Dest()), From: ruleset.Some(in.Match.Source()), In: in.Match.In}, Action: a}
}

// netmap is of two rules that take back what the other does.
func (m *made) netmap(e *entry, later []*entry) string {
	for _, x := range later {
		out, in, ok := directed(e, x)
		if !ok || x.Rule.Target.Kind != ruleset.Netmap || out.Match.Source() != in.Rule.Target.Prefix() || in.Match.Dest() != out.Rule.Target.Prefix() {
			continue
		}
		inside, outside := out.Match.Source(), in.Match.Dest()
		m.from = []*entry{e, x}
		m.rule.Netmap = &gateway.Netmap{Inside: gateway.Prefix{Prefix: inside}, Outside: gateway.Prefix{Prefix: outside}}
		m.add(in, inward(in, nat.Action{Kind: nat.DNAT, Prefix: inside}))
		m.add(out, gateway.Entry{Match: nat.Match{From: out.Match.From, Out: out.Match.Out}, Action: nat.Action{Kind: nat.SNAT, Prefix: outside}})
		return ""
	}
	return "is for one direction; natkit's netmap is for both, with NETMAP in PREROUTING and in POSTROUTING"
}

// static is of a SNAT and a DNAT of one address for one.
func (t *translator) static(m *made, e *entry, later []*entry) bool {
	if t.apart[e] || !wholeHost(e) {
		return false
	}
	for _, x := range later {
		out, in, ok := directed(e, x)
		if !ok || t.apart[x] || !wholeHost(x) || out.Match.Source().Addr() != in.Rule.Target.First || in.Match.Dest().Addr() != out.Rule.Target.First {
			continue
		}
		inside, outside := out.Match.Source().Addr(), in.Match.Dest().Addr()
		r := &gateway.Static{Inside: gateway.Address{Addr: inside}, Outside: gateway.Address{Addr: outside}}
		m.from, m.rule.Static = []*entry{e, x}, r
		d := inward(in, nat.Action{Kind: nat.DNAT, Backends: []nat.Backend{{Address: inside}}})
		if twin := localTwin(in, later); twin != nil {
			r.Local, d.Local = true, true
			m.from = append(m.from, twin)
		}
		m.add(in, d)
		m.add(out, sourceOf(out))
		return true
	}
	return false
}

// wholeHost reports whether an entry is about all that one host sends, or gets.
func wholeHost(e *entry) bool {
	m, g := &e.Match, &e.Rule.Target
	if g.Ports != (nat.Ports{}) || !g.First.IsValid() || g.First != g.Last || g.Random || g.FullyRandom || m.Protocol != 0 {
		return false
	}
	switch e.hook {
	case "postrouting":
		except, _ := e.exceptTo()
		return g.Kind == ruleset.SNAT && m.Source().IsValid() && m.Source().IsSingleIP() && len(except) == 0
	case "prerouting":
		return g.Kind == ruleset.DNAT && !m.Source().IsValid()
	}
	return false
}

// localTwin is the same rule in OUTPUT.
func localTwin(e *entry, later []*entry) *entry {
	i := slices.IndexFunc(later, func(x *entry) bool {
		a, b := &x.Match, &e.Match
		return x.hook == "output" && sameTarget(&x.Rule.Target, &e.Rule.Target) &&
			a.Source() == b.Source() && a.Dest() == b.Dest() && a.Protocol == b.Protocol && slices.Equal(a.Ports, b.Ports)
	})
	if i < 0 {
		return nil
	}
	return later[i]
}

func sameTarget(a, b *ruleset.Target) bool {
	return a.Kind == b.Kind && a.First == b.First && a.Last == b.Last && a.Ports == b.Ports
}

// sourceOf is what a plan has for a MASQUERADE or SNAT.
func sourceOf(e *entry) gateway.Entry {
	g := &e.Rule.Target
	s := gateway.Entry{Match: nat.Match{From: ruleset.Some(e.Match.Source()), Out: e.Match.Out},
		Action: nat.Action{Kind: nat.SNAT, Random: nat.Random(randomOf(g)), Persistent: g.Persistent && g.First != g.Last}}
	if g.Kind == ruleset.Masquerade {
		s.Action.Kind = nat.Masquerade
	}
	s.NotTo, _ = e.exceptTo()
	if len(s.From) == 0 {
		s.From = []netip.Prefix{nat.Anywhere(map[int]int{4: 32, 6: 128}[e.version])}
	}
	if g.First.IsValid() {
		s.Action.To = nat.AddrRanges{{First: g.First, Last: g.Last}}
	}
	return s
}

func randomOf(g *ruleset.Target) gateway.Random {
	switch {
	case g.FullyRandom:
		return gateway.RandomFully
	case g.Random:
		return gateway.RandomPorts
	}
	return ""
}

func (m *made) source(e *entry) {
	s, g := sourceOf(e), &e.Rule.Target
	conditions := gateway.Sources{From: prefixesOf(ruleset.Some(e.Match.Source())), ExceptTo: prefixesOf(s.NotTo), Out: s.Out}
	choice := gateway.Choice{Random: randomOf(g)}
	m.from = []*entry{e}
	m.add(e, s)
	if g.Kind == ruleset.Masquerade {
		m.rule.Masquerade = &gateway.Masquerade{Sources: conditions, Choice: choice}
		return
	}
	m.rule.SNAT = &gateway.SNAT{Sources: conditions, To: gateway.Ranges(s.Action.To), Choice: choice}
	if !s.Action.Persistent && g.First != g.Last { // which is what --persistent changes
		m.rule.SNAT.Persistent = new(gateway.Switch(false))
	}
}

func prefixesOf(list []netip.Prefix) (all gateway.Prefixes) {
	for _, p := range list {
		all = append(all, gateway.Prefix{Prefix: p})
	}
	return all
}

// destination makes a dnat for all ports, which spread parts.
func (t *translator) destination(m *made, e *entry, later []*entry) string {
	if e.hook == "output" {
		return "is for this host's own programs alone; natkit's \"local: on\" is for them too, with the same rule in PREROUTING"
	}
	g := &e.Rule.Target
	r := &gateway.DNAT{On: gateway.On{Address: e.Match.Dest().Addr()}, From: prefixesOf(ruleset.Some(e.Match.Source())), To: gateway.Backends{{Address: g.First}}}
	if !keepsPorts(g, &e.Match) || len(e.Match.Ports) == 1 && g.Ports.First == g.Ports.Last {
		r.To[0].Port = g.Ports.First
	}
	m.from, m.rule.DNAT = []*entry{e}, r
	if e.Match.Protocol != 0 {
		r.Port = gateway.Services{{Protocol: nat.ProtocolName(e.Match.Protocol)}}
	}
	d := inward(e, nat.Action{Kind: nat.DNAT, Backends: r.To})
	twin := localTwin(e, later)
	r.Local, d.Local = twin != nil, twin != nil
	m.add(e, d)
	if twin != nil {
		m.from = append(m.from, twin)
	}
	t.hairpin(m, later)
	return ""
}

// hairpin makes the rule about a destination one for hosts inside too, where a later
// entry gives those the address that they asked for. What differs then becomes a note.
func (t *translator) hairpin(m *made, later []*entry) {
	d := m.from[0]
	i := slices.IndexFunc(later, func(h *entry) bool { return t.hairpinOf(h) == d })
	if i < 0 {
		return
	}
	h, on := later[i], d.Match.Dest()
	m.rule.DNAT.Hairpin = true
	m.from = append(m.from, h)
	m.add(h, gateway.Entry{Match: nat.Match{Original: ruleset.Some(on)}, Action: nat.Action{Kind: nat.SNAT, To: nat.AddrRanges{nat.OneAddr(on.Addr())}}})
	t.note(h, ruleset.Differs, fmt.Sprintf("becomes hairpin: on: that is for what comes back by %s, whether from %s or not, and not for what asks for %s itself",
		h.Match.OutName(), h.Match.Source(), h.Match.Dest().Addr()))
}

// protocolName is the name that a file has for a protocol; empty for all.
func protocolName(protocol uint8) string {
	if protocol == 0 {
		return ""
	}
	return nat.ProtocolName(protocol)
}

// spread makes a rule for each of several ports of a dnat.
func (m *made) spread() (all []made) {
	if m.rule.DNAT == nil {
		return []made{*m}
	}
	ports := m.from[0].Match.Ports
	if len(ports) == 0 {
		ports = []nat.Ports{{}}
	}
	for _, p := range ports {
		r := *m.rule.DNAT
		service := gateway.Port{}
		if len(r.Port) > 0 {
			service = r.Port[0]
			if p != nat.AllPorts {
				service.First, service.Last = p.First, p.Last
			}
			r.Port = gateway.Services{service}
		}
		one := made{version: m.version, rule: gateway.Rule{DNAT: &r}, from: m.from, parts: slices.Clone(m.parts)}
		protocol, ports := service.Service()
		for i := range one.parts {
			d := &one.parts[i]
			if d.want.Protocol = protocol; len(d.want.Original) > 0 { // a hairpin's
				d.want.OriginalPorts = ports
			} else {
				d.want.Ports, d.match.Ports = ports, ports
			}
		}
		all = append(all, one)
	}
	return all
}

// perPort is an entry for each of the ports of a rule that keeps the tracker off, as a
// rule of the file has one range.
func (e *entry) perPort() []*entry {
	ports := slices.Concat(e.Match.Ports, e.Match.SourcePorts)
	if e.Rule.Target.Kind != ruleset.Notrack || len(ports) < 2 || len(e.Match.Ports)*len(e.Match.SourcePorts) > 0 {
		return []*entry{e}
	}
	var all []*entry
	for _, p := range ports {
		part, one := *e.Entry, *e
		one.Entry = &part
		if len(e.Match.Ports) > 0 {
			one.Match.Ports = []nat.Ports{p}
		} else {
			one.Match.SourcePorts = []nat.Ports{p}
		}
		all = append(all, &one)
	}
	return all
}

// untracked is the address and the ports that such an entry is about, and whether that
// is what comes for them.
func (e *entry) untracked() (on netip.Addr, port gateway.Port, to bool) {
	m := &e.Match
	on, list, to := m.Source().Addr(), m.SourcePorts, m.Dest().IsValid()
	if to {
		on, list = m.Dest().Addr(), m.Ports
	}
	port.Protocol = protocolName(m.Protocol)
	if len(list) == 1 && list[0] != nat.AllPorts {
		port.First, port.Last = list[0].First, list[0].Last
	}
	return on, port, to
}

// notrack requires both directions: what the address gets, and what it sends.
func (m *made) notrack(e *entry, later []*entry) string {
	on, port, _ := e.untracked()
	m.rule.Notrack = &gateway.Notrack{On: gateway.Address{Addr: on}, Port: port}
	gets, sends := false, false
	for _, x := range append([]*entry{e}, later...) {
		if x.Rule.Target.Kind != ruleset.Notrack {
			continue
		}
		if a, p, to := x.untracked(); a == on && p == port {
			m.from = append(m.from, x)
			gets, sends = gets || to && x.hook == "prerouting", sends || !to
		}
	}
	if !gets || !sends {
		return "is for one direction; natkit's notrack is for what the address gets and for what it sends"
	}
	return ""
}

// config is the file with all rules, in their order.
func (t *translator) config() gateway.Config {
	var c gateway.Config
	for _, m := range t.rules {
		if m.version == 4 {
			c.NAT = append(c.NAT, m.rule)
		} else {
			c.IPv6 = append(c.IPv6, m.rule)
		}
	}
	// A dnat, static or netmap means another thing without a wan interface.
	if t.wan != "" && slices.ContainsFunc(t.rules, func(m made) bool {
		return m.rule.DNAT != nil || m.rule.Static != nil || m.rule.Netmap != nil || leavesBy(m, gateway.RoleWAN)
	}) {
		c.Interfaces.WAN = gateway.WANs{{Interface: t.wan}}
	}
	if slices.ContainsFunc(t.rules, func(m made) bool { return leavesBy(m, gateway.RoleLAN) }) {
		c.Interfaces.LAN = gateway.Names{gateway.RoleLAN} // an interface of that name
	}
	if t.lan != "" && slices.ContainsFunc(t.rules, func(m made) bool { return m.rule.DNAT != nil && bool(m.rule.DNAT.Hairpin) }) {
		c.Interfaces.LAN = gateway.Names{t.lan}
	}
	if len(t.mss) > 0 {
		g := t.mss[0].Rule.Target
		c.MSS = gateway.MSS{Clamp: g.Clamp, Bytes: g.Bytes}
	}
	return c
}

// leavesBy reports whether a rule is for connections that leave by that interface.
func leavesBy(m made, name string) bool {
	return slices.ContainsFunc(m.from, func(e *entry) bool { return e.Match.OutName() == name })
}
