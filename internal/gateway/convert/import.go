package convert

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/ruleset"
)

// Result is a gateway file, and what is not in it.
type Result struct {
	Config gateway.Config
	// NAT, IPv6 and MSS are the rules that each rule of the file stands for, in
	// their own words.
	NAT, IPv6 [][]string
	MSS       []string
	Notes     []ruleset.Note
}

// Untranslated are the notes about rules that the file does not do.
func (r *Result) Untranslated() []ruleset.Note {
	var all []ruleset.Note
	for _, n := range r.Notes {
		if n.Kind == ruleset.Untranslated {
			all = append(all, n)
		}
	}
	return all
}

// Exact reports whether the file does all that the rules do, and nothing else.
func (r *Result) Exact() bool {
	return !slices.ContainsFunc(r.Notes, func(n ruleset.Note) bool { return n.Kind == ruleset.Untranslated || n.Kind == ruleset.Differs })
}

// Import translates what a gateway file says exactly, and says of the rest why not.
// That the file means the same is not believed but compared with what Compile makes
// of it: conditions, what is given, and which of two rules wins.
func Import(set *ruleset.Ruleset) (*Result, error) {
	t, full, err := translate(set)
	if err != nil {
		return nil, err
	}
	t.rules = gather(t.rules)
	r := t.result()
	off, err := t.off(set, len(r.Config.Interfaces.WAN) > 0)
	if err != nil {
		return nil, err
	}
	label(slices.Concat(t.rules, off))
	r.rules(t.rules)
	r.rules(off)
	r.Notes = together(slices.Concat(set.Notes, r.Notes, strays(set, t.entries, full)))
	if full {
		r.Notes = append(r.Notes, ruleset.Note{Kind: ruleset.Untranslated, Rules: 1, Reason: tooDeep})
	}
	slices.SortStableFunc(r.Notes, func(a, b ruleset.Note) int { return cmp.Compare(a.Line, b.Line) })
	return r, nil
}

// translate decides on all rules. full is true if not all could be followed to their end.
func translate(set *ruleset.Ruleset) (t *translator, full bool, err error) {
	t, full = newTranslator(set)
	t.wan = t.findWAN()
	return t, full, t.settle()
}

func newTranslator(set *ruleset.Ruleset) (t *translator, full bool) {
	var work ruleset.Budget
	all, full := flatten(set, &work)
	t = &translator{entries: all, refused: map[*entry]string{}, unreached: map[*entry]string{}, never: map[string]bool{}, apart: map[*entry]bool{}, alone: map[*entry]bool{}, work: &work}
	t.marks = setsMarks(all)
	return t, full
}

// settle decides until nothing changes any more.
func (t *translator) settle() error {
	steps := stepsOf(t.entries)
	for range len(t.entries) + 1 {
		if !t.work.Takes(steps) {
			return fmt.Errorf("import rules: %w", ruleset.ErrTooMany)
		}
		if t.pass(); t.again {
			continue
		}
		if t.order(); t.again {
			continue
		}
		changed, err := t.verify()
		if err != nil {
			return err
		}
		if !changed {
			break
		}
	}
	return nil
}

// off are the rules that are disabled, as far as the file can say them, each for itself: others take nothing from them.
// wan is true where the file names an interface so.
func (t *translator) off(set *ruleset.Ruleset, wan bool) (all []*made, err error) {
	for _, one := range set.Off {
		o, _ := newTranslator(one)
		if wan {
			o.wan = t.wan
		}
		if err := o.settle(); err != nil {
			return nil, err
		}
		for _, m := range gather(o.rules) {
			m.rule.Enabled = new(gateway.Switch(false))
			all = append(all, m)
		}
	}
	return all, nil
}

