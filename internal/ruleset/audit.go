package ruleset

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
)

// mostCompared bounds the comparisons of Audit, some 0.2 µs each.
const mostCompared = 300_000

// conntrackPriority is NF_IP_PRI_CONNTRACK: what exempts packets from tracking later has no effect.
const conntrackPriority = -200

// Routed returns the interface by which an address is reached; empty where that is not known.
type Routed func(netip.Addr) string

// Audit compares the rules of tables, read for Judge, with each other. It does not know of the host.
func Audit(tables []*Table, routed Routed) *snapshot.Audit {
	a := &auditor{left: mostCompared, out: &snapshot.Audit{}}
	for _, hook := range HookNames {
		a.hook(tables, hook)
	}
	a.untracked(tables, routed)
	for _, t := range tables {
		a.refusals(t)
		a.variant(t)
	}
	a.out.TooMany = a.left < 0
	return a.out
}

// auditor collects what Audit finds.
type auditor struct {
	out *snapshot.Audit
	// left is how many comparisons may still be made.
	left int
	// found are the rules that translate, in the order in which packets reach them.
	found []*translation
	at    map[*Rule]*translation // of this base chain
}

// translation is a rule that translates, at one base chain.
type translation struct {
	Place
	base *Chain
	// match is that of the first path that leads to it, paths is how many do.
	match Match
	paths int
	// by took the packets of all paths before; nil where some come to it.
	by *taker
}

// taker is packets that a rule takes: none of them comes to a later one.
type taker struct {
	Place
	match Match
	// not are those that may have left its chain before.
	not []*Match
}

// takes reports whether it is certain that all packets of a match are taken.
func (t *taker) takes(m *Match) bool {
	return t.match.Covers(m) && !slices.ContainsFunc(t.not, func(n *Match) bool { return !n.Disjoint(m) })
}

// hook goes through the chains of NAT at a hook. Where one of them translates, later ones are not
// asked (nf_nat_inet_fn), and where one accepts, they are.
func (a *auditor) hook(tables []*Table, hook string) {
	type base struct {
		*Table
		*Chain
	}
	var chains []base
	for _, t := range tables {
		for _, c := range t.Chains {
			if c.Hook == hook && c.Type == "nat" {
				chains = append(chains, base{t, c})
			}
		}
	}
	slices.SortStableFunc(chains, func(x, y base) int { return cmp.Compare(x.Priority, y.Priority) })
	var before []taker
	for _, c := range chains {
		a.at = map[*Rule]*translation{}
		m := Match{}
		m.of(c.version())
		took := a.walk(c.Table, c.Chain, c.Chain, m, before, 0)
		before = append(before, slices.DeleteFunc(took, func(t taker) bool { return !t.Rule.Target.Translates() && t.Rule.Target.Kind != Drop })...)
	}
}

// version is that of IP of a table's packets; 0 is both.
func (t *Table) version() int { return map[string]int{"ip": 4, "ip6": 6}[t.Family] }

// walk takes packets of a match through a chain, of which those before do not come there. It returns
// what takes some of them for certain.
func (a *auditor) walk(t *Table, base, c *Chain, m Match, before []taker, depth int) (took []taker) {
	if c == nil || depth > deepest || a.left < 0 {
		return nil
	}
	before = slices.Clip(before)
	var returned []*Match // what may have left the chain for the one that led to it
	for _, r := range c.Rules {
		a.left--
		both, possible := m.And(&r.Match)
		if !possible {
			continue
		}
		var taken []taker
		switch k := r.Target.Kind; {
		case k == Return && c != base:
			before, returned = append(before, taker{Place{t, c, r}, both, nil}), append(returned, &both)
		case k == Accept, k == Drop, k == Return:
			taken = []taker{{Place{t, c, r}, both, nil}}
		case k == Jump, k == Goto, k == Ends:
			for _, name := range r.Target.Chains {
				taken = append(taken, a.walk(t, base, t.Find(name), both, before, depth+1)...)
			}
		case r.Target.Translates():
			a.reach(Place{t, c, r}, base, both, before)
			taken = []taker{{Place{t, c, r}, both, nil}}
		}
		before = append(before, taken...)
		for _, one := range taken {
			one.not = slices.Concat(one.not, returned)
			took = append(took, one)
		}
		if r.Target.Kind == Goto {
			returned = append(returned, &both)
		}
	}
	return took
}

