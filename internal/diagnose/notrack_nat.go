package diagnose

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// checkNotrackNAT: a rule exempts from tracking what another one translates, or the answers to it:
// without an entry nothing is translated, and nothing translated back.
func (a *audit) checkNotrackNAT() (*Finding, Check) {
	f := worded("notrack-nat", nil, nil)
	var names, by []string
	untracked := slices.Clone(a.Untracked)
	slices.SortStableFunc(untracked, func(x, y snapshot.UntrackedRule) int { return cmp.Compare(y.By.Packets, x.By.Packets) })
	for i := range untracked { // those first by which packets came
		u := &untracked[i]
		failed := a.failedFor(u)
		asked := a.unansweredBy(u)
		if u.Part && failed == 0 || u.SYNs && !a.losesSYNs(u) || u.Questions && asked == 0 {
			continue
		}
		if u.Questions {
			f.Confidence = "likely"
			f.Evidence = append(f.Evidence, Evidence{What: "questions that it exempts, and none of their answers was", Value: int64(asked), Unit: "packets", Source: "counters of the rules"})
		}
		if failed > 0 {
			f.Severity = Critical
			f.Evidence = append(f.Evidence, Evidence{What: "connections without an answer that it is for", Value: failed, Unit: "connections", Source: "connection table"})
		}
		if len(names) < mostListed {
			f.Evidence = append(f.Evidence, placeOf("rule that translates", u.RulePlace), placeOf(whatOf(u), u.By))
		}
		if len(names) < mostShown && !slices.Contains(by, u.By.Text) {
			one := advice("notrack-delete", strings.Join(exemptions(u), "; and for the answers "), where(a.rec))
			if u.OtherZone {
				one = advice("zone-both", deletes(u.By)+keeper(u.By), where(a.rec))
			}
			f.Remedies = append(f.Remedies, one)
		}
		names, by = append(names, askedOf(u)+u.Text), once(by, u.By.Text)
	}
	rules := units.Plural(int64(len(a.rules.Rules)), "rule", "rules")
	if len(names) == 0 {
		return a.short("nothing exempts from tracking what " + rules + " of NAT are for")
	}
	f.isWhy = a.isUntracked
	f.Title = "not tracked in both directions, and so not translated: what is for " + names[0]
	if f.Confidence == "likely" {
		f.Title = "not tracked, and so not translated, and no answer comes: " + names[0]
	}
	if len(names) > 1 {
		f.Title += fmt.Sprintf(" and %d more", len(names)-1)
	}
	f.Cause = "exempt from tracking in one direction at least, or in another zone: " + strings.Join(by[:min(len(by), mostShown)], "; ")
	return f, Check{Why: fmt.Sprintf("packets of %d of %s, or the answers to them, are not tracked", len(names), rules)}
}

// fewestQuestions is how many must go without an answer, as one may be lost or on its way.
const fewestQuestions = 5

// unansweredBy is how many questions a rule exempted meanwhile of which no answer came by a rule that exempts those: 0
// where some did, where this host gives them, and where they may stay on networks that it is on.
func (a *audit) unansweredBy(u *snapshot.UntrackedRule) uint64 {
	if !u.Questions || u.Here || a.rec.First().Audit == nil {
		return 0
	}
	if to := u.Asked.To; to.IsValid() {
		if at, _ := a.Near(to.Addr()); at != nil || !to.IsSingleIP() {
			return 0
		}
	}
	if slices.ContainsFunc(u.Back, func(p snapshot.RulePlace) bool { return !p.Counted }) {
		return 0
	}
	if slices.ContainsFunc(a.grownOf(u, func(u *snapshot.UntrackedRule) []snapshot.RulePlace { return u.Back }), func(n uint64) bool { return n > 0 }) {
		return 0
	}
	by := a.grownOf(u, func(u *snapshot.UntrackedRule) []snapshot.RulePlace { return []snapshot.RulePlace{u.By} })
	here, _ := hostDelta(a.rec, "UdpNoPorts") // what came to a port of this host was not sent on
	lost, known := a.notSentOn(strings.HasPrefix(u.Text, "ip6"))
	if !known || by[0] < fewestQuestions+here+lost {
		return 0
	}
	return by[0]
}

// notSentOn is how many packets came in meanwhile that this host neither took nor sent on, as a filter dropped
// them: these may be what strangers send to this host.
func (a *audit) notSentOn(v6 bool) (n uint64, known bool) {
	names := []string{"IpInReceives", "IpInDelivers", "IpForwDatagrams"}
	if v6 {
		names = []string{"Ip6InReceives", "Ip6InDelivers", "Ip6OutForwDatagrams"}
	}
	var grown [3]uint64
	for i, name := range names {
		if grown[i], known = hostDelta(a.rec, name); !known {
			return 0, false
		}
	}
	return grown[0] - min(grown[0], grown[1]+grown[2]), true
}