// translator decides on entries until all that is left is right.
type translator struct {
	entries []*entry
	wan     string
	// refused has the reasons that were found against entries, unreached those by which no packet comes to them; apart
	// are those that are not to be one of a pair for both directions, alone those that are not to be one with that of
	// OUTPUT.
	refused, unreached map[*entry]string
	apart, alone       map[*entry]bool
	// never are parts of entries that other rules of the file take the packets of.
	never map[string]bool
	work  *ruleset.Budget

	// marks is a rule of NAT that sets the mark of packets, which the file does not.
	marks *ruleset.Rule

	// What a pass decided: notes, what is left of each entry's packets, and the rules of the file.
	notes        map[*entry]ruleset.Note
	forms        map[*entry][]nat.Match
	untranslated []*entry // up to the one that is judged
	rules        []*made
	mss          []*entry
	again        bool
}

// findWAN is the interface of rules for both directions, which have no word for one, or one that is called so, where
// every rule names an interface; else empty. Rules that no file can say either way do not count.
func (t *translator) findWAN() (wan string) {
	for _, e := range t.entries {
		m := &e.Match
		switch {
		case e.Owner != "" || !e.Rule.Target.Translates() || e.everywhere() && e.express("") != "":
			continue
		case e.everywhere() && (e.hook == "prerouting" || e.hook == "postrouting"):
			return ""
		case slices.Contains(slices.Concat(m.In, m.Out, m.NotIn, m.NotOut), gateway.RoleWAN): // no other may have its name
			wan = gateway.RoleWAN
		case wan == "" && e.hook == "postrouting" && len(m.Out) == 1 && slices.ContainsFunc(t.entries, e.isBack):
			wan = m.Out[0]
		}
	}
	if strings.HasSuffix(wan, "*") {
		return ""
	}
	return wan
}

// isBack reports whether another rule takes back, on the same interface, what a rule about sources does.
func (e *entry) isBack(in *entry) bool {
	g, back := &e.Rule.Target, &in.Rule.Target
	sources, given := e.Match.Source(), (nat.AddrRange{First: g.First, Last: g.Last}).Prefix()
	return in.hook == "prerouting" && in.Match.InName() == e.Match.OutName() && sources.IsValid() && given.IsValid() &&
		in.Match.Dest() == given && back.First == sources.Addr() && back.Last == nat.LastAddr(sources)
}

// setsMarks is the first rule of a table of NAT, which goes with it, that sets marks.
func setsMarks(all []*entry) *ruleset.Rule {
	for _, e := range all {
		if r := e.Rule; e.Owner == "" && !e.filter && (len(r.Marks) > 0 || r.Target.Name == "MARK" || r.Target.Name == "CONNMARK" || strings.Contains(r.Text, "mark set")) {
			return r
		}
	}
	return nil
}

// pass decides on every entry, and makes rules of those that can be in the file.
func (t *translator) pass() {
	t.notes, t.forms, t.untranslated, t.rules, t.mss, t.again = map[*entry]ruleset.Note{}, map[*entry][]nat.Match{}, nil, nil, nil, false
	var open []*entry
	for i, e := range t.entries {
		kind, reason := t.judge(i)
		if kind == "" {
			open = append(open, e)
			continue
		}
		t.note(e, kind, reason)
		if kind == ruleset.Untranslated {
			t.untranslated = append(t.untranslated, e)
		}
	}
	t.build(open)
}

func (t *translator) note(e *entry, kind, reason string) {
	t.notes[e] = ruleset.Note{Line: e.Rule.Line, Text: e.Rule.Text, Kind: kind, Reason: reason, Rules: 1}
}

// differs notes something in which the file is not what the entry is; there may be several.
func (t *translator) differs(e *entry, how string) {
	if n, noted := t.notes[e]; noted && !strings.Contains(n.Reason, how) {
		how = n.Reason + "; " + how
	}
	t.note(e, ruleset.Differs, how)
}

// result is what the last pass made.
func (t *translator) result() *Result {
	r := &Result{Config: t.config()}
	r.Config.NAT, r.Config.IPv6 = nil, nil
	r.MSS = originsOf(t.mss)
	r.Notes = t.summary()
	return r
}

// rules adds rules to the file, with what they stand for.
func (r *Result) rules(list []*made) {
	for _, m := range list {
		texts := originsOf(m.from)
		if m.version == 4 {
			r.Config.NAT, r.NAT = append(r.Config.NAT, m.rule), append(r.NAT, texts)
		} else {
			r.Config.IPv6, r.IPv6 = append(r.Config.IPv6, m.rule), append(r.IPv6, texts)
		}
	}
}

