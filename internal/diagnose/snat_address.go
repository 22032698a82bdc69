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

// checkSNATAddress: connections leave with a source that no answer comes back to: this host does not
// have it, or it belongs to another interface.
//
// An address that is not here is no fault where a router sends it here, or while a second gateway has
// it: hence only connections without an answer prove it.
func (a *audit) checkSNATAddress() (*Finding, Check) {
	flows := a.rec.Flows
	if flows == nil || flows.Services == nil {
		return unknown(cmp.Or(a.rec.Last().PartError(snapshot.PartFlows), "what became of translated connections was not counted"))
	}
	var bad []misgiven
	for i := range flows.Services.All {
		if m := a.misgiven(&flows.Services.All[i]); m.cause != "" {
			bad = append(bad, m)
		}
	}
	used := map[netip.Addr]bool{}
	for _, s := range flows.Services.All {
		if s.Kind == snapshot.ServiceSNAT {
			used[s.Given] = true
		}
	}
	why := fmt.Sprintf("translated connections have %s as their source", units.Plural(int64(len(used)), "address", "addresses"))
	if len(bad) == 0 {
		return passed(why + ", none that answers are known not to come back to")
	}
	slices.SortStableFunc(bad, func(x, y misgiven) int { return cmp.Compare(y.severity, x.severity) })
	f := worded("snat-address", nil, nil)
	f.Severity, f.Confidence, f.Cause = bad[0].severity, bad[0].confidence, bad[0].cause
	var names []string
	for i, m := range bad {
		known := slices.Contains(names, m.Given.String()) // of another protocol: the same advice
		names, f.About = once(names, m.Given.String()), append(f.About, netip.AddrPortFrom(m.Given, 0))
		if i < mostListed {
			f.Evidence = append(f.Evidence, m.evidence...)
		}
		if i < mostShown && !known {
			f.Remedies = append(f.Remedies, m.remedies...)
		}
	}
	f.Title = "answers do not come back to the source that NAT gives: " + firstOf(names)
	return f, Check{Why: why + "; answers do not come back to " + strings.Join(names[:min(len(names), mostShown)], ", ")}
}

// misgiven is a source that no answers come back to.
type misgiven struct {
	snapshot.Service
	cause, confidence string
	severity          Severity
	evidence          []Evidence
	remedies          []Remedy
}

// misgiven has no cause where nothing is wrong for certain.
func (a *audit) misgiven(s *snapshot.Service) (m misgiven) {
	m = misgiven{Service: *s, severity: Warning, confidence: "certain"}
	if s.Kind != snapshot.ServiceSNAT || s.Zone != 0 || s.Answered > 0 {
		return m
	}
	silent := s.Open == 0 && s.Unanswered > 0
	if silent && s.Failing >= fewestFailing {
		m.severity = Critical
	}
	here := where(a.rec)
	if e := a.elsewhere(s.Given); e != nil {
		if !silent || e.OnLink == "" {
			return m
		}
		rule := &a.rules.Rules[e.Rule]
		m.cause = fmt.Sprintf("hosts on the network of %s ask there who has %s, and this host does not answer: none of its interfaces has the address, no local route, and it is no proxy for it", e.OnLink, s.Given)
		m.evidence = append(m.evidence, Evidence{What: "rule that gives " + s.Given.String(), Value: rule.Place() + ": " + rule.Text, Source: "NAT rules by netlink"})
		m.remedies = []Remedy{advice("snat-correct", rule.Place(), a.ownOf(e.OnLink, s.Given), here), advice("snat-give-here", s.Given, e.OnLink, here)}
	} else if at, own := a.Near(s.Given); at != nil && at.Up && !own && !a.given(s.Given) && !a.rules.TooMany {
		m.severity, m.confidence = Warning, "likely"
		m.cause = fmt.Sprintf("the entries have a translation of before: no rule gives %s now, and this host does not have it any more", s.Given)
		m.remedies = []Remedy{advice("snat-forget", deleteCommand(a.rec, "--src-nat="+s.Given.String()))}
	} else if r := a.borrowed(s.Given); silent && r != nil {
		m.confidence = "likely"
		m.cause = fmt.Sprintf("%s has no address of its own, so that masquerade takes one of another interface (inet_select_addr), to which the network beyond need not know a way back", r.OutInterface)
		m.evidence = append(m.evidence, Evidence{What: "addresses of " + r.OutInterface, Value: int64(0), Source: "addresses by netlink"})
		m.remedies = []Remedy{advice("snat-address-missing", r.OutInterface, here)}
	}
	if m.cause != "" {
		m.evidence = append(m.evidence, Evidence{What: "connections with the source " + s.Given.String(), Value: s.Failed() + s.Open, Unit: fmt.Sprintf("connections, %s without an answer", units.Count(s.Failed())), Source: "connection table"})
	}
	return m
}

// ownOf is an address of an interface, of the family of another one.
func (a *audit) ownOf(device string, like netip.Addr) string {
	if i := a.Interface(device); i != nil {
		for _, p := range i.Addresses {
			if p.Addr().Is4() == like.Is4() {
				return p.Addr().String()
			}
		}
	}
	return "an address of this host"
}

// borrowed is the rule that masquerades over an interface without an address, where the address is
// another one's; nil where there is none.
func (a *audit) borrowed(address netip.Addr) *snapshot.NATRule {
	at, own := a.Near(address)
	if !own {
		return nil
	}
	for i := range a.rules.Rules {
		r := &a.rules.Rules[i]
		out := a.Interface(r.OutInterface)
		if r.Kind == snapshot.NATMasquerade && out != nil && out.Up && out.Name != at.Name &&
			!slices.ContainsFunc(out.Addresses, func(p netip.Prefix) bool { return p.Addr().Is4() == address.Is4() }) {
			return r
		}
	}
	return nil
}