// reach notes a path to a rule that translates.
func (a *auditor) reach(p Place, base *Chain, m Match, before []taker) {
	a.left -= len(before)
	i := slices.IndexFunc(before, func(b taker) bool { return b.takes(&m) })
	t := a.at[p.Rule]
	if t == nil {
		t = &translation{Place: p, base: base, match: m}
		if i >= 0 {
			t.by = &before[i]
		}
		a.at[p.Rule], a.found = t, append(a.found, t)
	}
	t.paths++
	if i < 0 {
		t.by = nil
	}
}

// shadowed reports whether the rule that takes the packets of another one does something else with
// them. What programs keep is their own affair.
func (t *translation) shadowed() bool {
	if t.by == nil || t.Table.IsGateway() || t.Owner() != "" {
		return false
	}
	a, b := &t.Rule.Target, &t.by.Rule.Target
	return a.Kind != b.Kind || a.First != b.First || a.Last != b.Last || a.Ports != b.Ports || b.AddrsVary != a.AddrsVary
}

// place is the form of bundles.
func (p Place) place() snapshot.RulePlace {
	s := snapshot.RulePlace{Text: p.Text(), Owner: p.Owner()}
	if p.Rule != nil {
		s.Handle, s.Rejects = p.Rule.Handle, p.Rule.Target.Rejects
	}
	s.Packets, s.Counted = p.Counted()
	return s
}

// untracked finds rules whose packets, or the answers to them, are exempt from tracking.
func (a *auditor) untracked(tables []*Table, routed Routed) {
	for _, t := range a.found {
		if t.shadowed() {
			a.out.Shadowed = append(a.out.Shadowed, snapshot.ShadowedRule{RulePlace: t.place(), By: t.by.place(), Kind: t.Rule.Target.natKind(t.base.Hook)})
		}
	}
	exempt := map[string][]taker{}
	for _, t := range tables {
		for _, c := range t.Chains {
			if c.Priority < conntrackPriority && c.Type != "nat" && !t.IsGateway() && (c.Hook == "prerouting" || c.Hook == "output") {
				exempt[c.Hook] = append(exempt[c.Hook], a.exempt(t, c)...)
			}
		}
	}
	if len(exempt) == 0 {
		return
	}
	for _, t := range a.found {
		if a.left -= len(exempt["prerouting"]) + len(exempt["output"]); a.left >= 0 && t.paths == 1 && !t.Table.IsGateway() {
			a.exempts(t, exempt, routed)
		}
	}
}

// exempt are the packets that a chain exempts for certain.
func (a *auditor) exempt(t *Table, base *Chain) (all []taker) {
	entries, _ := t.Flatten(base, Query{Coarse: true, Keep: func(_ *Chain, r *Rule) bool { return r.Target.Kind == Notrack }}, &Budget{})
	for _, e := range entries {
		if len(e.Except) == 0 && !e.Doubt && len(e.Match.Unknown) == 0 {
			e.Match.of(t.version())
			all = append(all, taker{Place{t, e.Chain, e.Rule}, e.Match, nil})
		}
	}
	return all
}

// exempts notes what exempts packets that a rule translates, or their answers.
func (a *auditor) exempts(t *translation, exempt map[string][]taker, routed Routed) {
	first := "prerouting"
	if t.base.Hook == "output" {
		first = "output"
	}
	own := t.match
	own.Out, own.NotOut = nil, nil // not known at that hook
	note := func(by *taker, u snapshot.UntrackedRule) {
		u.RulePlace, u.By, u.Kind = t.place(), by.place(), t.Rule.Target.natKind(t.base.Hook)
		a.out.Untracked = append(a.out.Untracked, u)
	}
	for i := range exempt[first] {
		if e := &exempt[first][i]; e.match.Covers(&own) {
			note(e, snapshot.UntrackedRule{})
			return
		}
	}
	answers, known := t.answers(routed)
	if !known {
		return
	}
	back := exempt["prerouting"]
	for i := range back {
		if e := &back[i]; e.match.Covers(&answers) {
			note(e, answers.untracked())
			return
		}
	}
	for i := range back {
		e := &back[i]
		if e.isPart(&answers) && !slices.ContainsFunc(back, func(o taker) bool { return e.mirrored(&o.match) }) {
			u := e.match.untracked()
			u.Part = true
			note(e, u)
		}
	}
}