func originsOf(list []*entry) (texts []string) {
	for _, e := range list {
		for _, r := range append(e.also, e.Rule) {
			if !slices.Contains(texts, r.Text) {
				texts = append(texts, r.Text)
			}
		}
	}
	return texts
}

// severity orders what notes say of one rule.
var severity = map[string]int{ruleset.Unreachable: 1, ruleset.Redundant: 2, ruleset.Differs: 3, ruleset.Untranslated: 4}

// summary is the notes, one for each rule: the worst of one that is reached in several
// ways. Parts of one rule that are not translated have one together.
func (t *translator) summary() (all []ruleset.Note) {
	type part struct {
		base   *ruleset.Chain
		handle uint64
	}
	worst, first, more := map[*ruleset.Rule]ruleset.Note{}, map[part]int{}, map[int]int{}
	taken := map[*ruleset.Rule]bool{}
	for _, e := range t.entries {
		_, noted := t.notes[e]
		taken[e.Rule] = taken[e.Rule] || !noted
	}
	for _, e := range t.entries {
		if taken[e.Rule] && t.notes[e].Kind == ruleset.Unreachable { // that way, but by another one
			continue
		}
		if n, ok := t.notes[e]; ok && severity[n.Kind] >= severity[worst[e.Rule].Kind] && worst[e.Rule].Kind != n.Kind {
			worst[e.Rule] = n
		}
	}
	for _, e := range t.entries {
		n, ok := worst[e.Rule]
		delete(worst, e.Rule)
		p := part{e.Base, e.Rule.Handle}
		i, again := first[p]
		switch {
		case !ok || e.Rule.Target.Name == ruleset.Unread:
		case again && n.Kind == ruleset.Untranslated && p.handle != 0:
			more[i]++
		default:
			if n.Kind == ruleset.Untranslated {
				first[p] = len(all)
			}
			all = append(all, n)
			for _, r := range e.also {
				if r.Line != e.Rule.Line || r.Text != e.Rule.Text {
					n.Line, n.Text = r.Line, r.Text
					all = append(all, n)
				}
			}
		}
	}
	for i, n := range more {
		all[i].Text += fmt.Sprintf(", and %d more of this rule's elements", n)
	}
	return all
}

const tooDeep = "the chains lead to each other too often to be followed to their end"

// strays are notes about the rules that packets were not followed to: those of tables and
// chains that are not NAT's, and those that no packet comes to. If full is true, packets
// were not followed to their end, and those may be met after all.
func strays(set *ruleset.Ruleset, entries []*entry, full bool) (all []ruleset.Note) {
	met := map[*ruleset.Rule]bool{}
	for _, e := range entries {
		met[e.Rule] = true
		for _, r := range e.also {
			met[r] = true
		}
	}
	for _, t := range set.Tables {
		for _, c := range t.Chains {
			for _, r := range c.Rules {
				n, ok := stray(t, c, r)
				if met[r] || r.Target.Name == ruleset.Unread || !ok {
					continue
				}
				if full && n.Kind == ruleset.Unreachable {
					n.Kind, n.Reason = ruleset.Untranslated, tooDeep
				}
				all = append(all, n)
			}
		}
	}
	return all
}

// stray is the note about a rule that is no entry; none where it only leads packets on.
func stray(t *ruleset.Table, c *ruleset.Chain, r *ruleset.Rule) (ruleset.Note, bool) {
	n := ruleset.Note{Line: r.Line, Text: r.Text, Kind: ruleset.LeftAlone, Rules: 1}
	owner := t.OwnerOf(c, r)
	switch k := r.Target.Kind; {
	case owner != "":
		n.Reason = "is " + ruleset.Possessive(owner)
	case !t.IsNAT() && t.Name != "nat":
		n.Reason = notNAT(t.Name)
	case k == ruleset.Accept || k == ruleset.Return || k == ruleset.Jump || k == ruleset.Goto:
		return n, false
	default:
		n.Kind, n.Reason = ruleset.Unreachable, "none comes to the chain "+c.Name+" that meets its conditions"
	}
	return n, true
}

