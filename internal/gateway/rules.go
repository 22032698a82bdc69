package gateway

import (
	"cmp"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/nat"
)

// RuleText is a rule of the file as a plan has it.
type RuleText struct {
	Rule Ref `json:"rule"`
	// Text says what it does, with its interfaces and addresses resolved.
	Text string `json:"text"`
	// About is what the rule is about: another rule about the same is its successor.
	About string `json:"-"`
	// Stateless: it translates packet by packet, at all or as EngineEBPF does.
	Stateless bool `json:"-"`
	// log is how it logs, which Text ends with; health is how its hosts are checked, which Text has.
	log, health string
}

// RulesThatDiffer are the rules that two plans were made of, in the order of the files, and
// how many others both have alike in the same place; nil is a plan without any.
func RulesThatDiffer(old, new *Plan) (before, after []RuleText, alike int) {
	differ := map[Ref]bool{}
	o, n := cmp.Or(old, &Plan{}), cmp.Or(new, &Plan{})
	for _, lists := range [][2][]Entry{{o.Sources, n.Sources}, {o.Destinations, n.Destinations}, {o.Stateless, n.Stateless}, {o.Untracked, n.Untracked}} {
		unlike(lists[0], lists[1], sameEntry, func(e *Entry) { differ[e.Rule] = true })
	}
	unlike(o.Waiting, n.Waiting, func(a, b *Waiting) bool { return *a == *b }, func(w *Waiting) { differ[w.Rule] = true })
	before, _ = rulesOf(old, differ)
	after, alike = rulesOf(new, differ)
	return before, after, alike
}

