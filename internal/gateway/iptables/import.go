package iptables

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/gateway"
)

// Result is a gateway file, and what is not in it.
type Result struct {
	Config gateway.Config
	// NAT, IPv6 and MSS are the rules that each rule of the file stands for, in
	// their own words.
	NAT, IPv6 [][]string
	MSS       []string
	Notes     []Note
}

// Untranslated are the notes about rules that the file does not do.
func (r *Result) Untranslated() []Note {
	var all []Note
	for _, n := range r.Notes {
		if n.Kind == Untranslated {
			all = append(all, n)
		}
	}
	return all
}

// Exact tells whether the file does all that the rules do, and nothing else.
func (r *Result) Exact() bool {
	return !slices.ContainsFunc(r.Notes, func(n Note) bool { return n.Kind == Untranslated || n.Kind == Differs })
}

// Import translates what a gateway file says exactly, and says of the rest why not.
// That the file means the same is not believed but compared with what Compile makes
// of it: conditions, what is given, and which of two rules wins.
func Import(set *Ruleset) (*Result, error) {
	all, full := flatten(set)
	t := translator{entries: all, refused: map[*entry]string{}, apart: map[*entry]bool{}}
	t.wan, t.rivals = t.findWAN(), t.findRivals()
	for range len(all) + 1 {
		if t.pass(); t.again {
			continue
		}
		changed, err := t.verify()
		if err != nil {
			return nil, err
		}
		if !changed {
			break
		}
	}
	t.rules = gather(t.rules)
	r := t.result()
	r.Notes = together(append(withoutRepetition(append(slices.Clone(set.Notes), r.Notes...)), strays(set, all)...))
	if full {
		r.Notes = append(r.Notes, Note{Kind: Untranslated, Rules: 1, Reason: "the chains lead to each other too often to be followed to their end"})
	}
	slices.SortStableFunc(r.Notes, func(a, b Note) int { return cmp.Compare(a.Line, b.Line) })
	return r, nil
}

// withoutRepetition keeps one of the notes about the same text.
func withoutRepetition(notes []Note) []Note {
	seen := map[Note]bool{}
	return slices.DeleteFunc(notes, func(n Note) bool {
		again := seen[n]
		seen[n] = true
		return again
	})
}

// translator decides on entries until all that is left is right.
type translator struct {
	entries []*entry
	wan     string
	// lan is the interface by which hairpins go.
	lan    string
	rivals map[rivalry][]*entry
	// refused has the reasons that verify found; apart are those that are not to be
	// one of a pair.
	refused map[*entry]string
	apart   map[*entry]bool

	// What a pass decided: notes, and the rules of the file.
	notes        map[*entry]Note
	untranslated []*entry // up to the one that is judged
	rules        []made
	mss          []*entry
	again        bool
}

// findWAN is the one interface that all rules about destinations name, where every
// rule about sources names one too; else empty.
func (t *translator) findWAN() string {
	wan := ""
	for _, e := range t.entries {
		if e.match.Out == gateway.RoleWAN { // an interface of that name
			wan = gateway.RoleWAN
		}
	}
	for _, e := range t.entries {
		if e.owner != "" || !e.rule.Target.translates() {
			continue
		}
		switch in := e.match.In; {
		case e.hook == "prerouting" && (in == "" || wan != "" && in != wan):
			return ""
		case e.hook == "prerouting":
			wan = in
		case e.hook == "postrouting" && e.match.Out == "":
			return ""
		}
	}
	if len(wan) > 0 && wan[len(wan)-1] == '*' {
		return ""
	}
	return wan
}

// pass decides on every entry, and makes rules of those that can be in the file.
func (t *translator) pass() {
	t.notes, t.untranslated, t.rules, t.mss, t.lan, t.again = map[*entry]Note{}, nil, nil, nil, "", false
	var open []*entry
	for i, e := range t.entries {
		kind, reason := t.judge(i)
		if kind == "" {
			open = append(open, e)
			continue
		}
		t.notes[e] = Note{Line: e.rule.Line, Text: e.rule.Text, Kind: kind, Reason: reason, Rules: 1}
		if kind == Untranslated {
			t.untranslated = append(t.untranslated, e)
		}
	}
	t.build(open)
}

// judge says what is to become of an entry instead of a rule of the file; kind is
// empty where it can be one.
func (t *translator) judge(i int) (kind, reason string) {
	e := t.entries[i]
	switch k := e.rule.Target.Kind; {
	case e.owner != "":
		return LeftAlone, "is " + possessive(e.owner)
	case k == Pass:
		return LeftAlone, "does not translate"
	case e.filter && k != Notrack && k != MSS:
		return LeftAlone, notNAT(e.table)
	case k == Drop:
		return Untranslated, "drops packets; natkit translates them, and leaves it to a firewall to drop some"
	case t.refused[e] != "":
		return Untranslated, t.refused[e]
	}
	if by := t.coveredBy(i); by != nil {
		return Unreachable, where(by) + " takes all its packets first"
	}
	if d := t.hairpinOf(e); d != nil {
		reason = t.expressHairpin(e, d)
	} else {
		reason = e.express(t.wan)
	}
	if reason != "" {
		if by := t.doneBy(i); by != nil {
			return Redundant, where(by) + " does the same to its packets"
		}
		return Untranslated, reason
	}
	if reason := t.inTheWay(i); reason != "" {
		return Untranslated, reason
	}
	return "", ""
}

