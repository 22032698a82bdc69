package diagnose

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// newSource is the rule that gives another source than this one to new connections which leave by an interface; nil
// where one may give the same, or none is certain to give any, and of TCP, whose clients begin anew.
func newSource(rec *snapshot.Recording, protocol string, client, to, given netip.Addr, out string) (rule *snapshot.NATRule) {
	rules, audit := rec.Last().NATRules, rec.Last().Audit
	if protocol == "" || protocol == "tcp" || rules == nil || rules.TooMany || audit == nil || audit.Interface(out) == nil {
		return nil
	}
	for i := range rules.Rules {
		r := &rules.Rules[i]
		if !mayTranslate(r, client, to, out) || r.Protocol != "" && r.Protocol != protocol {
			continue
		}
		if mayKeep(r, given, audit.Interface(out)) {
			return nil
		}
		if rule == nil && !r.Partial && !r.Marked && (r.OutInterface == "" || nat.InName(r.OutInterface, out)) {
			rule = r
		}
	}
	return rule
}

// mayKeep reports whether a rule may give sources an address where they leave by an interface.
func mayKeep(r *snapshot.NATRule, given netip.Addr, out *snapshot.Interface) bool {
	if r.Kind == snapshot.NATMasquerade {
		return len(out.Addresses) == 0 || slices.ContainsFunc(out.Addresses, func(p netip.Prefix) bool { return p.Addr() == given })
	}
	return !r.First.IsValid() || r.First.Compare(given) <= 0 && given.Compare(r.Last) <= 0
}

// forgetSource deletes the entries that keep a source; of what is published they name another destination.
func forgetSource(rec *snapshot.Recording, protocol string, to, given netip.Addr, published bool) Remedy {
	filter := "-p " + protocol + " --src-nat=" + given.String()
	if to.IsValid() && !published {
		filter += " -d " + to.String()
	}
	return advice("source-forget", deleteCommand(rec, filter), given)
}

// keptSource is UDP that leaves by an interface with the source of another one, which the rules give to nothing new
// that leaves there.
type keptSource struct {
	snapshot.OneWay
	out, of string
	rule    *snapshot.NATRule
}

// keptSources leaves out what a mark or a route of several hops may lead by another interface.
func keptSources(rec *snapshot.Recording) (all []keptSource) {
	audit := rec.Last().Audit
	for _, w := range rec.Flows.OneWay {
		if audit == nil || w.Routes == nil || w.Routes.Question == nil || w.Zone != 0 || nat.IsOneWay(w.Service.Port()) {
			continue
		}
		q := w.Routes.Question
		if q.Error != "" || q.Local || q.Out == "" || q.Doubtful || len(q.Hops)+len(q.Marked) > 0 {
			continue
		}
		at, own := audit.Near(w.Given)
		out := audit.Interface(q.Out)
		if !own || at.Name == q.Out || out == nil || len(out.Addresses) == 0 {
			continue
		}
		if rule := newSource(rec, "udp", w.Source, w.Service.Addr(), w.Given, q.Out); rule != nil {
			all = append(all, keptSource{w, q.Out, at.Name, rule})
		}
	}
	return all
}

func keptFinding(rec *snapshot.Recording, all []keptSource) *Finding {
	entries, confidence := int64(0), "possible"
	var services []string
	var e []Evidence
	var remedies []Remedy
	for i, k := range all {
		entries += k.Entries
		services = once(services, k.Service.String())
		if k.Unanswered() {
			confidence = "likely"
		}
		if i < mostShown {
			e = append(e, k.evidence(rec)...)
			if forget := forgetSource(rec, "udp", k.Service.Addr(), k.Given, false); !slices.ContainsFunc(remedies, func(r Remedy) bool { return r.Title == forget.Title }) {
				remedies = append(remedies, forget)
			}
		}
	}
	first := all[0]
	f := worded("udp-stale-blackhole source", e, append(remedies, advice("source-changer")), strings.Join(services[:min(len(services), mostShown)], ", "),
		units.Plural(entries, "connection", "connections"), first.out, first.Given, first.of, first.rule.Place()+": "+first.rule.Text)
	f.ID, f.Confidence = "udp-stale-blackhole", confidence
	for _, k := range all {
		f.About = append(f.About, ends(k.Service)...)
	}
	return f
}

func (k *keptSource) evidence(rec *snapshot.Recording) []Evidence {
	answers := map[bool]string{true: "and no answer", false: "and whether an answer came is not counted (net.netfilter.nf_conntrack_acct)"}[k.Unanswered()]
	return []Evidence{
		{What: fmt.Sprintf("udp to %s with the source %s", k.Service, k.Given), Value: k.Entries, Unit: "entries", Source: fmt.Sprintf("two dumps, %.1f s apart: a packet came, %s", rec.Flows.Seconds, answers)},
		{What: "one of them from", Value: k.Source.String(), Source: "the later dump"},
		{What: "leaves by", Value: k.out + via(k.Routes.Question), Source: "route by netlink"},
	}
}

// via is the next hop of a route.
func via(q *snapshot.Route) string {
	if !q.NextHop.IsValid() {
		return ""
	}
	return " via " + q.NextHop.String()
}
