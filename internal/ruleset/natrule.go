package ruleset

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/lazyregexp"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
)

// NATRules returns the rules of tables that translate, in the order in which packets reach
// them. A rule that several hooks lead to is there for each.
func NATRules(tables []*Table, budget *Budget) *snapshot.NATRules {
	var all []*Entry
	short, doubt := false, map[*Chain]bool{}
	for _, t := range tables {
		for _, c := range t.Chains {
			if c.Hook == "" || c.Type != "nat" {
				continue
			}
			entries, full := t.Flatten(c, Query{Keep: Translations, Coarse: true}, budget)
			all, short, doubt[c] = append(all, entries...), short || full || t.Short, full
		}
	}
	InHookOrder(all)
	out := &snapshot.NATRules{Rules: []snapshot.NATRule{}, TooMany: short}
	for _, paths := range byRule(all) {
		out.Rules = append(out.Rules, merged(paths, doubt[paths[0].Base]))
	}
	otherProtocols(out.Rules)
	for _, t := range tables {
		if !t.Short { // else a jump may be missing
			out.Unreached = append(out.Unreached, t.unreached(budget)...)
		}
	}
	return out
}

// otherProtocols completes rules of the gateway: of two that are alike the second, without
// ports, is for the protocols that have none.
func otherProtocols(rules []snapshot.NATRule) {
	type place struct {
		gateway, hook, out, in string
		from, to               netip.Prefix
		first, last            netip.Addr
	}
	withPorts := map[place]bool{}
	for i := range rules {
		r := &rules[i]
		where := place{r.Gateway, r.Hook, r.OutInterface, r.InInterface, r.FromSource, r.ToDestination, r.First, r.Last}
		switch {
		case r.Family != GatewayFamily || r.Table != GatewayTable || !r.TranslatesSource():
		case r.FirstPort != 0 || r.PortsFromMap:
			withPorts[where] = true
		case r.Protocol == "" && withPorts[where]:
			r.Protocol = snapshot.OtherProtocols
		}
	}
}

// InHookOrder sorts entries in the order in which packets reach them; of the same hook
// and priority they stay in their order.
func InHookOrder(all []*Entry) {
	slices.SortStableFunc(all, func(a, b *Entry) int {
		return cmp.Or(cmp.Compare(slices.Index(HookNames, a.Base.Hook), slices.Index(HookNames, b.Base.Hook)), cmp.Compare(a.Base.Priority, b.Base.Priority))
	})
}

// byRule groups the paths that lead from a base chain to a rule.
func byRule(all []*Entry) (groups [][]*Entry) {
	type place struct {
		base *Chain
		rule *Rule
	}
	at := map[place]int{}
	for _, e := range all {
		p := place{e.Base, e.Rule}
		i, known := at[p]
		if !known {
			i = len(groups)
			at[p], groups = i, append(groups, nil)
		}
		groups[i] = append(groups[i], e)
	}
	return groups
}

// merged is a rule that packets reach on several paths: its own conditions alone.
func merged(paths []*Entry, doubt bool) snapshot.NATRule {
	if len(paths) == 1 && !doubt {
		return paths[0].NATRule(false)
	}
	own := *paths[0]
	own.Match, own.Except, own.Doubt = own.Rule.Match, nil, true
	r := own.NATRule(false)
	if !doubt {
		for _, e := range paths {
			r.Ways = append(r.Ways, e.NATRule(false))
		}
	}
	return r
}

// NATRule is the entry as it is in bundles. What that has no field for makes it partial,
// ranges of destination ports too unless they are wanted.
func (e *Entry) NATRule(ranges bool) snapshot.NATRule {
	r := e.conditions(ranges)
	t := &e.Rule.Target
	r.Gateway, r.Target, r.Source = "", e.Rule.ID, e.Table.Source
	if e.Rule.XT {
		r.Source = "iptables-nft"
	}
	if e.Table.IsGateway() {
		r.Target = ""
		if gatewayRef.MatchString(e.Rule.Comment) {
			r.Gateway = e.Rule.Comment
		}
	}
	if r.DestinationPort == 0 {
		r.SeveralPorts = slices.Clone(e.Match.Ports)
		for i, p := range e.Match.Ports {
			if i == 0 || p.First < r.FirstOfSeveral {
				r.FirstOfSeveral = p.First
			}
			r.LastOfSeveral = max(r.LastOfSeveral, p.Last)
		}
	}
	r.Family, r.Table, r.Chain, r.Handle = e.Table.Family, e.Table.Name, e.Chain.Name, e.Rule.Handle
	r.Hook, r.Priority = e.Base.Hook, e.Base.Priority
	r.Kind = t.natKind(r.Hook)
	r.First, r.Last, r.FirstPort, r.LastPort = t.First, t.Last, t.Ports.First, t.Ports.Last
	r.PortsFromMap, r.Random, r.FullyRandom, r.Persistent = t.PortsVary, t.Random, t.FullyRandom, t.Persistent
	r.Partial = r.Partial || t.AddrsVary || t.PortsVary
	r.Chance = e.Match.Random
	r.Text, r.Packets, r.Counted = t.nft(r.Kind, r.Family), e.Rule.Packets, e.Rule.Counted
	return r
}

