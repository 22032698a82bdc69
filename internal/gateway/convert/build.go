package convert

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/ruleset"
)

// made is a rule of the file, and what it stands for.
type made struct {
	version int
	rule    gateway.Rule
	from    []*entry
	// parts are what Compile is to make of it, each with the entry that it is of.
	parts []part
}

// part is one entry of a plan as it has to be.
type part struct {
	of          *entry
	match       ruleset.Match
	source      *gateway.Entry
	destination *gateway.Entry
	// at is where the plan has it.
	at int
}

// build makes rules of the entries, pairs first.
func (t *translator) build(open []*entry) {
	for _, version := range []int{4, 6} {
		later := slices.DeleteFunc(slices.Clone(open), func(x *entry) bool { return x.version != version })
		for len(later) > 0 {
			e := later[0]
			m, reason := t.make(e, later[1:])
			later = later[1:]
			if reason != "" {
				t.refused[e], t.again = reason, true // what comes after it has to be judged anew
			}
			if m == nil {
				continue
			}
			if len(m.from) > 1 {
				later = slices.DeleteFunc(later, func(x *entry) bool { return slices.Contains(m.from, x) })
			}
			t.rules = append(t.rules, spread(*m)...)
		}
	}
	slices.SortStableFunc(t.rules, func(a, b made) int { return cmp.Compare(firstLine(a), firstLine(b)) })
}

func firstLine(m made) int {
	first := m.from[0].Rule.Line
	for _, e := range m.from {
		first = min(first, e.Rule.Line)
	}
	return first
}

