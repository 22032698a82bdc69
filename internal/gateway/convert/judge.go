package convert

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/ruleset"
)

// judge says what is to become of an entry instead of a rule of the file; kind is
// empty where it can be one.
func (t *translator) judge(i int) (kind, reason string) {
	e := t.entries[i]
	if left, reason := e.leftAlone(); left {
		return ruleset.LeftAlone, reason
	}
	switch {
	case e.Rule.Target.Kind == ruleset.Drop:
		return ruleset.Untranslated, "drops packets; natkit translates them, and leaves it to a firewall to drop some"
	case t.refused[e] != "":
		return ruleset.Untranslated, t.refused[e]
	}
	if by := t.coveredBy(i); by != nil {
		return ruleset.Unreachable, where(by) + " takes all its packets first"
	}
	if d := t.hairpinOf(e); d != nil {
		reason = t.expressHairpin(e, d)
	} else {
		reason = e.express(t.wan)
	}
	if reason != "" {
		if by := t.doneBy(i); by != nil {
			return ruleset.Redundant, where(by) + " does the same to its packets"
		}
		return ruleset.Untranslated, reason
	}
	if reason := t.inTheWay(i); reason != "" {
		return ruleset.Untranslated, reason
	}
	return "", ""
}

// leftAlone says why an entry is none of a gateway's.
func (e *entry) leftAlone() (left bool, reason string) {
	switch k := e.Rule.Target.Kind; {
	case e.Owner != "":
		return true, "is " + ruleset.Possessive(e.Owner)
	case k == ruleset.Pass:
		return true, "does not translate"
	case e.filter && k != ruleset.Notrack && k != ruleset.MSS:
		return true, notNAT(e.Table.Name)
	}
	return false, ""
}

// coveredBy is a rule after which nothing is left for the entry.
func (t *translator) coveredBy(i int) *ruleset.Rule {
	e := t.entries[i]
	for _, x := range e.Except {
		if x.Match.Covers(&e.Match) {
			return x.Rule
		}
	}
	if !e.translates {
		return nil
	}
	for _, b := range t.entries[:i] {
		if b.side == e.side && !rivals(b, e) && b.Rule.Target.Kind != ruleset.Ends && len(b.Except) == 0 && b.Match.Covers(&e.Match) {
			return b.Rule
		}
	}
	return nil
}

// doneBy is a later rule that does to all packets of the entry what it does.
func (t *translator) doneBy(i int) *ruleset.Rule {
	e := t.entries[i]
	for _, b := range t.entries[i+1:] {
		switch {
		case b.side != e.side || b.Match.Disjoint(&e.Match):
		case rivals(b, e) || b.Owner != "" || !givesSame(&b.Rule.Target, &e.Rule.Target):
			return nil
		case b.Match.Covers(&e.Match) && !slices.ContainsFunc(b.Except, func(x *ruleset.Exception) bool { return !x.Match.Disjoint(&e.Match) }):
			return b.Rule
		}
	}
	return nil
}

// rivalry is a place where chains of several tables may be.
type rivalry struct {
	hook     string
	version  int
	priority int32
}

// rivals reports whether nobody knows which of two chains comes first, as of
// iptables-nft and iptables-legacy.
func rivals(a, b *entry) bool {
	return a.Base != b.Base && a.Base.Priority == b.Base.Priority && a.Owner == "" && b.Owner == ""
}

// findRivals are the entries of places where several chains are.
func (t *translator) findRivals() map[rivalry][]*entry {
	all := map[rivalry][]*entry{}
	for _, e := range t.entries {
		if e.translates && !e.filter {
			place := rivalry{e.hook, e.version, e.Base.Priority}
			all[place] = append(all[place], e)
		}
	}
	maps.DeleteFunc(all, func(_ rivalry, list []*entry) bool {
		return !slices.ContainsFunc(list, func(e *entry) bool { return rivals(list[0], e) })
	})
	return all
}