// unlike notes what is not the same in two lists, but for what they begin and end with.
func unlike[E any](a, b []E, same func(a, b *E) bool, note func(*E)) {
	for len(a) > 0 && len(b) > 0 && same(&a[0], &b[0]) {
		a, b = a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 && same(&a[len(a)-1], &b[len(b)-1]) {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	for _, rest := range [][]E{a, b} {
		for i := range rest {
			note(&rest[i])
		}
	}
}

// sameEntry reports whether two entries do the same, whatever the sets that they name have in them.
func sameEntry(a, b *Entry) bool {
	if len(a.Members)+len(b.Members) == 0 {
		return reflect.DeepEqual(a, b)
	}
	x, y := *a, *b
	x.Members, y.Members = nil, nil
	return slices.EqualFunc(a.Members, b.Members, func(m, o nat.Member) bool { return m.Compare(o) == 0 }) && reflect.DeepEqual(x, y)
}

// TextsOf are the rules that a plan was made of, in the order of the file.
func TextsOf(p *Plan) []RuleText {
	all, _ := rulesOf(p, nil)
	return all
}

// rulesOf returns the rules of a plan that differ (nil: all), and the number of the others.
func rulesOf(p *Plan, differ map[Ref]bool) (out []RuleText, alike int) {
	if p == nil {
		return nil, 0
	}
	rules := map[Ref]*rule{}
	of := func(r Ref) *rule {
		if rules[r] == nil {
			rules[r] = &rule{}
		}
		return rules[r]
	}
	for e := range p.Entries() {
		of(e.Rule).add(e)
	}
	for _, w := range p.Waiting {
		r := of(w.Rule)
		r.waiting = append(r.waiting, w.Interface)
	}
	packets := map[Ref]bool{}
	for _, ref := range p.Assigned[EngineEBPF] {
		packets[ref] = true
	}
	for ref, r := range rules {
		if differ != nil && !differ[ref] {
			alike++
			continue
		}
		one := RuleText{Rule: ref, Text: r.text(), About: r.about(ref.Kind), Stateless: packets[ref] || r.first != nil && r.first.Action.Stateless}
		if r.first != nil {
			one.health = r.first.Action.Health()
		}
		if r.first != nil && r.first.Log != nil {
			one.log = r.first.Log.text(ref)
			one.Text += " " + one.log
		}
		out = append(out, one)
	}
	slices.SortFunc(out, func(a, b RuleText) int { return a.Rule.Compare(b.Rule) })
	return out, alike
}

// text is "log", with what differs from the defaults.
func (l *Log) text(r Ref) string {
	text := "log"
	if l.Rate != DefaultLogRate {
		text += " " + l.Rate.String()
	}
	if l.Prefix != defaultPrefix(r) {
		text += fmt.Sprintf(" %q", l.Prefix)
	}
	return text
}

// rule are the entries of one rule of the file.
type rule struct {
	// first is a destination where it has one; back its way out where it has both.
	first, back *Entry
	// to, from and services are the union of all entries of the kind of first.
	to, from []netip.Prefix
	services []nat.Service
	members  []nat.Member
	service  *Entry
	hairpin  bool
	waiting  []string
}

func (r *rule) add(e *Entry) {
	switch {
	case e.IsHairpin():
		r.hairpin = r.hairpin || e.Original[0].Bits() > 0
	case r.first == nil || r.first.Action.Kind == e.Action.Kind:
		r.first = cmp.Or(r.first, e)
		r.to, r.from = append(r.to, e.To...), append(r.from, e.From...)
		r.services = append(r.services, e.Services()...)
		r.members = nat.Union(r.members, e.Members)
		if w := r.service; w == nil || w.Protocol == 0 {
			r.service = e // one with a set of services has no protocol
		}
	default:
		r.back = e
	}
}

// whole is the translation of all entries together.
func (r *rule) whole() nat.Rule {
	if r.back != nil { // one for one
		given := r.first.Action
		w := nat.Rule{Match: r.back.Match, Action: nat.Action{Kind: nat.Pair, Prefix: r.first.On(), To: given.To, Pairs: given.Pairs}}
		w.To, w.NotIn = once(r.from), r.first.NotIn
		w.Members = slices.DeleteFunc(slices.Clone(r.members), func(x nat.Member) bool { return x.Pairs })
		for i := range w.Members {
			if x := &w.Members[i]; x.Of == nat.From {
				x.Of = nat.To
			}
		}
		if r.first.Asked {
			w.In = r.first.In
		}
		return w
	}
	w := nat.Rule{Match: r.first.Match, Action: r.first.Action}
	w.To, w.From, w.Members = once(r.to), once(r.from), r.members
	w.Protocol, w.Ports = r.service.Protocol, r.service.Ports
	return w
}

// several are the services of a rule that are of more than one protocol.
func (r *rule) several() string {
	slices.SortFunc(r.services, func(a, b nat.Service) int {
		return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), orderPorts(a.Ports, b.Ports))
	})
	all := slices.Compact(r.services)
	if len(all) == 0 || all[0].Protocol == all[len(all)-1].Protocol {
		return ""
	}
	var texts []string
	for len(all) > 0 {
		n := slices.IndexFunc(all, func(s nat.Service) bool { return s.Protocol != all[0].Protocol })
		if n < 0 {
			n = len(all)
		}
		var ports []nat.Ports
		for _, s := range all[:n] {
			if s.Ports != nat.AllPorts {
				ports = append(ports, s.Ports)
			}
		}
		texts, all = append(texts, nat.ServiceString(all[0].Protocol, ports)), all[n:]
	}
	return strings.Join(texts, ", ")
}

// once is a list in order and without repetition; nil where there is none.
func once(list []netip.Prefix) []netip.Prefix {
	list = slices.Clone(list)
	slices.SortStableFunc(list, comparePrefixes)
	return slices.Compact(list)
}

// text is the rule in one line, without its kind.
func (r *rule) text() string {
	var parts []string
	if r.first != nil {
		w := r.whole()
		text := w.String()
		if several := r.several(); several != "" {
			text = strings.Replace(text, nat.ServiceString(w.Protocol, w.Ports), several, 1)
		}
		parts = append(parts, text)
		if r.hairpin {
			parts = append(parts, "hairpin")
		}
		if r.first.Local {
			parts = append(parts, "local")
		}
	}
	if len(r.waiting) > 0 {
		parts = append(parts, "waits for an address of "+strings.Join(r.waiting, ", "))
	}
	return strings.Join(parts, " ")
}

