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
	// About tells what the rule is about: another rule about the same is its successor.
	About string `json:"-"`
	// Stateless: it translates packet by packet.
	Stateless bool `json:"-"`
}

// RulesThatDiffer are the rules that two plans were made of, in the order of the files, and
// how many others both have alike in the same place; nil is a plan without any.
func RulesThatDiffer(old, new *Plan) (before, after []RuleText, alike int) {
	differ := map[Ref]bool{}
	for _, c := range []func(a, b *Plan, differ map[Ref]bool){
		unlike(func(p *Plan) []Source { return p.Sources }, func(s *Source) Ref { return s.Rule }),
		unlike(func(p *Plan) []Destination { return p.Destinations }, func(d *Destination) Ref { return d.Rule }),
		unlike(func(p *Plan) []Pair { return p.Stateless }, func(p *Pair) Ref { return p.Rule }),
		unlike(func(p *Plan) []Untracked { return p.Untracked }, func(u *Untracked) Ref { return u.Rule }),
		unlike(func(p *Plan) []Waiting { return p.Waiting }, func(w *Waiting) Ref { return w.Rule }),
	} {
		c(cmp.Or(old, &Plan{}), cmp.Or(new, &Plan{}), differ)
	}
	before, _ = rulesOf(old, differ)
	after, alike = rulesOf(new, differ)
	return before, after, alike
}

// unlike notes the rules whose entries in one list are not the same in two plans, but for
// what the lists begin and end with.
func unlike[E any](list func(*Plan) []E, rule func(*E) Ref) func(a, b *Plan, differ map[Ref]bool) {
	return func(p, q *Plan, differ map[Ref]bool) {
		a, b := list(p), list(q)
		for len(a) > 0 && len(b) > 0 && reflect.DeepEqual(a[0], b[0]) {
			a, b = a[1:], b[1:]
		}
		for len(a) > 0 && len(b) > 0 && reflect.DeepEqual(a[len(a)-1], b[len(b)-1]) {
			a, b = a[:len(a)-1], b[:len(b)-1]
		}
		for _, rest := range [][]E{a, b} {
			for i := range rest {
				differ[rule(&rest[i])] = true
			}
		}
	}
}

// rulesOf are those of a plan's rules that differ, and how many do not.
func rulesOf(p *Plan, differ map[Ref]bool) (out []RuleText, alike int) {
	if p == nil {
		return nil, 0
	}
	c := ruleTexts{rules: map[Ref]*ruleParts{}}
	c.collect(p)
	for ref, parts := range c.rules {
		if !differ[ref] {
			alike++
			continue
		}
		out = append(out, RuleText{Rule: ref, Text: parts.text(ref.Kind), About: parts.about(ref.Kind), Stateless: len(parts.stateless) > 0})
	}
	slices.SortFunc(out, func(a, b RuleText) int { return a.Rule.Compare(b.Rule) })
	return out, alike
}

// ruleParts are the entries of one rule.
type ruleParts struct {
	sources      []*Source
	destinations []*Destination
	stateless    []*Pair
	untracked    []*Untracked
	hairpin      bool
	waiting      []string
}

type ruleTexts struct{ rules map[Ref]*ruleParts }

func (c *ruleTexts) of(r Ref) *ruleParts {
	if c.rules[r] == nil {
		c.rules[r] = &ruleParts{}
	}
	return c.rules[r]
}

func (c *ruleTexts) collect(p *Plan) {
	for i := range p.Sources {
		c.source(&p.Sources[i])
	}
	for i := range p.Destinations {
		d := c.of(p.Destinations[i].Rule)
		d.destinations = append(d.destinations, &p.Destinations[i])
	}
	for i := range p.Stateless {
		s := c.of(p.Stateless[i].Rule)
		s.stateless = append(s.stateless, &p.Stateless[i])
	}
	for i := range p.Untracked {
		u := c.of(p.Untracked[i].Rule)
		u.untracked = append(u.untracked, &p.Untracked[i])
	}
	for _, w := range p.Waiting {
		r := c.of(w.Rule)
		r.waiting = append(r.waiting, w.Interface)
	}
}

func (c *ruleTexts) source(s *Source) {
	parts := c.of(s.Rule)
	switch h := s.Hairpin.Prefix; {
	case !h.IsValid():
		parts.sources = append(parts.sources, s)
	case h.Bits() > 0:
		parts.hairpin = true
	}
}

// text is the rule in one line, without its kind.
func (r *ruleParts) text(kind string) string {
	var w words
	switch {
	case kind == "static" && len(r.destinations) > 0, kind == "netmap" && len(r.destinations) > 0:
		r.oneForOne(&w)
	case len(r.destinations) > 0 || len(r.waiting) > 0:
		r.forward(&w)
	case len(r.sources) > 0:
		s := *r.sources[0]
		s.From = r.from()
		w.say(s.String())
	case len(r.stateless) > 0:
		w.say(r.stateless[0].String())
	case len(r.untracked) > 0:
		w.say(r.untracked[0].String())
	}
	w.add("waits for an address of", strings.Join(r.waiting, ", "))
	return w.String()
}

