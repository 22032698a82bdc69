package convert

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/ruleset"
)

// judge returns what is to become of an entry instead of a rule of the file; kind is
// empty if it can be one.
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
	if reason == "" {
		reason = t.inTheWay(i)
	} else if by := t.doneBy(i); by != nil {
		return ruleset.Redundant, where(by) + " does the same to its packets"
	}
	if reason == "" {
		return "", ""
	}
	return ruleset.Untranslated, reason
}

// leftAlone returns why an entry is none of a gateway's.
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

// rivals reports whether it is not known which of two chains comes first, as of
// iptables-nft and iptables-legacy.
func rivals(a, b *entry) bool {
	return a.Base != b.Base && a.Base.Priority == b.Base.Priority && a.Owner == "" && b.Owner == ""
}

// inTheWay returns which rule that is not in the file changes what this one gets.
func (t *translator) inTheWay(i int) string {
	e := t.entries[i]
	if !e.translates {
		return ""
	}
	meets := func(b *entry) bool { return b != e && b.side == e.side && !b.Match.Disjoint(&e.Match) }
	for _, b := range t.untranslated {
		if meets(b) && b.Rule.Target.Name == ruleset.Unread {
			return where(b.Rule) + ", which natkit cannot read, may change what its packets get"
		}
		if meets(b) && !givesSame(&b.Rule.Target, &e.Rule.Target) {
			return where(b.Rule) + ", which is not translated, gets some of its packets first"
		}
	}
	for j, b := range t.entries {
		switch {
		case rivals(b, e) && meets(b):
			return where(b.Rule) + " is at the same hook and priority in another table: which of the two comes first is not known"
		case j > i && b.Owner != "" && meets(b):
			return fmt.Sprintf("%s, which is %s, would get some of its packets first: natkit's rules come after those of other programs", where(b.Rule), ruleset.Possessive(b.Owner))
		}
	}
	return ""
}

// givesSame reports whether it makes no difference which of two rules a packet meets.
func givesSame(a, b *ruleset.Target) bool {
	return sameTarget(a, b) && a.Translates() && a.Kind != ruleset.Ends && len(a.Unknown)+len(b.Unknown) == 0 &&
		a.Random == b.Random && a.FullyRandom == b.FullyRandom && a.Persistent == b.Persistent
}

// verify compares the rules with the plan that Compile makes of them, and refuses
// those that would become something else. It reports whether it refused any.
func (t *translator) verify() (changed bool, err error) {
	c := t.config()
	plan, err := gateway.Compile(&c, gateway.Facts{})
	if err != nil {
		if t.refuseAlone(compiles) {
			return true, nil
		}
		return false, fmt.Errorf("compile the imported rules: %w", err)
	}
	byRef := placesOf(plan)
	for i, ref := range t.refs() {
		if !t.rules[i].matches(byRef[ref]) {
			t.refuse(&t.rules[i], "natkit would make something else of it")
			changed = true
		}
	}
	return changed || t.checkOrder() || readable(&c) != nil && t.refuseAlone(readable) || t.check(&c), nil
}

func compiles(c *gateway.Config) error {
	_, err := gateway.Compile(c, gateway.Facts{})
	return err
}

// readable returns why a file cannot say something, such as interfaces whose name it would
// take for an address.
func readable(c *gateway.Config) error {
	if _, err := gateway.Parse("", gateway.Marshal(c)); err != nil {
		return errors.New("a gateway file cannot say it: " + gateway.MarshalRule(slices.Concat(c.NAT, c.IPv6, []gateway.Rule{{}})[0]))
	}
	return nil
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

// refuse takes a rule out, or, if it is one of a pair, only their being together.
func (t *translator) refuse(m *made, reason string) {
	for _, e := range m.from {
		if m.rule.Static != nil {
			t.apart[e] = true
		} else {
			t.refused[e] = reason
		}
	}
}

// refuseAlone refuses the rules that fail in a file of their own.
func (t *translator) refuseAlone(test func(*gateway.Config) error) (changed bool) {
	all := t.rules
	defer func() { t.rules = all }()
	for i := range all {
		t.rules = all[i : i+1]
		c := t.config()
		if err := test(&c); err != nil {
			t.refuse(&all[i], err.Error())
			changed = true
		}
	}
	return changed
}

// place is where a plan has an entry, written without what does not matter.
type place struct {
	at   int
	text string
}

// placesOf are the entries that a plan made of each rule.
func placesOf(plan *gateway.Plan) map[gateway.Ref][]place {
	all := map[gateway.Ref][]place{}
	for _, list := range [][]gateway.Entry{plan.Sources, plan.Destinations} {
		for i, e := range list {
			all[e.Rule] = append(all[e.Rule], place{i, written(e)})
		}
	}
	return all
}

// written is an entry in JSON, in which no list and an empty one are the same.
func written(e gateway.Entry) string {
	e.Rule, e.NotTo = gateway.Ref{}, sorted(e.NotTo)
	text, err := json.Marshal(e)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

func sorted(list []netip.Prefix) []netip.Prefix {
	return slices.SortedFunc(slices.Values(list), func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
}

// matches reports whether these are the rule's parts and no others, and notes where.
func (m *made) matches(got []place) bool {
	if len(m.parts) != len(got) {
		return false
	}
	for i := range m.parts {
		p := &m.parts[i]
		text := written(p.want)
		j := slices.IndexFunc(got, func(g place) bool { return g.text == text })
		if j < 0 {
			return false
		}
		p.at = got[j].at
	}
	return true
}

// checkOrder refuses rules that natkit would let win over one that wins now: in
// iptables the first one that matches, here the most specific one.
func (t *translator) checkOrder() bool {
	order := map[*entry]int{}
	for i, e := range t.entries {
		order[e] = i
	}
	type ranked struct {
		*part
		made *made
	}
	sides := map[side][]ranked{}
	for i := range t.rules {
		for j := range t.rules[i].parts {
			p := &t.rules[i].parts[j]
			key := side{version: t.rules[i].version, translates: p.want.Action.Kind.TranslatesSource()}
			sides[key] = append(sides[key], ranked{p, &t.rules[i]})
		}
	}
	refused := map[*made]bool{}
	for _, all := range sides {
		slices.SortStableFunc(all, func(a, b ranked) int { return cmp.Compare(order[a.of], order[b.of]) })
		for i, later := range all {
			for _, first := range all[:i] {
				if later.at > first.at || later.made == first.made || refused[first.made] || refused[later.made] || first.match.Disjoint(&later.match) {
					continue
				}
				refused[later.made] = true
				t.refuse(later.made, where(first.of.Rule)+" wins now where both match, as it comes first; natkit lets the more specific rule win, and that is this one")
			}
		}
	}
	return len(refused) > 0
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
