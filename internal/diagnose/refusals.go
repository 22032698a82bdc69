package diagnose

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

const (
	// fewestRefused is how many packets a limit must refuse to be reported, refusedPart which share
	// of the new connections they must be: a limit is there to refuse some.
	fewestRefused = 5
	refusedPart   = 0.05
)

const readOnce = "the rules were read once only: what they count cannot be compared"

// refusals is the rules that refuse for a reason, and what they did so between the last two snapshots.
type refusals struct {
	rules   []snapshot.Refusal
	grown   []uint64
	packets int64
}

// refusals are those for a reason, counted those that have a counter.
func (a *audit) refusals(why string) (r refusals, counted int) {
	grown := a.grown(func(x *snapshot.Audit) []snapshot.RulePlace {
		return placesIn(x.Refusals, func(s *snapshot.Refusal) snapshot.RulePlace { return s.RulePlace })
	})
	for i, s := range a.Refusals {
		if s.Why != why {
			continue
		}
		if s.Counted {
			counted++
		}
		if grown[i] > 0 {
			r.rules, r.grown, r.packets = append(r.rules, s), append(r.grown, grown[i]), r.packets+int64(grown[i])
		}
	}
	return r, counted
}

func (r *refusals) evidence(what string) (all []Evidence) {
	for i := range r.rules[:min(len(r.rules), mostListed)] {
		all = append(all, Evidence{What: what + r.rules[i].Text, Value: int64(r.grown[i]), Unit: "packets", Source: "counter of the rule"})
	}
	return all
}

func (r *refusals) texts() (all []string) {
	for _, s := range r.rules {
		all = append(all, s.Text)
	}
	return all
}

// checkLimits: rules that limit connections, or their rate, refuse some of what is forwarded.
func (a *audit) checkLimits() (*Finding, Check) {
	r, counted := a.refusals(snapshot.RefusalLimit)
	rest := a.beyondLimits()
	for i, s := range rest.rules {
		r.rules, r.grown, r.packets, counted = append(r.rules, s), append(r.grown, rest.grown[i]), r.packets+int64(rest.grown[i]), counted+1
	}
	limits := units.Plural(int64(counted), "rule limits", "rules limit")
	switch all := len(rest.rules) > 0 || slices.ContainsFunc(a.Refusals, func(s snapshot.Refusal) bool { return s.Why == snapshot.RefusalLimit }); {
	case !all:
		return passed("no rule limits the connections that are forwarded")
	case a.rec.First().Audit == nil:
		return unknown(readOnce)
	case counted == 0:
		return passed("rules that limit what is forwarded have no counter: what they refuse is not known")
	}
	began := int64(0)
	if a.rec.Flows != nil && a.rec.Flows.Services != nil {
		for _, s := range a.rec.Flows.Services.All {
			if !s.IsPart() {
				began += s.Answered
			}
		}
		began = int64(float64(began) * min(1, a.rec.Seconds()/max(a.rec.Flows.Services.Seconds, 1)))
	}
	why := fmt.Sprintf("%s what is forwarded: %s refused %s", limits, units.Plural(r.packets, "packet", "packets"), a.rec.Span())
	if r.packets < fewestRefused || float64(r.packets) < refusedPart*float64(r.packets+began) {
		return passed(why)
	}
	limit := cmp.Or(r.rules[0].Limit, r.rules[0].Text)
	raise := advice("limit-raise", limit+keeper(r.rules[0].RulePlace)+shared(limit), where(a.rec))
	f := worded("rule-limits", r.evidence("refused by "), []Remedy{advice("limit-who", NamespaceFlag(a.rec.Last().Netns.Name)), raise})
	f.Title = fmt.Sprintf("limits refuse %s: %s", units.Plural(r.packets, "packet", "packets"), firstOf(r.texts()))
	// One count for all of its clients refuses most of them, not one that is too fast.
	most := r.packets >= began && shared(limit) != "" && !strings.Contains(r.rules[0].Text+limit, "icmp")
	if most {
		slices.Reverse(f.Remedies)
	}
	if s, _ := checkServices(a.rec); most || s != nil && s.Severity > Notice {
		f.Severity = Warning
	}
	return f, Check{Why: why}
}

