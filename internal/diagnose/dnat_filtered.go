package diagnose

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// checkDNATFiltered: what a rule translates is dropped by a filter behind it, whoever sends it, or
// its answers are.
func checkDNATFiltered(rec *snapshot.Recording) (*Finding, Check) {
	last := rec.Last()
	if last.DNATTargets == nil || last.NATRules == nil {
		return unknown(cmp.Or(last.PartError(snapshot.PartDNATTargets), last.PartError("nat_rules"), "the targets of DNAT were not looked up: a bundle of an older natkit"))
	}
	asked, askable, idle := int64(0), 0, int64(0)
	var bad []filtered
	for i := range last.DNATTargets.Targets {
		t := &last.DNATTargets.Targets[i]
		if t.Address.IsValid() && t.NoRoute == "" && !t.Programs {
			askable++
		}
		if t.Filter == nil || t.Rule < 0 || t.Rule >= len(last.NATRules.Rules) {
			continue
		}
		asked++
		if drops := map[bool]*snapshot.Filter{false: t.Filter, true: t.AnswerFilter}[t.Filter.Passes]; drops != nil && !drops.Passes && isIdle(&last.NATRules.Rules[t.Rule], drops) {
			idle++
			continue
		}
		if !t.Filter.Passes {
			if b := (filtered{t, t.Filter, false}); t.Filter.At == "" || b.missedAt(rec) {
				bad = append(bad, b)
			}
		} else if t.AnswerFilter != nil && !t.AnswerFilter.Passes {
			bad = append(bad, filtered{t, t.AnswerFilter, true})
		}
	}
	switch {
	case len(last.DNATTargets.Targets) == 0:
		return passed("no rule leads to a constant address")
	case asked == 0 && last.DNATTargets.TooMany:
		return unknown("the filters were not asked about the targets of DNAT: they have too many rules")
	case asked == 0 && askable == 0:
		return passed("no target is an address that can be reached, and that filters see packets to")
	case asked == 0:
		return unknown("the filters were not asked about the targets of DNAT: they have too many rules, or it is a bundle of an older natkit")
	}
	targets := units.Plural(asked, "target", "targets")
	why := "filters let pass what leads to " + targets + ", or some of it"
	if idle > 0 {
		why = fmt.Sprintf("filters drop what leads to %d of %s, and no packet has come for it", idle, targets)
	}
	switch {
	case len(bad) == 0 && last.DNATTargets.TooMany:
		return unknown("there are too many rules to ask about all targets; of what was asked, " + why)
	case len(bad) == 0:
		return passed(why)
	}
	return filteredFinding(rec, bad), Check{Why: fmt.Sprintf("filters drop what leads to %d of %s, or its answers", len(bad), targets)}
}

// filtered is a target whose connections a filter drops, or whose answers.
type filtered struct {
	*snapshot.DNATTarget
	filter  *snapshot.Filter
	answers bool
}

func (b filtered) name() string {
	name := (&unreachable{DNATTarget: *b.DNATTarget}).String()
	if b.Protocol != "" && b.Protocol != "tcp" {
		name = b.Protocol + " " + name
	}
	if b.answers {
		return "the answers of " + name
	}
	return name
}

// loss is what dropped it between the snapshots.
func (b filtered) loss(rec *snapshot.Recording) (l filterLoss) {
	var before *snapshot.Filter
	if first := rec.First().DNATTargets; first != nil && b.answers {
		if t := targetBefore(first, b.DNATTarget); t != nil {
			before = t.AnswerFilter
		}
	} else if first != nil {
		before = filterBefore(first, b.DNATTarget)
	}
	l.add(b.filter, before)
	return l
}

// dropping is the filter without the places that let pass what comes, as their counters show, where others drop it.
func (b filtered) dropping(rec *snapshot.Recording) *snapshot.Filter {
	l, lately := b.loss(rec), false
	if rec.First().NATRules != nil && rec.First().DNATTargets != nil {
		lately = rec.Last().NATRules.Grown(rec.First().NATRules)[b.Rule] >= fewestVanished
	}
	only := *b.filter
	only.Drops = nil
	for i, p := range l.places {
		if !p.Counted || l.grown[i] > 0 || !lately && p.Packets > 0 {
			only.Drops = append(only.Drops, p)
		}
	}
	if len(only.Drops) == 0 {
		return b.filter
	}
	return &only
}

// missedAt reports whether what clients send by the interface that they were taken to come in by is missed:
// it is dropped, and nobody is answered by another one, for whom the rule may be there.
func (b filtered) missedAt(rec *snapshot.Recording) bool {
	r := &rec.Last().NATRules.Rules[b.Rule]
	if rec.Flows != nil && rec.Flows.Services != nil && slices.ContainsFunc(rec.Flows.Services.All, func(s snapshot.Service) bool {
		return mayBe(r, &s) && s.Answered+s.Open > 0
	}) {
		return false
	}
	l := b.loss(rec)
	return l.packets >= fewestLost || !l.counted && b.allVanish(rec)
}

// allVanish reports whether a rule translated connections, and none is in the table.
func (b filtered) allVanish(rec *snapshot.Recording) bool {
	services, _ := tableServices(rec)
	if services == nil || !services.Complete || staysFor(rec, &rec.Last().NATRules.Rules[b.Rule]) == 0 {
		return false
	}
	entries, _, _ := entriesOf(services, &rec.Last().NATRules.Rules[b.Rule])
	return entries == 0 && rec.Last().NATRules.Grown(rec.First().NATRules)[b.Rule] >= fewestVanished
}