func notNAT(table string) string {
	if !ruleset.IsBuiltin(table) {
		return "is in a chain of filters, not of NAT"
	}
	return "is the table " + table + "'s, not NAT's"
}

// together makes one note of those that leave rules alone for the same reason, and of
// those that are the same.
func together(notes []ruleset.Note) (all []ruleset.Note) {
	seen, first := map[ruleset.Note]bool{}, map[string]int{}
	for _, n := range notes {
		again := seen[n] && (n.Line != 0 || n.Kind == ruleset.Differs)
		seen[n] = true
		at, alike := first[n.Reason]
		switch {
		case again:
		case n.Kind != ruleset.LeftAlone:
			all = append(all, n)
		case alike:
			all[at].Rules, all[at].Text = all[at].Rules+n.Rules, ""
		default:
			first[n.Reason] = len(all)
			all = append(all, n)
		}
	}
	return all
}

// gather makes one rule of those that are parts of one and differ in the sources, the destinations or the services
// alone. Compile takes lists apart again: nothing changes.
func gather(rules []*made) (all []*made) {
next:
	for _, m := range rules {
		for i := len(all) - 1; i >= 0 && sameOrigin(all[i].from[0].Rule, m.from[0].Rule); i-- {
			if all[i].takes(m) {
				continue next
			}
		}
		all = append(all, m)
	}
	return all
}

func sameOrigin(a, b *ruleset.Rule) bool {
	return a.Line == b.Line && a.Handle == b.Handle && (a.Line != 0 || a.Handle != 0)
}

// lists are those of a rule that may be joined with another's.
func (m *made) lists() (from, to *gateway.Prefixes, port *gateway.Services, days *gateway.Days) {
	r := &m.rule
	switch {
	case r.Masquerade != nil:
		return &r.Masquerade.From, &r.Masquerade.OnlyTo, &r.Masquerade.Port, &r.Masquerade.UTCDays
	case r.SNAT != nil:
		return &r.SNAT.From, &r.SNAT.OnlyTo, &r.SNAT.Port, &r.SNAT.UTCDays
	case r.DNAT != nil:
		return &r.DNAT.From, &r.DNAT.OnlyTo, &r.DNAT.Port, &r.DNAT.UTCDays
	}
	return nil, nil, nil, nil
}

// takes adds the values of one of another rule's lists to m's if nothing else differs.
func (m *made) takes(other *made) bool {
	from, to, port, days := m.lists()
	otherFrom, otherTo, otherPort, otherDays := other.lists()
	if from == nil || otherFrom == nil || m.version != other.version || m.rule.Kind() != other.rule.Kind() {
		return false
	}
	joined := joins(m, other, from, otherFrom) || joins(m, other, to, otherTo) ||
		!m.shifts() && !port.Meet(*otherPort) && joins(m, other, port, otherPort) || len(*days)+len(*otherDays) < 7 && joins(m, other, days, otherDays)
	if joined {
		slices.Sort(*days)
		m.from = append(m.from, other.from...)
	}
	return joined
}

// shifts reports whether ports become others, each the one at its place.
func (m *made) shifts() bool { return m.rule.DNAT != nil && m.rule.DNAT.To[0].Last != 0 }

func joins[S ~[]T, T any](m, other *made, mine, others *S) bool {
	if len(*mine)*len(*others) == 0 {
		return false
	}
	before := *mine
	*mine = *others
	same := reflect.DeepEqual(m.rule, other.rule)
	*mine = before
	if same {
		*mine = append(slices.Clip(before), *others...)
	}
	return same
}

// stepsOf is how often a pass compares entries with others of their side.
func stepsOf(all []*entry) (steps int) {
	sizes := map[side]int{}
	for _, e := range all {
		sizes[e.side] += e.Size()
	}
	for _, e := range all {
		if left, _ := e.leftAlone(); left {
			continue
		}
		m := e.Match.Size()
		steps += m * (sizes[e.side] - m)
	}
	return steps
}

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