// beyondLimits are the places that drop what a rule does not accept of what DNAT leads to, as there is too
// much of it: as many packets as were translated and became no connection.
func (a *audit) beyondLimits() (r refusals) {
	now, before, flows := a.rec.Last().DNATTargets, a.rec.First().DNATTargets, a.rec.Flows
	if now == nil || before == nil || flows == nil || flows.Services == nil || !flows.Services.NewKnown || a.rec.First().NATRules == nil {
		return r
	}
	translated := a.rules.Grown(a.rec.First().NATRules)
	for i := range now.Targets {
		t := &now.Targets[i]
		if t.Filter == nil || t.Rule < 0 || t.Rule >= len(translated) {
			continue
		}
		_, births, lately := entriesOf(flows.Services, &a.rules.Rules[t.Rule])
		missing := int64(translated[t.Rule]) - births - lately
		var l filterLoss
		l.add(t.Filter, filterBefore(before, t))
		for j, p := range l.places {
			same := func(o snapshot.Refusal) bool { return strings.HasPrefix(o.Text, p.Text) && o.Handle == p.Handle }
			known := slices.ContainsFunc(a.Refusals, same) || slices.ContainsFunc(r.rules, same)
			n := min(int64(l.grown[j]), missing)
			if p.ForPort && dropsLater(t, &p) {
				n = int64(l.grown[j])
			}
			if p.Limits && !p.Unsure && !known && n >= fewestVanished {
				p.Text += fmt.Sprintf(" (what %s does not accept to %s)", cmp.Or(p.Limit, "a limit"), filtered{DNATTarget: t}.name())
				r.rules, r.grown, r.packets = append(r.rules, snapshot.Refusal{RulePlace: p, Why: snapshot.RefusalLimit}), append(r.grown, uint64(n)), r.packets+n
			}
		}
	}
	return r
}

// dropsLater reports whether a place also drops what follows the first packets to a target: then what it
// drops is packets of connections that are in the table, such as flows of datagrams.
func dropsLater(t *snapshot.DNATTarget, p *snapshot.RulePlace) bool {
	return t.LaterFilter != nil && slices.ContainsFunc(t.LaterFilter.Drops, func(d snapshot.RulePlace) bool { return d.Text == p.Text && d.Handle == p.Handle })
}

// checkNoEndpoints: clients ask for services of Kubernetes that have no endpoints.
func (a *audit) checkNoEndpoints() (*Finding, Check) {
	r, counted := a.refusals(snapshot.RefusalNoEndpoints)
	services := units.Plural(int64(counted), "service of Kubernetes has", "services of Kubernetes have")
	i := slices.IndexFunc(a.Refusals, func(s snapshot.Refusal) bool { return s.Why == snapshot.RefusalNoEndpoints })
	switch {
	case i >= 0 && a.rec.First().Audit == nil:
		return unknown(a.Refusals[i].Comment + "; " + readOnce)
	case i >= 0 && counted == 0:
		return unknown(a.Refusals[i].Comment + "; what the rules reject is not counted")
	}
	why := fmt.Sprintf("%s no endpoints; %s rejected %s", services, units.Plural(r.packets, "packet", "packets"), a.rec.Span())
	if len(r.rules) == 0 {
		return passed(why)
	}
	var names []string
	for _, s := range r.rules {
		names = once(names, strings.TrimSuffix(s.Comment, " has no endpoints"))
	}
	namespace, name, _ := strings.Cut(names[0], "/")
	name, _, _ = strings.Cut(name, ":")
	f := worded("kube-no-endpoints", r.evidence("rejected by "), []Remedy{advice("kube-endpoints", namespace, name)})
	f.Title = "clients ask for services of Kubernetes without endpoints: " + firstOf(names)
	return f, Check{Why: why}
}