// from are the prefixes of all entries of a rule about sources.
func (r *ruleParts) from() (all []netip.Prefix) {
	for _, s := range r.sources {
		all = append(all, s.From...)
	}
	return all
}

// oneForOne is a static rule or a netmap.
func (r *ruleParts) oneForOne(w *words) {
	d := r.destinations[0]
	w.say(d.becomes())
	w.add("is outside", nat.PrefixString(d.On))
	w.add("out", strings.Join(r.sources[0].Out, ", "))
	r.switches(w, d.Local)
}

func (r *ruleParts) switches(w *words, local bool) {
	if r.hairpin {
		w.say("hairpin")
	}
	if local {
		w.say("local")
	}
}

// forward is a dnat; its addresses may be several, or still missing.
func (r *ruleParts) forward(w *words) {
	w.add("on", strings.Join(r.on(), ", "))
	if len(r.destinations) == 0 {
		return
	}
	d := r.destinations[0]
	w.add("port", d.Port.String())
	w.add("from", nat.PrefixesString(r.clients()))
	w.add("in", strings.Join(d.In, ", "))
	w.add("to", d.becomes())
	r.switches(w, d.Local)
}

func (r *ruleParts) on() (all []string) {
	for _, d := range r.destinations {
		if text := nat.PrefixString(d.On); !slices.Contains(all, text) {
			all = append(all, text)
		}
	}
	return all
}

func (r *ruleParts) clients() (all []netip.Prefix) {
	for _, d := range r.destinations {
		all = append(all, d.From...)
	}
	slices.SortFunc(all, comparePrefixes)
	return slices.Compact(all)
}

// about is what the rule is about: the hosts whose sources it translates, the address
// and port that it is on.
func (r *ruleParts) about(kind string) string {
	switch {
	case kind == "dnat" && len(r.destinations) > 0:
		d := r.destinations[0]
		return kind + " " + strings.Join(r.on(), ",") + " " + d.Port.String() + " " + nat.PrefixesString(r.clients())
	case len(r.destinations) > 0:
		return "one for one " + r.destinations[0].becomes()
	case len(r.sources) > 0:
		return "sources " + nat.PrefixesString(r.from()) + " " + strings.Join(r.sources[0].Out, ",")
	case len(r.stateless) > 0:
		return "one for one " + nat.PrefixString(r.stateless[0].Inside)
	case len(r.untracked) > 0:
		return "untracked " + onText(host(r.untracked[0].On), r.untracked[0].Port)
	}
	return kind + " waits"
}

// held are addresses that no pool gives, as answers to them would not find back to
// the connection: the rule that has them is stateless, or keeps the tracker away.
func (c *Config) held() *rangeIndex {
	all := c.pairsOutside(true)
	c.each(func(r Rule, ref Ref) {
		if r.Notrack != nil {
			all = append(all, indexed{Range{r.Notrack.On.Addr, r.Notrack.On.Addr}, ref, r.Notrack.Port})
		}
	})
	return newRangeIndex(all)
}

// ofOneHost are the addresses outside that stand for one host each, whose connections
// are tracked: others can share them, and take ports from them.
func (c *Config) ofOneHost() *rangeIndex { return newRangeIndex(c.pairsOutside(false)) }

// pairsOutside are the addresses outside of rules that pair them with those inside.
func (c *Config) pairsOutside(stateless Switch) (all []indexed) {
	c.each(func(r Rule, ref Ref) {
		switch {
		case r.Static != nil && r.Static.Stateless == stateless:
			all = append(all, indexed{addrs: Range{r.Static.Outside.Addr, r.Static.Outside.Addr}, by: ref})
		case r.Netmap != nil && r.Netmap.Stateless == stateless:
			all = append(all, indexed{addrs: RangeOf(r.Netmap.Outside.Prefix), by: ref})
		}
	})
	return all
}

func (c *Config) each(look func(Rule, Ref)) {
	for _, l := range c.lists() {
		for i, r := range l.rules {
			look(r, Ref{List: l.name, Index: i, Kind: r.Kind()})
		}
	}
}

// gives reports whether ports that are given may be one of p.
func gives(ports Ports, p Port) bool {
	if p.First == 0 {
		return true
	}
	ports = given(ports)
	return p.First <= ports.Last && ports.First <= p.last()
}

// left is what a pool gives, and what it does not since others hold it.
func (x *rangeIndex) left(to []Range, ports Ports) (left []Range, taken []indexed) {
	left = to
	for _, r := range to {
		for _, h := range x.overlapping(r) {
			if gives(ports, h.port) {
				left, taken = subtract(left, h.addrs), append(taken, h)
			}
		}
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
		if s.To, taken = held.left(s.To, s.Ports); len(s.To) == 0 {
			return fmt.Errorf("%s: nothing is left to give: %s has the addresses, and answers to them would not find back", s.Rule, taken[0].by)
		}
		s.Persistent = s.Persistent && s.choosesAddress()
	}
	return nil
}