// about is what the rule is about: the hosts whose sources it translates, the address
// and port that it is on.
func (r *rule) about(kind string) string {
	if r.first == nil {
		return kind + " waits"
	}
	w := r.whole()
	switch w.Action.Kind {
	case nat.Pair:
		if w.Action.Pairs != "" {
			return "one for one $" + w.Action.Pairs
		}
		return "one for one " + nat.PrefixesString(w.From)
	case nat.DNAT, nat.Redirect:
		w.In = nil
	default:
		w.NotTo = nil
	}
	about := map[bool]string{true: "sources"}[w.Action.Kind.TranslatesSource()]
	return fmt.Sprint(cmp.Or(about, string(w.Action.Kind)), " ", w.Match.String())
}

// held are addresses that no pool gives, as answers to them would not find back to
// the connection: the rule that has them is stateless, or keeps the tracker away.
func (c *Config) held() *rangeIndex {
	all, tables := c.pairsOutside(true)
	c.each(func(r Rule, ref Ref) {
		if r.Notrack != nil {
			all = append(all, indexed{nat.OneAddr(r.Notrack.On.Addr), ref, r.Notrack.Port})
		}
	})
	return newRangeIndex(all, tables)
}

// ofOneHost are the addresses outside that stand for one host each, whose connections
// are tracked: others can share them, and take ports from them.
func (c *Config) ofOneHost() *rangeIndex { return newRangeIndex(c.pairsOutside(false)) }

// pairsOutside are the addresses outside of rules that pair them with those inside.
func (c *Config) pairsOutside(stateless Switch) (all []indexed, tables []indexedTable) {
	c.each(func(r Rule, ref Ref) {
		switch {
		case r.Static != nil && r.Static.Stateless == stateless && r.Static.Pairs != "":
			if s := c.Sets.named(r.Static.Pairs.name()); s != nil {
				tables = append(tables, indexedTable{s.Side(nat.To).Of(ref.BitLen()), ref})
			}
		case r.Static != nil && r.Static.Stateless == stateless:
			all = append(all, indexed{addrs: nat.OneAddr(r.Static.Outside.Addr), by: ref})
		case r.Netmap != nil && r.Netmap.Stateless == stateless:
			all = append(all, indexed{addrs: nat.RangeOf(r.Netmap.Outside.Prefix), by: ref})
		}
	})
	return all, tables
}

// each calls look for every rule that is enabled.
func (c *Config) each(look func(Rule, Ref)) {
	for _, l := range c.lists() {
		for i, r := range l.rules {
			if r.isEnabled() {
				look(r, r.ref(l.name, i))
			}
		}
	}
}

// gives reports whether ports that are given may be one of p.
func gives(ports nat.Ports, p Port) bool {
	_, all := p.Service()
	return mayGive(ports, all)
}

// left is what a pool gives, and what it does not since others hold it. Each of these is in order taken from what is
// left behind the one before, as a set of pairs may have a million.
func (x *rangeIndex) left(to nat.AddrRanges, ports nat.Ports) (left nat.AddrRanges, taken []indexed) {
	for _, r := range to {
		held := slices.DeleteFunc(x.overlapping(r), func(h indexed) bool { return !gives(ports, h.port) })
		slices.SortStableFunc(held, func(a, b indexed) int { return a.addrs.First.Compare(b.addrs.First) })
		rest := nat.AddrRanges{r}
		for _, h := range held {
			if len(rest) > 0 {
				last := rest[len(rest)-1:]
				rest = append(rest[:len(rest)-1], slices.Clone(last).Without(h.addrs)...)
			}
		}
		left, taken = append(left, rest...), append(taken, held...)
	}
	return left, taken
}

// withdraw takes from pools what others hold. The order of rules, or which of them
// says more, does not matter: a connection would lose its answers.
func (b *compiler) withdraw() error {
	held := b.config.held()
	for i := range b.plan.Sources {
		s := &b.plan.Sources[i]
		if s.Rule.Kind != "snat" {
			continue
		}
		var taken []indexed
		if s.Action.To, taken = held.left(s.Action.To, s.Action.Ports); len(s.Action.To) == 0 {
			return fmt.Errorf("%s: nothing is left to give: %s has the addresses, and answers to them would not find back", s.Rule, taken[0].by)
		}
		s.Action.Persistent = s.Action.Persistent && s.choosesAddress()
	}
	return nil
}