// make makes one rule of an entry and, where that is one of several that belong
// together, of those, which come later.
func (t *translator) make(e *entry, later []*entry) (*made, string) {
	switch e.Rule.Target.Kind {
	case ruleset.MSS:
		return nil, t.takeMSS(e)
	case ruleset.Notrack:
		return t.makeNotrack(e, later)
	case ruleset.Netmap:
		return t.makeNetmap(e, later)
	}
	if m := t.makeStatic(e, later); m != nil {
		return m, ""
	}
	switch e.Rule.Target.Kind {
	case ruleset.Masquerade, ruleset.SNAT:
		if d := t.hairpinOf(e); d != nil {
			return nil, "belongs to " + where(d.Rule) + ", which is not translated"
		}
		return makeSource(e), ""
	}
	m, reason := makeDestination(e, later)
	if m != nil {
		t.addHairpin(m, later)
	}
	return m, reason
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

func (t *translator) makeNetmap(e *entry, later []*entry) (*made, string) {
	i := slices.IndexFunc(later, func(x *entry) bool { return mirrored(e, x) })
	if i < 0 {
		return nil, "is for one direction; natkit's netmap is for both, with NETMAP in PREROUTING and in POSTROUTING"
	}
	out, in := e, later[i]
	if e.hook == "prerouting" {
		out, in = in, e
	}
	inside, outside := out.Match.Source(), in.Match.Dest()
	d := gateway.Entry{Match: nat.Match{To: prefixes(outside), In: in.Match.In}, Action: nat.Action{Kind: nat.DNAT, Prefix: inside}}
	s := gateway.Entry{Match: nat.Match{From: prefixes(inside), Out: out.Match.Out}, Action: nat.Action{Kind: nat.SNAT, Prefix: outside}}
	return &made{version: e.version, from: []*entry{e, later[i]},
		rule: gateway.Rule{Netmap: &gateway.Netmap{Inside: gateway.Prefix{Prefix: inside}, Outside: gateway.Prefix{Prefix: outside}}},
		parts: []part{
			{of: in, match: in.Match, destination: &d},
			{of: out, match: out.Match, source: &s},
		}}, ""
}

// mirrored reports whether one NETMAP takes back what the other does.
func mirrored(a, b *entry) bool {
	if a.hook == "prerouting" {
		a, b = b, a
	}
	return a.hook == "postrouting" && b.hook == "prerouting" &&
		a.Rule.Target.Kind == ruleset.Netmap && b.Rule.Target.Kind == ruleset.Netmap &&
		a.Match.Source() == b.Rule.Target.Prefix() && b.Match.Dest() == a.Rule.Target.Prefix() &&
		a.Match.OutName() == b.Match.InName()
}

// makeStatic is for a SNAT and a DNAT of one address for one; nil where there is none.
func (t *translator) makeStatic(e *entry, later []*entry) *made {
	if t.apart[e] || !wholeHost(e) {
		return nil
	}
	i := slices.IndexFunc(later, func(x *entry) bool { return !t.apart[x] && wholeHost(x) && counterpart(e, x) })
	if i < 0 {
		return nil
	}
	out, in := e, later[i]
	if e.hook == "prerouting" {
		out, in = in, e
	}
	inside, outside := out.Match.Source().Addr(), in.Match.Dest().Addr()
	r := &gateway.Static{Inside: gateway.Address{Addr: inside}, Outside: gateway.Address{Addr: outside}}
	m := &made{version: e.version, rule: gateway.Rule{Static: r}, from: []*entry{e, later[i]}}
	d := gateway.Entry{Match: nat.Match{To: prefixes(in.Match.Dest()), In: in.Match.In}, Action: nat.Action{Kind: nat.DNAT, Backends: []nat.Backend{{Address: inside}}}}
	if twin := localTwin(in, later); twin != nil {
		r.Local, d.Local = true, true
		m.from = append(m.from, twin)
	}
	s := sourceOf(out)
	m.parts = []part{{of: in, match: in.Match, destination: &d}, {of: out, match: out.Match, source: &s}}
	return m
}

// wholeHost reports whether an entry is about all that one host sends, or gets.
func wholeHost(e *entry) bool {
	m, g := &e.Match, &e.Rule.Target
	if g.Ports != (nat.Ports{}) || !g.First.IsValid() || g.First != g.Last || g.Random || g.RandomFully || m.Protocol != 0 {
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

func counterpart(a, b *entry) bool {
	if a.hook == "prerouting" {
		a, b = b, a
	}
	return a.hook == "postrouting" && b.hook == "prerouting" && a.Match.OutName() == b.Match.InName() &&
		a.Match.Source().Addr() == b.Rule.Target.First && b.Match.Dest().Addr() == a.Rule.Target.First
}

// localTwin is the same rule in OUTPUT.
func localTwin(e *entry, later []*entry) *entry {
	i := slices.IndexFunc(later, func(x *entry) bool {
		return x.hook == "output" && sameTarget(&x.Rule.Target, &e.Rule.Target) && sameDestination(&x.Match, &e.Match)
	})
	if i < 0 {
		return nil
	}
	return later[i]
}

func sameTarget(a, b *ruleset.Target) bool {
	return a.Kind == b.Kind && a.First == b.First && a.Last == b.Last && a.Ports == b.Ports
}

func sameDestination(a, b *ruleset.Match) bool {
	return slices.Equal(a.From, b.From) && slices.Equal(a.To, b.To) && a.Protocol == b.Protocol && slices.Equal(a.Ports, b.Ports)
}

func prefixes(p netip.Prefix) []netip.Prefix { return ruleset.Some(p) }

// YAML is the gateway file, with the rules that each rule of it stands for above it.
func (r *Result) YAML() string {
	var b strings.Builder
	head := r.Config
	head.NAT, head.IPv6 = nil, nil
	if text := string(gateway.Marshal(&head)); len(r.Config.NAT)+len(r.Config.IPv6) == 0 {
		b.WriteString(withMSS(text, r.MSS))
	} else {
		b.WriteString(strings.Replace(withMSS(text, r.MSS), "gateway: {}", "gateway:", 1))
	}
	ruleList(&b, "nat", r.Config.NAT, r.NAT)
	ruleList(&b, "ipv6", r.Config.IPv6, r.IPv6)
	return b.String()
}

// withMSS puts comments above the line of mss.
func withMSS(text string, origins []string) string {
	var b strings.Builder
	comments(&b, "  ", origins)
	return strings.Replace(text, "  mss:", b.String()+"  mss:", 1)
}

func ruleList(b *strings.Builder, name string, rules []gateway.Rule, origins [][]string) {
	if len(rules) == 0 {
		return
	}
	fmt.Fprintf(b, "  %s:\n", name)
	for i, r := range rules {
		if i == 0 || !slices.Equal(origins[i], origins[i-1]) { // of several ports, once
			comments(b, "    ", origins[i])
		}
		fmt.Fprintf(b, "    - %s\n", gateway.MarshalRule(r))
	}
}

func comments(b *strings.Builder, indent string, texts []string) {
	for _, text := range texts {
		fmt.Fprintf(b, "%s# %s\n", indent, report.Clean(text))
	}
}