func possessive(name string) string {
	if strings.HasSuffix(name, "s") {
		return name + "'"
	}
	return name + "'s"
}

// sameHook are entries whose order matters to each other.
func sameHook(a, b *entry) bool {
	return a.hook == b.hook && a.version == b.version && a.filter == b.filter && a.rule.Target.translates() == b.rule.Target.translates()
}

// coveredBy is a rule after which nothing is left for the entry.
func (t *translator) coveredBy(i int) *Rule {
	e := t.entries[i]
	for _, x := range e.except {
		if covers(&x.match, &e.match) {
			return x.rule
		}
	}
	if !e.rule.Target.translates() {
		return nil
	}
	for _, b := range t.entries[:i] {
		if sameHook(b, e) && !rivals(b, e) && b.rule.Target.Kind != Ends && len(b.except) == 0 && covers(&b.match, &e.match) {
			return b.rule
		}
	}
	return nil
}

// doneBy is a later rule that does to all packets of the entry what it does.
func (t *translator) doneBy(i int) *Rule {
	e := t.entries[i]
	for _, b := range t.entries[i+1:] {
		switch {
		case !sameHook(b, e) || disjoint(&b.match, &e.match):
		case rivals(b, e) || b.owner != "" || !givesSame(&b.rule.Target, &e.rule.Target):
			return nil
		case covers(&b.match, &e.match) && !slices.ContainsFunc(b.except, func(x *exception) bool { return !disjoint(&x.match, &e.match) }):
			return b.rule
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

// rivals tells whether nobody knows which of two chains comes first, as of
// iptables-nft and iptables-legacy.
func rivals(a, b *entry) bool {
	return a.base != b.base && a.priority == b.priority && a.owner == "" && b.owner == ""
}

// findRivals are the entries of places where several chains are.
func (t *translator) findRivals() map[rivalry][]*entry {
	all := map[rivalry][]*entry{}
	for _, e := range t.entries {
		if e.rule.Target.translates() && !e.filter {
			place := rivalry{e.hook, e.version, e.priority}
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
	if !e.rule.Target.translates() {
		return ""
	}
	meets := func(b *entry) bool { return b != e && sameHook(b, e) && !disjoint(&b.match, &e.match) }
	for _, b := range t.untranslated {
		if meets(b) && !givesSame(&b.rule.Target, &e.rule.Target) {
			return fmt.Sprintf("%s, which is not translated, gets some of its packets first", where(b.rule))
		}
	}
	for _, b := range t.rivals[rivalry{e.hook, e.version, e.priority}] {
		if rivals(b, e) && meets(b) {
			return fmt.Sprintf("%s is at the same hook and priority in another table: which of the two comes first the kernel does not tell", where(b.rule))
		}
	}
	for _, b := range t.entries[i+1:] {
		if b.owner != "" && meets(b) {
			return fmt.Sprintf("%s, which is %s, would get some of its packets first: natkit's rules come after those of other programs", where(b.rule), possessive(b.owner))
		}
	}
	return ""
}

// givesSame tells whether it makes no difference which of two rules a packet meets.
func givesSame(a, b *Target) bool {
	return sameTarget(a, b) && a.translates() && a.Kind != Ends && a.Prefix == b.Prefix && len(a.Unknown)+len(b.Unknown) == 0 &&
		a.Random == b.Random && a.RandomFully == b.RandomFully && a.Persistent == b.Persistent
}

// result is what the last pass made.
func (t *translator) result() *Result {
	r := &Result{Config: t.config()}
	for _, m := range t.rules {
		texts := originsOf(m.from)
		if m.version == 4 {
			r.NAT = append(r.NAT, texts)
		} else {
			r.IPv6 = append(r.IPv6, texts)
		}
	}
	r.MSS = originsOf(t.mss)
	r.Notes = t.summary()
	return r
}

func originsOf(list []*entry) (texts []string) {
	for _, e := range list {
		if !slices.Contains(texts, e.rule.Text) {
			texts = append(texts, e.rule.Text)
		}
	}
	return texts
}

// severity orders what notes say of one rule.
var severity = map[string]int{Unreachable: 1, Redundant: 2, Differs: 3, Untranslated: 4}

// summary is the notes, one for each rule. A rule that is reached in several ways has
// one, for the worst.
func (t *translator) summary() (all []Note) {
	at := map[*Rule]int{}
	for _, e := range t.entries {
		n, ok := t.notes[e]
		if !ok || e.rule.Target.Name == unread {
			continue
		}
		switch i, seen := at[e.rule]; {
		case !seen:
			at[e.rule] = len(all)
			all = append(all, n)
		case severity[n.Kind] > severity[all[i].Kind]:
			all[i] = n
		}
	}
	return all
}
