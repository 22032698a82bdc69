package iptables

import (
	"cmp"
	"fmt"
	"slices"

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

// Exact reports whether the file does all that the rules do, and nothing else.
func (r *Result) Exact() bool {
	return !slices.ContainsFunc(r.Notes, func(n Note) bool { return n.Kind == Untranslated || n.Kind == Differs })
}

// Import translates what a gateway file says exactly, and says of the rest why not.
// That the file means the same is not believed but compared with what Compile makes
// of it: conditions, what is given, and which of two rules wins.
func Import(set *Ruleset) (*Result, error) {
	var work budget
	all, full := flatten(set, &work)
	t := translator{entries: all, refused: map[*entry]string{}, apart: map[*entry]bool{}, hairpins: map[*entry]*entry{}, work: &work}
	steps := stepsOf(all)
	t.wan, t.rivals = t.findWAN(), t.findRivals()
	for range len(all) + 1 {
		if set.tooMany || !work.takes(steps) {
			return nil, fmt.Errorf("import rules: %w", errTooMany)
		}
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
	r.Notes = together(append(withoutRepetition(append(slices.Clone(set.Notes), r.Notes...)), strays(set, all, full)...))
	if full {
		r.Notes = append(r.Notes, Note{Kind: Untranslated, Rules: 1, Reason: tooDeep})
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
	// hairpins are those that hairpinOf found.
	hairpins map[*entry]*entry
	work     *budget

	// What a pass decided: notes, and the rules of the file.
	notes        map[*entry]Note
	untranslated []*entry // up to the one that is judged
	rules        []made
	mss          []*entry
	again        bool
}

// findWAN is the one interface that all rules about destinations name, where every
// rule about sources names one too; else empty. Rules that name none and that no file
// can say either way do not count.
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
		case e.everywhere() && e.express("") != "":
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
	return t.ofParts(all, at)
}

// ofParts makes one note of those about parts of one rule that are not translated.
func (t *translator) ofParts(notes []Note, at map[*Rule]int) (all []Note) {
	type origin struct {
		base   int
		handle uint64
	}
	of, more := map[int]origin{}, map[origin]int{}
	for _, e := range t.entries {
		if i, ok := at[e.rule]; ok && e.rule.Handle != 0 && notes[i].Kind == Untranslated {
			of[i] = origin{e.base, e.rule.Handle}
		}
	}
	first := map[origin]int{}
	for i, n := range notes {
		o, part := of[i]
		if _, again := first[o]; part && again {
			more[o]++
			continue
		}
		if part {
			first[o] = len(all)
		}
		all = append(all, n)
	}
	for o, n := range more {
		all[first[o]].Text += fmt.Sprintf(", and %d more of this rule's elements", n)
	}
	return all
}
