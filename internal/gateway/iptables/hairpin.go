package iptables

import (
	"fmt"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/gateway"
)

// hairpinOf is what isHairpinOf finds, once for each entry.
func (t *translator) hairpinOf(h *entry) *entry {
	d, known := t.hairpins[h]
	if !known {
		d = t.isHairpinOf(h)
		t.hairpins[h] = d
	}
	return d
}

// isHairpinOf is the DNAT that a rule about sources belongs to: that one gives hosts of a
// network, whom the DNAT sends back to a host of the same network, another address, as
// answers would not pass the gateway otherwise. nil where it is no such rule.
func (t *translator) isHairpinOf(h *entry) *entry {
	m, kind := &h.match, h.rule.Target.Kind
	if h.hook != "postrouting" || kind != SNAT && kind != Masquerade ||
		!m.From.IsValid() || !m.To.IsValid() || !m.To.IsSingleIP() || !m.From.Contains(m.To.Addr()) {
		return nil
	}
	i := slices.IndexFunc(t.entries, func(d *entry) bool {
		g := &d.rule.Target
		return d.hook == "prerouting" && d.owner == "" && g.Kind == DNAT && d.match.To.IsValid() &&
			g.First == m.To.Addr() && g.First == g.Last && d.match.Protocol == m.Protocol && slices.Equal(d.portsAfter(), m.Ports)
	})
	if i < 0 {
		return nil
	}
	return t.entries[i]
}

// portsAfter are the destination's ports as a DNAT leaves them.
func (e *entry) portsAfter() []Ports {
	if g := &e.rule.Target; !g.keepsPorts(&e.match) {
		return []Ports{g.Ports}
	}
	return e.match.Ports
}

// expressHairpin says why such a rule is not "hairpin: on" of its DNAT.
func (t *translator) expressHairpin(h, d *entry) string {
	m, g, outside := h.match, &h.rule.Target, d.match.To.Addr()
	const word = "gives hosts inside another source where %s sends them back inside; natkit's word for that is \"hairpin: on\" of a dnat, "
	begin := fmt.Sprintf(word, where(d.rule))
	switch {
	case g.Kind == Masquerade || g.First != outside || g.Last != outside:
		return begin + "by which they are seen under " + outside.String()
	case d.match.In != "" || d.match.From.IsValid() || len(d.match.Ports) > 1:
		return begin + "for one that is on an address and a port for whatever comes"
	case m.Out == "" || strings.HasSuffix(m.Out, "*") || m.Out == t.wan:
		return begin + "for which the file has to say which interface leads inside (interfaces: {lan: eth1}), as this rule does not (-o)"
	case t.lan != "" && t.lan != m.Out:
		return begin + "between whatever interfaces lead inside, here " + t.lan + " and " + m.Out
	case g.Ports != Ports{} || g.Random || g.RandomFully || len(h.except) > 0:
		return begin + "without ports, options and exceptions"
	case slices.ContainsFunc(t.entries, func(x *entry) bool { return x.givesAnother(h) && t.hairpinOf(x) == nil }):
		return begin + "but hosts with a snat, static or netmap are seen under the address that those give"
	}
	if condition := wordless(&m, "from to protocol out "); condition != "" {
		return noWord + condition
	}
	t.lan = m.Out
	return ""
}

// givesAnother reports whether an entry gives some of the hosts of h an address of its own.
func (e *entry) givesAnother(h *entry) bool {
	k := e.rule.Target.Kind
	return e.hook == "postrouting" && e.version == h.version && e.owner == "" && (k == SNAT || k == Netmap)
}

// addHairpin makes the rule about a destination one for hosts inside too, where a later
// entry gives those the address that they asked for. What differs then becomes a note.
func (t *translator) addHairpin(m *made, later []*entry) {
	d := m.from[0]
	i := slices.IndexFunc(later, func(h *entry) bool { return t.hairpinOf(h) == d })
	if i < 0 {
		return
	}
	h, r, on := later[i], m.rule.DNAT, d.match.To
	r.Hairpin = true
	m.from = append(m.from, h)
	m.parts = append(m.parts, part{of: h, match: h.match, source: &gateway.Source{
		Hairpin: gateway.HairpinOf{Prefix: on, Port: r.Port}, To: []gateway.Range{{First: on.Addr(), Last: on.Addr()}}}})
	t.notes[h] = Note{Line: h.rule.Line, Text: h.rule.Text, Kind: Differs, Rules: 1, Reason: fmt.Sprintf(
		"becomes hairpin: on: that is for what comes back by %s, whether from %s or not, and not for what asks for %s itself",
		h.match.Out, h.match.From, h.match.To.Addr())}
}
