package iptables

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/gateway"
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
	match       Match
	source      *gateway.Source
	destination *gateway.Destination
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
	first := m.from[0].rule.Line
	for _, e := range m.from {
		first = min(first, e.rule.Line)
	}
	return first
}

// make makes one rule of an entry and, where that is one of several that belong
// together, of those, which come later.
func (t *translator) make(e *entry, later []*entry) (*made, string) {
	switch e.rule.Target.Kind {
	case MSS:
		return nil, t.takeMSS(e)
	case Notrack:
		return t.makeNotrack(e, later)
	case Netmap:
		return t.makeNetmap(e, later)
	}
	if m := t.makeStatic(e, later); m != nil {
		return m, ""
	}
	switch e.rule.Target.Kind {
	case Masquerade, SNAT:
		if d := t.hairpinOf(e); d != nil {
			return nil, "belongs to " + where(d.rule) + ", which is not translated"
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
		first := t.mss[0].rule.Target
		if first.Clamp != e.rule.Target.Clamp || first.Bytes != e.rule.Target.Bytes {
			return "the file has one mss, and " + where(t.mss[0].rule) + " has another"
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
	inside, outside := out.match.From, in.match.To
	d := gateway.Destination{On: outside, Prefix: inside, In: names(in.match.In)}
	s := gateway.Source{From: prefixes(inside), Prefix: outside, Out: names(out.match.Out)}
	return &made{version: e.version, from: []*entry{e, later[i]},
		rule: gateway.Rule{Netmap: &gateway.Netmap{Inside: gateway.Prefix{Prefix: inside}, Outside: gateway.Prefix{Prefix: outside}}},
		parts: []part{
			{of: in, match: in.match, destination: &d},
			{of: out, match: out.match, source: &s},
		}}, ""
}

// mirrored reports whether one NETMAP takes back what the other does.
func mirrored(a, b *entry) bool {
	if a.hook == "prerouting" {
		a, b = b, a
	}
	return a.hook == "postrouting" && b.hook == "prerouting" &&
		a.rule.Target.Kind == Netmap && b.rule.Target.Kind == Netmap &&
		a.match.From == b.rule.Target.Prefix && b.match.To == a.rule.Target.Prefix &&
		a.match.Out == b.match.In
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
	inside, outside := out.match.From.Addr(), in.match.To.Addr()
	r := &gateway.Static{Inside: gateway.Address{Addr: inside}, Outside: gateway.Address{Addr: outside}}
	m := &made{version: e.version, rule: gateway.Rule{Static: r}, from: []*entry{e, later[i]}}
	d := gateway.Destination{On: in.match.To, To: gateway.Endpoint{Address: inside}, In: names(in.match.In)}
	if twin := localTwin(in, later); twin != nil {
		r.Local, d.Local = true, true
		m.from = append(m.from, twin)
	}
	s := sourceOf(out)
	m.parts = []part{{of: in, match: in.match, destination: &d}, {of: out, match: out.match, source: &s}}
	return m
}

// wholeHost reports whether an entry is about all that one host sends, or gets.
func wholeHost(e *entry) bool {
	m, g := &e.match, &e.rule.Target
	if g.Ports != (Ports{}) || !g.First.IsValid() || g.First != g.Last || g.Random || g.RandomFully || m.Protocol != "" {
		return false
	}
	switch e.hook {
	case "postrouting":
		except, _ := e.exceptTo()
		return g.Kind == SNAT && m.From.IsValid() && m.From.IsSingleIP() && len(except) == 0
	case "prerouting":
		return g.Kind == DNAT && !m.From.IsValid()
	}
	return false
}

func counterpart(a, b *entry) bool {
	if a.hook == "prerouting" {
		a, b = b, a
	}
	return a.hook == "postrouting" && b.hook == "prerouting" && a.match.Out == b.match.In &&
		a.match.From.Addr() == b.rule.Target.First && b.match.To.Addr() == a.rule.Target.First
}

// localTwin is the same rule in OUTPUT.
func localTwin(e *entry, later []*entry) *entry {
	i := slices.IndexFunc(later, func(x *entry) bool {
		return x.hook == "output" && sameTarget(&x.rule.Target, &e.rule.Target) && sameDestination(&x.match, &e.match)
	})
	if i < 0 {
		return nil
	}
	return later[i]
}

func sameTarget(a, b *Target) bool {
	return a.Kind == b.Kind && a.First == b.First && a.Last == b.Last && a.Ports == b.Ports
}

func sameDestination(a, b *Match) bool {
	return a.From == b.From && a.To == b.To && a.Protocol == b.Protocol && slices.Equal(a.Ports, b.Ports)
}

func names(name string) []string {
	if name == "" {
		return nil
	}
	return []string{name}
}

func prefixes(p netip.Prefix) []netip.Prefix {
	if !p.IsValid() {
		return nil
	}
	return []netip.Prefix{p}
}