// gatewayRef matches how a rule of the gateway's file is named in comments.
var gatewayRef = lazyregexp.New(`^(nat|ipv6)\[\d+\] \S+$`)

// natKind is the snapshot's name of a translation; NETMAP's depends on the hook
// (netmap_tg4).
func (t *Target) natKind(hook string) string {
	switch {
	case t.Kind != Netmap:
		return string(t.Kind)
	case hook == "postrouting" || hook == "input":
		return snapshot.NATSource
	}
	return snapshot.NATDest
}

// conditions are the entry's without its translation.
func (e *Entry) conditions(ranges bool) snapshot.NATRule {
	c, unless, exact := e.Match.condition(ranges)
	r := snapshot.NATRule{NATCondition: c, Marked: e.Match.Marked, OriginalDestination: e.Rule.Match.BeforeNAT, Partial: e.Doubt || !exact}
	if r.FromSource.IsValid() && r.FromSource.Bits() == 0 && e.Rule.Target.First.IsValid() { // which determines the version
		r.FromSource = netip.Prefix{}
	}
	for _, x := range e.Except {
		c, not, exact := x.Rule.Match.condition(ranges)
		if exact && len(not) == 0 && !x.jumped {
			r.Unless = append(r.Unless, c)
			continue
		}
		r.Partial, r.Marked = true, r.Marked || x.Rule.Match.Marked
	}
	r.Unless = slices.Concat(r.Unless, unless)
	return r
}

// condition is the match in the fields of a snapshot; exact is false if it has more.
func (m *Match) condition(ranges bool) (c snapshot.NATCondition, unless []snapshot.NATCondition, exact bool) {
	c = snapshot.NATCondition{Protocol: m.protocol(), FromSource: m.Source(), ToDestination: m.Dest(),
		OutInterface: m.OutName(), InInterface: m.InName(), LocalDestination: m.ToLocal}
	if m.Family() != 0 && !m.Source().IsValid() && !m.Dest().IsValid() {
		c.FromSource = nat.Anywhere(m.Family())
	}
	exact = len(m.Unknown)+len(m.SourcePorts) == 0 && !m.SYN && len(m.Ports) < 2
	switch {
	case len(m.Ports) != 1:
	case m.Ports[0].Len() == 1 && m.Ports[0].First != 0:
		c.DestinationPort = m.Ports[0].First
	case ranges:
		c.DestinationPort, c.LastDestinationPort = max(m.Ports[0].First, 1), m.Ports[0].Last
	default:
		exact = false
	}
	if n := len(m.NotFrom) + len(m.NotTo) + len(m.NotIn) + len(m.NotOut); n > 0 {
		unless = make([]snapshot.NATCondition, 0, n)
	}
	for _, p := range m.NotFrom {
		unless = append(unless, snapshot.NATCondition{FromSource: p})
	}
	for _, p := range m.NotTo {
		unless = append(unless, snapshot.NATCondition{ToDestination: p})
	}
	for _, name := range m.NotIn {
		unless = append(unless, snapshot.NATCondition{InInterface: name})
	}
	for _, name := range m.NotOut {
		unless = append(unless, snapshot.NATCondition{OutInterface: name})
	}
	return c, unless, exact
}

// mostAccepts bounds what is returned of a chain that leads to thousands of rules.
const mostAccepts = 1000

// accepts are the conditions of the rules that accept what comes to a base chain, 1,000
// at most, without what rules before them take.
func (t *Table) accepts(base *Chain) (all []snapshot.NATRule) {
	entries, _ := t.Flatten(base, Query{Coarse: true, Keep: isAccept}, &Budget{})
	for _, e := range entries[:min(len(entries), mostAccepts)] {
		e.Except, e.Doubt = nil, false
		all = append(all, e.conditions(true))
	}
	return all
}

// isAccept keeps those that accept: a verdict map may.
func isAccept(_ *Chain, r *Rule) bool { return r.Target.Kind == Accept || r.Target.Kind == Ends }

// translations returns the rules of a base chain that translate, once for each path and
// for each of several ranges of ports; full is true if some may be missing.
func (t *Table) translations(base *Chain, budget *Budget) (all []snapshot.NATRule, full bool) {
	entries, full := t.Flatten(base, Query{Keep: Translations, Coarse: true}, budget)
	for _, e := range entries {
		e.Doubt = e.Doubt || full
		ports := e.Match.Ports
		if len(ports) < 2 {
			all = append(all, e.NATRule(true))
			continue
		}
		for _, p := range ports {
			e.Match.Ports = []nat.Ports{p}
			all = append(all, e.NATRule(true))
		}
	}
	return all, full || t.Short
}