// inTheWay says which rule that is not in the file changes what this one gets.
func (t *translator) inTheWay(i int) string {
	e := t.entries[i]
	if !e.translates {
		return ""
	}
	meets := func(b *entry) bool { return b != e && b.side == e.side && !b.Match.Disjoint(&e.Match) }
	for _, b := range t.untranslated {
		if meets(b) && !givesSame(&b.Rule.Target, &e.Rule.Target) {
			return fmt.Sprintf("%s, which is not translated, gets some of its packets first", where(b.Rule))
		}
	}
	for _, b := range t.rivals[rivalry{e.hook, e.version, e.Base.Priority}] {
		if rivals(b, e) && meets(b) {
			return fmt.Sprintf("%s is at the same hook and priority in another table: which of the two comes first the kernel does not tell", where(b.Rule))
		}
	}
	for _, b := range t.entries[i+1:] {
		if b.Owner != "" && meets(b) {
			return fmt.Sprintf("%s, which is %s, would get some of its packets first: natkit's rules come after those of other programs", where(b.Rule), ruleset.Possessive(b.Owner))
		}
	}
	return ""
}

// givesSame reports whether it makes no difference which of two rules a packet meets.
func givesSame(a, b *ruleset.Target) bool {
	return sameTarget(a, b) && a.Translates() && a.Kind != ruleset.Ends && len(a.Unknown)+len(b.Unknown) == 0 &&
		a.Random == b.Random && a.RandomFully == b.RandomFully && a.Persistent == b.Persistent
}

// verify compares the rules with the plan that Compile makes of them, and refuses
// those that would become something else. It reports whether it refused any.
func (t *translator) verify() (changed bool, err error) {
	c := t.config()
	plan, err := gateway.Compile(&c, gateway.Facts{})
	if err != nil {
		if t.refuseAlone() {
			return true, nil
		}
		return false, fmt.Errorf("compile the imported rules: %w", err)
	}
	byRef := index(plan)
	for i, ref := range t.refs() {
		if !t.rules[i].matches(plan, byRef[ref]) {
			t.refuse(&t.rules[i], "natkit would make something else of it")
			changed = true
		}
	}
	if changed {
		return true, nil
	}
	return t.checkOrder() || t.checkWords(&c) || t.check(&c), nil
}

// refs name the rules as the file does.
func (t *translator) refs() []gateway.Ref {
	counts := map[int]int{}
	list := make([]gateway.Ref, len(t.rules))
	for i, m := range t.rules {
		name := "nat"
		if m.version == 6 {
			name = "ipv6"
		}
		list[i] = gateway.Ref{List: name, Index: counts[m.version], Kind: m.rule.Kind()}
		counts[m.version]++
	}
	return list
}

// refuse takes a rule out, or, where it is one of a pair, only their being together.
func (t *translator) refuse(m *made, reason string) {
	if m.rule.Static != nil {
		for _, e := range m.from {
			t.apart[e] = true
		}
		return
	}
	for _, e := range m.from {
		t.refused[e] = reason
	}
}

// refuseAlone refuses the rules that cannot be compiled by themselves.
func (t *translator) refuseAlone() (changed bool) {
	all := t.rules
	defer func() { t.rules = all }()
	for i := range all {
		t.rules = all[i : i+1]
		c := t.config()
		if _, err := gateway.Compile(&c, gateway.Facts{}); err != nil {
			t.refuse(&all[i], err.Error())
			changed = true
		}
	}
	return changed
}

// places are where a plan has what it made of a rule.
type places struct{ sources, destinations []int }

func index(plan *gateway.Plan) map[gateway.Ref]places {
	all := map[gateway.Ref]places{}
	for i, s := range plan.Sources {
		p := all[s.Rule]
		p.sources = append(p.sources, i)
		all[s.Rule] = p
	}
	for i, d := range plan.Destinations {
		p := all[d.Rule]
		p.destinations = append(p.destinations, i)
		all[d.Rule] = p
	}
	return all
}

