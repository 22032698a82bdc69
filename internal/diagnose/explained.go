package diagnose

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/snapshot"
)

// explain puts a finding that says why services get no answer before that of the services, which refers to
// it and has no cause and advice of its own for these: it knows where packets are lost, not why.
func (r *Report) explain(rec *snapshot.Recording) {
	findings := r.Findings
	at := slices.IndexFunc(findings, func(f Finding) bool { return f.ID == "service-unanswered" })
	if at < 0 || len(findings[at].services) == 0 {
		return
	}
	outcome := &findings[at]
	why, services := -1, slices.Clone(outcome.services)
	for i := range services {
		s := &services[i]
		by := slices.IndexFunc(findings, func(f Finding) (is bool) {
			r.guard("the explanation of rule "+f.ID, func() { is = f.isCauseOf(s) })
			return is
		})
		if by < 0 {
			continue
		}
		s.cause = fmt.Sprintf("see the finding %s, which says why: %s", findings[by].ID, findings[by].Title)
		s.advice, s.target, s.place, s.explained = nil, netip.AddrPort{}, "", true
		if i == 0 {
			why = by
		}
	}
	if !slices.ContainsFunc(services, func(s failing) bool { return s.explained }) {
		return
	}
	slices.SortStableFunc(services, func(a, b failing) int { return cmp.Compare(rank(a), rank(b)) })
	id, severity, confidence, since := outcome.ID, outcome.Severity, outcome.Confidence, outcome.SinceSeconds
	*outcome = *servicesFinding(rec, services) // which changes nothing where it panics
	outcome.ID, outcome.Severity, outcome.Confidence, outcome.SinceSeconds = id, severity, confidence, since
	if services[0].explained {
		outcome.Remedies = slices.Clone(findings[why].Remedies[:min(1, len(findings[why].Remedies))])
	}
	if why > at {
		first := findings[why]
		first.Severity = max(first.Severity, severity)
		copy(findings[at+1:why+1], findings[at:why])
		findings[at] = first
	}
}

// rank is the order of those that nothing else explains before the others.
func rank(f failing) int { return map[bool]int{true: 1}[f.explained] }

// isCauseOf reports whether a finding says why a service fails that was followed, and of which that is not known
// better: one about the host as a whole does not.
func (f *Finding) isCauseOf(s *failing) bool {
	if !s.client.IsValid() || f.Severity < Warning || !slices.Contains(causes, f.ID) || s.decided || s.known && !s.byElimination || s.later {
		return false
	}
	if f.isWhy != nil {
		return f.isWhy(s)
	}
	return len(f.About) > 0 && f.explains(&Finding{About: s.about})
}