// grownOf is what places of what is untracked counted meanwhile.
func (a *audit) grownOf(u *snapshot.UntrackedRule, of func(*snapshot.UntrackedRule) []snapshot.RulePlace) []uint64 {
	for i := range a.rec.First().Audit.Untracked {
		o := &a.rec.First().Audit.Untracked[i]
		if o.Text == u.Text && o.Handle == u.Handle && o.By.Text == u.By.Text && o.By.Handle == u.By.Handle {
			return snapshot.GrownPlaces(of(u), of(o))
		}
	}
	return make([]uint64, len(of(u)))
}

// askedOf names the questions that a rule exempts among what another one translates.
func askedOf(u *snapshot.UntrackedRule) string {
	if !u.Questions {
		return ""
	}
	ports := fmt.Sprintf("port %d", u.Asked.FirstPort)
	if u.Asked.LastPort != u.Asked.FirstPort {
		ports = fmt.Sprintf("ports %d to %d", u.Asked.FirstPort, u.Asked.LastPort)
	}
	return u.Asked.Protocol + " " + ports + ", which is for "
}

// exemptions are the commands that delete what exempts the packets, and the answers where these are others.
func exemptions(u *snapshot.UntrackedRule) []string {
	all := []string{deletes(u.By) + keeper(u.By)}
	for i := range u.Back[:min(len(u.Back), mostShown)] {
		all = once(all, deletes(u.Back[i])+keeper(u.Back[i]))
	}
	return all
}

// isUntracked reports whether a service fails as a rule exempts what is to be translated of it, or the answers.
func (a *audit) isUntracked(s *failing) bool {
	return slices.ContainsFunc(a.Untracked, func(u snapshot.UntrackedRule) bool {
		known := u.Asked != nil && !u.Part && s.client.IsValid()
		return known && (s.bare || u.Answers || u.OtherZone) && u.Asked.Has(s.key.protocol, s.client, s.key.service)
	})
}

// whatOf says what is wrong with what a rule translates.
func whatOf(u *snapshot.UntrackedRule) string {
	switch {
	case u.OtherZone:
		return "the answers are looked up in another conntrack zone than the connection's, and so not translated back"
	case u.Answers:
		return "the answers are not tracked, and so not translated back"
	}
	return "its packets are not tracked, and so never translated"
}

// untracked is the rule that exempts the answers of a service from tracking; nil where none is known.
func (a *audit) untracked(s *snapshot.Service) *snapshot.UntrackedRule {
	i := slices.IndexFunc(a.Untracked, func(u snapshot.UntrackedRule) bool { return untracks(&u, s) })
	if i < 0 {
		return nil
	}
	return &a.Untracked[i]
}

// untracks reports whether a rule exempts the answers of a service.
func untracks(u *snapshot.UntrackedRule, s *snapshot.Service) bool {
	from := s.Target
	switch source := u.Kind == snapshot.NATSource || u.Kind == snapshot.NATMasquerade; {
	case !u.Answers, source != (s.Kind == snapshot.ServiceDestination), !source && s.Kind != snapshot.ServiceDNAT:
		return false
	case source:
		from = s.Service
	}
	return (u.Protocol == "" || u.Protocol == s.Protocol) && (u.FirstPort == 0 || u.FirstPort <= from.Port() && from.Port() <= u.LastPort) &&
		(!u.From.IsValid() || u.From.Contains(from.Addr()))
}

// losesSYNs reports whether connections were seen to end here untranslated whose SYNs a rule exempts: where SYNPROXY
// answers them, and opens the connection to the server itself, none does.
func (a *audit) losesSYNs(u *snapshot.UntrackedRule) bool {
	return a.rec.Followed != nil && slices.ContainsFunc(a.rec.Followed.Services, func(s snapshot.FollowedService) bool {
		lost := s.Failed != nil && (s.Failed.Step == snapshot.StepRefusedHere || s.Failed.Step == snapshot.StepLostHere)
		return lost && s.Protocol == u.Protocol && !s.Target.IsValid() && s.Failing() >= fewestFailing && s.Steps[snapshot.StepAnswered] == 0 && u.FirstPort <= s.Service.Port() && s.Service.Port() <= u.LastPort
	})
}

// failedFor is how many connections without an answer are such that a rule exempts their answers.
func (a *audit) failedFor(u *snapshot.UntrackedRule) (n int64) {
	if a.rec.Flows == nil || a.rec.Flows.Services == nil {
		return 0
	}
	for _, s := range a.rec.Flows.Services.All {
		if s.Answered+s.Open == 0 && untracks(u, &s) {
			n += s.Unanswered
		}
	}
	return n
}
