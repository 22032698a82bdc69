package convert

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/nat"
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
	case t.unreached[e] != "":
		return ruleset.Unreachable, t.unreached[e]
	}
	if by := t.coveredBy(i); by != nil {
		return ruleset.Unreachable, where(by) + " takes all its packets first"
	}
	if m := &e.Match; t.marks != nil && e.translates && (m.Mark.Mask != 0 || len(m.NotMarks) > 0) {
		return ruleset.Untranslated, where(t.marks) + " sets marks in a table of NAT, which natkit does not"
	}
	before, reason := t.before(i)
	if reason = cmp.Or(e.express(t.wan), reason); reason == "" && e.translates {
		t.forms[e], reason = e.forms(before)
		if reason == "" && len(t.forms[e]) == 0 {
			return ruleset.Unreachable, "rules before it take all its packets first"
		}
	}
	if reason == "" {
		return "", ""
	}
	if by := t.doneBy(i); by != nil {
		return ruleset.Redundant, where(by) + " does the same to its packets"
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
	case e.filter && !e.Rule.Target.Outside():
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
		if b.side == e.side && !farApart(&b.Match.Match, &e.Match.Match) && !rivals(b, e) && b.Rule.Target.Kind != ruleset.Ends && len(b.Except) == 0 && b.Match.Covers(&e.Match) {
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

// before are the rules that are not in the file and get some of the entry's packets first; reason is why it cannot be
// in the file for another's sake.
func (t *translator) before(i int) (all []*entry, reason string) {
	e := t.entries[i]
	if !e.translates {
		return nil, ""
	}
	meets := func(b *entry) bool {
		return b != e && b.side == e.side && !farApart(&b.Match.Match, &e.Match.Match) && !b.Match.Disjoint(&e.Match)
	}
	for _, b := range t.untranslated {
		switch {
		case !meets(b):
		case b.Rule.Target.Name == ruleset.Unread:
			return nil, where(b.Rule) + ", which natkit cannot read, may change what its packets get"
		case b.Rule.Target.Kind == ruleset.Ends:
			return nil, where(b.Rule) + ", which is not translated, may get some of its packets first"
		case !givesSame(&b.Rule.Target, &e.Rule.Target):
			all = append(all, b)
		}
	}
	for j, b := range t.entries {
		switch {
		case rivals(b, e) && meets(b):
			return nil, where(b.Rule) + " is at the same hook and priority in another table: which of the two comes first is not known"
		case j > i && b.Owner != "" && meets(b):
			return nil, fmt.Sprintf("%s, which is %s, would get some of its packets first: natkit's rules come after those of other programs", where(b.Rule), ruleset.Possessive(b.Owner))
		}
	}
	return all, ""
}

// givesSame reports whether it makes no difference which of two rules a packet meets.
func givesSame(a, b *ruleset.Target) bool {
	return sameTarget(a, b) && a.Translates() && a.Kind != ruleset.Ends && len(a.Unknown)+len(b.Unknown) == 0 && a.Besides == b.Besides &&
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
	byRef := textsOf(plan)
	for i, ref := range t.refs() {
		if !t.rules[i].matches(byRef[ref]) {
			t.reject(t.rules[i], "natkit would make something else of it")
			changed = true
		}
	}
	return changed || readable(&c) != nil && t.refuseAlone(readable) || t.check(&c), nil
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

// reject takes a rule out, or, if it is one of a pair, only their being together.
func (t *translator) reject(m *made, reason string) {
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
			t.reject(all[i], err.Error())
			changed = true
		}
	}
	return changed
}

// textsOf are the entries that a plan made of each rule, written without what does not matter.
func textsOf(plan *gateway.Plan) map[gateway.Ref][]string {
	all := map[gateway.Ref][]string{}
	for e := range plan.Entries() {
		if e.Action.Kind != nat.Notrack {
			all[e.Rule] = append(all[e.Rule], written(*e))
		}
	}
	return all
}

// written is an entry in JSON, in which no list and an empty one are the same, and lists have an order.
func written(e gateway.Entry) string {
	e.Log = nil // by which no packet is translated otherwise
	e.Rule, e.NotTo, e.NotFrom = gateway.Ref{}, sorted(e.NotTo), sorted(e.NotFrom)
	e.Hours, e.NotHours = slices.SortedFunc(slices.Values(e.Hours), earlier), slices.SortedFunc(slices.Values(e.NotHours), earlier)
	e.Days, e.NotDays = slices.Sorted(slices.Values(e.Days)), slices.Sorted(slices.Values(e.NotDays))
	e.In, e.NotIn, e.Out, e.NotOut = inOrder(e.In), inOrder(e.NotIn), inOrder(e.Out), inOrder(e.NotOut)
	e.Ports = slices.SortedFunc(slices.Values(e.Ports), func(a, b nat.Ports) int { return cmp.Compare(a.First, b.First) })
	text, err := json.Marshal(e)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

func earlier(a, b nat.Hours) int { return cmp.Compare(a.First, b.First) }

func inOrder(names []string) []string { return slices.Sorted(slices.Values(names)) }

func sorted(list []netip.Prefix) []netip.Prefix {
	return slices.SortedFunc(slices.Values(list), func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
}

// matches reports whether these are the rule's parts and no others.
func (m *made) matches(got []string) bool {
	var want []string
	for i := range m.parts {
		want = append(want, written(m.parts[i].want))
	}
	slices.Sort(want)
	return slices.Equal(want, slices.Sorted(slices.Values(got)))
}

// check refuses what `natkit gateway check` would.
func (t *translator) check(c *gateway.Config) (changed bool) {
	refs := t.refs()
	for _, f := range gateway.Check(&gateway.File{Config: *c}, gateway.Facts{}) {
		if f.Severity != gateway.Refuse || f.Rule == nil {
			continue
		}
		i := slices.Index(refs, *f.Rule)
		switch {
		case i < 0:
			continue
		case f.ID == "rule-never-matches" && !t.rules[i].isPair(): // as in the original, of which the order is kept
			t.never[t.rules[i].key()] = true
		default:
			t.reject(t.rules[i], "natkit would refuse it: "+f.Message)
		}
		changed = true
	}
	return changed
}
