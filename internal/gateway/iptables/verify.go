package iptables

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/gateway"
)

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

func sameSource(want, got gateway.Source) bool {
	got.Rule = gateway.Ref{}
	want.NotTo, got.NotTo = sorted(want.NotTo), sorted(got.NotTo)
	return same(want, got)
}

func sameEntry(want, got gateway.Destination) bool {
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
					disjoint(&first.part.match, &later.part.match) {
					continue
				}
				refused[later.made] = true
				t.refuse(later.made, fmt.Sprintf("%s wins now where both match, as it comes first; natkit lets the more specific rule win, and that is this one", where(first.part.of.rule)))
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