// matches reports whether the plan has the rule's parts and no others, and notes where.
func (m *made) matches(plan *gateway.Plan, at places) bool {
	if len(m.parts) != len(at.sources)+len(at.destinations) {
		return false
	}
	for i := range m.parts {
		p := &m.parts[i]
		switch {
		case p.source != nil && len(at.sources) == 1 && sameSource(*p.source, plan.Sources[at.sources[0]]):
			p.at = at.sources[0]
		case p.destination != nil && len(at.destinations) == 1 && sameEntry(*p.destination, plan.Destinations[at.destinations[0]]):
			p.at = at.destinations[0]
		default:
			return false
		}
	}
	return true
}

func sameSource(want, got gateway.Entry) bool {
	got.Rule = gateway.Ref{}
	want.NotTo, got.NotTo = sorted(want.NotTo), sorted(got.NotTo)
	return same(want, got)
}

func sameEntry(want, got gateway.Entry) bool {
	got.Rule = gateway.Ref{}
	return same(want, got)
}

func sorted(list []netip.Prefix) []netip.Prefix {
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	return list
}

// same compares what is written: no list and an empty one are the same.
func same(a, b any) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && string(x) == string(y)
}

// checkOrder refuses rules that natkit would let win over one that wins now: in
// iptables the first one that matches, here the most specific one.
func (t *translator) checkOrder() bool {
	order := map[*entry]int{}
	for i, e := range t.entries {
		order[e] = i
	}
	refused := map[*made]bool{}
	for _, side := range t.sides() {
		slices.SortStableFunc(side, func(a, b ranked) int { return cmp.Compare(order[a.part.of], order[b.part.of]) })
		for i, later := range side {
			for _, first := range side[:i] {
				if later.part.at > first.part.at || later.made == first.made || refused[first.made] || refused[later.made] ||
					first.part.match.Disjoint(&later.part.match) {
					continue
				}
				refused[later.made] = true
				t.refuse(later.made, fmt.Sprintf("%s wins now where both match, as it comes first; natkit lets the more specific rule win, and that is this one", where(first.part.of.Rule)))
			}
		}
	}
	return len(refused) > 0
}

// ranked is a part and the rule that it is of.
type ranked struct {
	part *part
	made *made
}

// sides are the parts that may get each other's packets.
func (t *translator) sides() map[string][]ranked {
	all := map[string][]ranked{}
	for i := range t.rules {
		m := &t.rules[i]
		for j := range m.parts {
			p := &m.parts[j]
			key := fmt.Sprint(m.version, p.source != nil)
			all[key] = append(all[key], ranked{p, m})
		}
	}
	return all
}

// checkWords refuses what cannot be written, such as interfaces whose name a file would
// take for an address.
func (t *translator) checkWords(c *gateway.Config) (changed bool) {
	if _, err := gateway.Parse("", gateway.Marshal(c)); err == nil {
		return false
	}
	all := t.rules
	defer func() { t.rules = all }()
	for i := range all {
		t.rules = all[i : i+1]
		one := t.config()
		if _, err := gateway.Parse("", gateway.Marshal(&one)); err != nil {
			t.refuse(&all[i], "a gateway file cannot say it: "+gateway.MarshalRule(all[i].rule))
			changed = true
		}
	}
	return changed
}

// check refuses what `natkit gateway check` would.
func (t *translator) check(c *gateway.Config) (changed bool) {
	refs := t.refs()
	for _, f := range gateway.Check(&gateway.File{Config: *c}, gateway.Facts{}) {
		if f.Severity != gateway.Refuse || f.Rule == nil {
			continue
		}
		if i := slices.Index(refs, *f.Rule); i >= 0 {
			t.refuse(&t.rules[i], "natkit would refuse it: "+f.Message)
			changed = true
		}
	}
	return changed
}

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
	m, kind := &h.Match, h.Rule.Target.Kind
	if h.hook != "postrouting" || kind != ruleset.SNAT && kind != ruleset.Masquerade ||
		!m.Source().IsValid() || !m.Dest().IsValid() || !m.Dest().IsSingleIP() || !m.Source().Contains(m.Dest().Addr()) {
		return nil
	}
	i := slices.IndexFunc(t.entries, func(d *entry) bool {
		g := &d.Rule.Target
		return d.hook == "prerouting" && d.Owner == "" && g.Kind == ruleset.DNAT && d.Match.Dest().IsValid() &&
			g.First == m.Dest().Addr() && g.First == g.Last && d.Match.Protocol == m.Protocol && slices.Equal(d.portsAfter(), m.Ports)
	})
	if i < 0 {
		return nil
	}
	return t.entries[i]
}