// isIdle reports whether nothing has come to a rule so far, nor to what drops its packets: another rule
// takes them, or nobody asks for the service.
func isIdle(r *snapshot.NATRule, f *snapshot.Filter) bool {
	return r.Counted && r.Packets == 0 && !slices.ContainsFunc(f.Drops, func(d snapshot.RulePlace) bool {
		return d.Early && (!d.Counted || d.Packets > 0)
	})
}

// targetBefore is a target in an earlier reading; nil where it was none.
func targetBefore(first *snapshot.DNATTargets, t *snapshot.DNATTarget) *snapshot.DNATTarget {
	i := slices.IndexFunc(first.Targets, func(o snapshot.DNATTarget) bool {
		return o.Protocol == t.Protocol && o.Address == t.Address && o.Port == t.Port
	})
	if i < 0 {
		return nil
	}
	return &first.Targets[i]
}

// filterBefore is what filters did to its first packets.
func filterBefore(first *snapshot.DNATTargets, t *snapshot.DNATTarget) *snapshot.Filter {
	if o := targetBefore(first, t); o != nil {
		return o.Filter
	}
	return nil
}

func filteredFinding(rec *snapshot.Recording, bad []filtered) *Finding {
	f := worded("dnat-filtered", nil, nil)
	var names, places, olds []string
	grown := rec.Last().NATRules.Grown(rec.First().NATRules)
	for i, b := range bad {
		b.filter = b.dropping(rec)
		r := &rec.Last().NATRules.Rules[b.Rule]
		if n := grown[b.Rule]; n > 0 && !b.Beside { // it counts all protocols
			f.Severity = Critical
			f.Evidence = append(f.Evidence, Evidence{What: "translated, and dropped: " + b.name(), Value: int64(n), Unit: "packets", Source: "counter of the rule"})
		}
		if i < mostListed {
			f.Evidence = append(f.Evidence, placeEvidence(b, r)...)
		}
		if l := b.loss(rec); l.packets >= fewestLost {
			f.Severity = max(f.Severity, b.lossSeverity())
			f.Evidence = append(f.Evidence, Evidence{What: "dropped there meanwhile", Value: int64(l.packets), Unit: "packets", Source: "counter of the rule"})
		}
		if i < mostShown {
			names, f.About = append(names, b.name()), append(f.About, netip.AddrPortFrom(b.Address, b.Port))
			f.Remedies = append(f.Remedies, b.accept(rec))
		}
		for _, d := range b.filter.Drops {
			places = once(places, d.Text)
		}
		if b.filter.AcceptsBefore != nil {
			olds = once(olds, namesOld(b.filter.AcceptsBefore))
		}
	}
	if f.Severity < Critical && !slices.ContainsFunc(bad, func(b filtered) bool { return b.isMeant(rec) }) {
		f.Severity = Notice // the other protocol may be all that clients use
	}
	f.Title = "filters drop what DNAT leads to: " + strings.Join(names, ", ")
	if more := len(bad) - len(names); more > 0 {
		f.Title += fmt.Sprintf(" and %d more", more)
	}
	f.Cause = "no rule accepts it before: " + strings.Join(slices.Concat(places[:min(len(places), mostShown)], olds[:min(len(olds), mostShown)]), "; ")
	return f
}

// namesOld says that a rule never accepts what it is meant to.
func namesOld(p *snapshot.RulePlace) string {
	return "the rule that would accept it names the destination before its translation, and filters at this place see the one after it: " + p.Text
}

// isMeant reports whether clients surely use it: another protocol of the same rule, or one of its ports, may be
// all that they do.
func (b filtered) isMeant(rec *snapshot.Recording) bool {
	return !b.Beside || b.filter.AcceptsBefore != nil || b.OfSeveral && b.loss(rec).packets >= fewestLost
}

// lossSeverity is that of drops at the same place: of a rule's ports, others may be all that is dropped there.
func (b filtered) lossSeverity() Severity {
	if b.OfSeveral && b.filter.AcceptsBefore == nil {
		return Warning
	}
	return Critical
}

func placeEvidence(b filtered, r *snapshot.NATRule) (e []Evidence) {
	for _, d := range b.filter.Drops {
		source := "rules by netlink"
		if d.Counted {
			source += fmt.Sprintf("; it dropped %s so far", units.Plural(int64(d.Packets), "packet", "packets"))
		}
		e = append(e, Evidence{What: fmt.Sprintf("what drops %s (%s)", b.name(), r.Text), Value: d.Text, Source: source})
	}
	return e
}

// accept is how the program that keeps the filter lets the connections in, or their answers out.
func (b filtered) accept(rec *snapshot.Recording) Remedy {
	protocol, owner := cmp.Or(b.Protocol, "tcp"), ""
	for _, d := range b.filter.Drops {
		owner = cmp.Or(owner, d.Owner)
	}
	place := b.filter.Drops[0]
	switch {
	case place.Limits:
		return limited(place, rec)
	case b.answers:
		return acceptAnswers(place, b.chain(), rec)
	case isEarly(place):
		return restrict(place, rec)
	}
	how := accepted{protocol: protocol, to: netip.AddrPortFrom(b.Address, b.Port), chain: b.chain()}.how(place, owner)
	return advice("filter-accept", b.name(), bothWays(how, place, b.AnswerFilter, map[bool]string{true: "OUTPUT"}[b.Local]), where(rec))
}

// chain is the built-in chain of iptables on the way.
func (b filtered) chain() string {
	switch {
	case b.Local && b.answers:
		return "OUTPUT"
	case b.Local:
		return "INPUT"
	}
	return "FORWARD"
}