// answers is the match of the first answers to what a rule translates, before they are translated
// back; false where it is not known.
func (t *translation) answers(routed Routed) (m Match, known bool) {
	x, own := &t.Rule.Target, &t.match
	m.Protocol = own.Protocol
	m.of(t.Table.version())
	switch {
	case t.base.Hook == "postrouting" && (x.Kind == Masquerade || x.Kind == SNAT && x.First.IsValid() && x.First == x.Last):
		m.SourcePorts, m.In = own.Ports, own.Out
		if len(own.To) > 0 {
			m.From = own.To
		}
		if x.First.IsValid() {
			m.To = []netip.Prefix{nat.Host(x.First)}
		}
		return m, true
	case t.base.Hook == "prerouting" && x.Kind == DNAT && x.First.IsValid() && x.First == x.Last:
		m.From, m.In = []netip.Prefix{nat.Host(x.First)}, Some(routed(x.First))
		m.SourcePorts = own.Ports
		if x.Ports.First != 0 {
			m.SourcePorts = []nat.Ports{x.Ports}
		}
		return m, len(m.In) > 0
	}
	return m, false
}

// untracked has the protocol, the source ports and the source of answers.
func (m *Match) untracked() snapshot.UntrackedRule {
	u := snapshot.UntrackedRule{Answers: true, Protocol: m.protocol(), From: m.Source()}
	if len(m.SourcePorts) == 1 {
		u.FirstPort, u.LastPort = m.SourcePorts[0].First, m.SourcePorts[0].Last
	}
	return u
}

// isPart reports whether a rule exempts some of the answers, all of those by protocol, source port
// and source.
func (e *taker) isPart(answers *Match) bool {
	wide := e.match
	wide.Protocol, wide.SourcePorts, wide.From = 0, nil, nil
	if len(e.match.From) > 0 && !e.match.Source().IsValid() {
		wide.From = e.match.From // all of the family
	}
	return wide.Covers(answers) && !e.match.Disjoint(answers) && len(e.match.SourcePorts) < 2
}

// mirrored reports whether another rule exempts what the answers are to.
func (e *taker) mirrored(o *Match) bool {
	m := Match{}
	m.Protocol, m.Ports, m.To = e.match.Protocol, e.match.SourcePorts, e.match.From
	without := *o
	without.In, without.NotIn, without.From, without.NotFrom = nil, nil, nil, nil
	return without.Covers(&m)
}

// noEndpoints is what kube-proxy writes behind the name of a service (writeServiceFilterRules).
const noEndpoints = "has no endpoints"

// refusals are the rules of a table, on the way of what is forwarded, that drop packets for what
// others came before them, or for want of endpoints.
func (a *auditor) refusals(t *Table) {
	limited := map[string]bool{}
	for _, c := range t.Chains {
		if c.Hook == "prerouting" || c.Hook == "forward" || c.Hook == "postrouting" {
			_, names := t.reach(c)
			for _, name := range append(names, c.Name) {
				limited[name] = true
			}
		}
	}
	for _, c := range t.Chains {
		for _, r := range c.Rules {
			why := ""
			switch {
			case r.Target.Kind != Drop:
			case strings.HasSuffix(r.Comment, noEndpoints):
				why = snapshot.RefusalNoEndpoints
			case r.Match.Limits && limited[c.Name]:
				why = snapshot.RefusalLimit
			}
			if why != "" {
				a.out.Refusals = append(a.out.Refusals, snapshot.Refusal{RulePlace: Place{t, c, r}.place(), Why: why, Comment: r.Comment})
			}
		}
	}
}

// variant notes a table of iptables that does something.
func (a *auditor) variant(t *Table) {
	x := snapshot.IptablesTable{Program: t.Program(), Family: t.Family, Table: t.Name}
	for _, c := range t.Chains {
		if c.Hook == "forward" {
			n, _ := t.reach(c)
			x.Forwarding += n
			if c.Policy == "drop" {
				x.Forwarding++
			}
		}
		for _, r := range c.Rules {
			if r.Target.Translates() && r.Target.Kind != Ends {
				x.Translating++
			}
		}
	}
	if t.IsIptables() && x.Forwarding+x.Translating > 0 {
		a.out.Iptables = append(a.out.Iptables, x)
	}
}