// portsAfter are the destination's ports as a DNAT leaves them.
func (e *entry) portsAfter() []nat.Ports {
	if g := &e.Rule.Target; !keepsPorts(g, &e.Match) {
		return []nat.Ports{g.Ports}
	}
	return e.Match.Ports
}

// expressHairpin says why such a rule is not "hairpin: on" of its DNAT.
func (t *translator) expressHairpin(h, d *entry) string {
	m, g, outside := h.Match, &h.Rule.Target, d.Match.Dest().Addr()
	const word = "gives hosts inside another source where %s sends them back inside; natkit's word for that is \"hairpin: on\" of a dnat, "
	begin := fmt.Sprintf(word, where(d.Rule))
	switch {
	case g.Kind == ruleset.Masquerade || g.First != outside || g.Last != outside:
		return begin + "by which they are seen under " + outside.String()
	case d.Match.InName() != "" || d.Match.Source().IsValid() || len(d.Match.Ports) > 1:
		return begin + "for one that is on an address and a port for whatever comes"
	case m.OutName() == "" || strings.HasSuffix(m.OutName(), "*") || m.OutName() == t.wan:
		return begin + "for which the file has to say which interface leads inside (interfaces: {lan: eth1}), as this rule does not (-o)"
	case t.lan != "" && t.lan != m.OutName():
		return begin + "between whatever interfaces lead inside, here " + t.lan + " and " + m.OutName()
	case g.Ports != nat.Ports{} || g.Random || g.RandomFully || len(h.Except) > 0:
		return begin + "without ports, options and exceptions"
	case slices.ContainsFunc(t.entries, func(x *entry) bool { return x.givesAnother(h) && t.hairpinOf(x) == nil }):
		return begin + "but hosts with a snat, static or netmap are seen under the address that those give"
	}
	if condition := wordless(&m, "from to protocol out "); condition != "" {
		return ruleset.NoWord + condition
	}
	t.lan = m.OutName()
	return ""
}

// givesAnother reports whether an entry gives some of the hosts of h an address of its own.
func (e *entry) givesAnother(h *entry) bool {
	k := e.Rule.Target.Kind
	return e.hook == "postrouting" && e.version == h.version && e.Owner == "" && (k == ruleset.SNAT || k == ruleset.Netmap)
}

// addHairpin makes the rule about a destination one for hosts inside too, where a later
// entry gives those the address that they asked for. What differs then becomes a note.
func (t *translator) addHairpin(m *made, later []*entry) {
	d := m.from[0]
	i := slices.IndexFunc(later, func(h *entry) bool { return t.hairpinOf(h) == d })
	if i < 0 {
		return
	}
	h, r, on := later[i], m.rule.DNAT, d.Match.Dest()
	r.Hairpin = true
	m.from = append(m.from, h)
	m.parts = append(m.parts, part{of: h, match: h.Match, source: &gateway.Entry{
		Match: nat.Match{Original: prefixes(on)}, Action: nat.Action{Kind: nat.SNAT, To: nat.AddrRanges{nat.OneAddr(on.Addr())}}}})
	s := m.parts[len(m.parts)-1].source
	s.Protocol, s.OriginalPorts = r.Port.Service()
	t.notes[h] = ruleset.Note{Line: h.Rule.Line, Text: h.Rule.Text, Kind: ruleset.Differs, Rules: 1, Reason: fmt.Sprintf(
		"becomes hairpin: on: that is for what comes back by %s, whether from %s or not, and not for what asks for %s itself",
		h.Match.OutName(), h.Match.Source(), h.Match.Dest().Addr())}
}
