package diagnose

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// checkDNATEverywhere: a rule publishes a server, names neither the interface that connections come in by nor their
// destination, and so takes there what hosts inside ask of the Internet as well. A transparent proxy takes only these.
func (a *audit) checkDNATEverywhere() (*Finding, Check) {
	flows := a.rec.Flows
	if flows == nil || flows.Services == nil {
		return unknown(cmp.Or(a.rec.Last().PartError(snapshot.PartFlows), "translated connections were not counted"))
	}
	f := worded("dnat-everywhere", nil, nil)
	var names, rules []string
	for i := range flows.Services.All {
		s := &flows.Services.All[i]
		r, published := a.everywhereTaken(s)
		if r == nil {
			continue
		}
		rule := r.Place() + ": " + r.Text
		if len(names) < mostListed {
			f.Evidence = append(f.Evidence,
				Evidence{What: s.String() + ": connections from private addresses", Value: s.Inside, Unit: "connections", Source: "connection table"},
				Evidence{What: published.String() + ": connections from others", Value: published.Outside, Unit: "connections", Source: "connection table"})
		}
		if !slices.Contains(rules, rule) {
			uplink := "UPLINK"
			if at, _ := a.Near(published.Service.Addr()); at.Name != "lo" {
				uplink = at.Name
			}
			f.Remedies = append(f.Remedies, advice("dnat-narrow", rule, uplink, published.Service.Addr(), where(a.rec)))
		}
		names, rules = append(names, fmt.Sprintf("%s %s", s.Protocol, s.Service)), once(rules, rule)
		f.About = append(f.About, ends(s.Service, s.Target)...)
	}
	if len(names) == 0 {
		return passed("no rule that publishes a server takes what hosts inside ask of the Internet there")
	}
	f.Remedies, f.Evidence = f.Remedies[:min(len(f.Remedies), mostShown)], head(f.Evidence)
	f.Title = "a rule that publishes a server takes there what hosts inside ask of the Internet as well: " + firstOf(names)
	f.Cause = "it names neither the interface that connections come in by nor their destination: " + strings.Join(rules[:min(len(rules), mostShown)], "; ")
	return f, Check{Why: fmt.Sprintf("%s of hosts inside to foreign addresses are led to a published server", units.Plural(int64(len(names)), "service", "services"))}
}

// forced are the ports of DNS and NTP, which hosts inside are often meant to ask of one server.
var forced = []uint16{53, 123}

// everywhereTaken is the rule that takes connections of hosts inside to a public address that is not this host's where
// it also leads connections from outside to an address of this host; nil where there is none.
func (a *audit) everywhereTaken(s *snapshot.Service) (by *snapshot.NATRule, published *snapshot.Service) {
	if s.Kind != snapshot.ServiceDNAT || s.Inside < fewestFailing || slices.Contains(forced, s.Service.Port()) || a.rules.TooMany || !a.isForeign(s) {
		return nil, nil
	}
	i := slices.IndexFunc(a.rules.Rules, func(r snapshot.NATRule) bool { return isEverywhere(&r) && mayBe(&r, s) })
	if i < 0 {
		return nil, nil
	}
	by = &a.rules.Rules[i]
	all := a.rec.Flows.Services.All
	at := slices.IndexFunc(all, func(o snapshot.Service) bool {
		_, own := a.Near(o.Service.Addr())
		return own && o.Outside > 0 && o.Target == s.Target && mayBe(by, &o)
	})
	if at < 0 {
		return nil, nil
	}
	return by, &all[at]
}

// isForeign reports whether a service is asked for at a public address that nothing says is led to this host: none of
// its networks has it, and no rule names it.
func (a *audit) isForeign(s *snapshot.Service) bool {
	to := s.Service.Addr()
	if at, _ := a.Near(to); at != nil || isInside(to) || !to.IsGlobalUnicast() {
		return false
	}
	return !slices.ContainsFunc(a.rules.Rules, func(r snapshot.NATRule) bool {
		return r.ToDestination.IsValid() && r.ToDestination.Bits() > 0 && r.ToDestination.Contains(to) ||
			r.Kind == snapshot.NATSource && r.First.IsValid() && r.First.Compare(to) <= 0 && to.Compare(r.Last) <= 0
	})
}

// isEverywhere reports whether a rule is for what comes in to a port, by whichever interface and for whichever address.
func isEverywhere(r *snapshot.NATRule) bool {
	whole := !r.Partial || r.FirstOfSeveral != 0 && !strings.HasPrefix(r.Chain, "KUBE-") // those lead there by several ways
	return whole && r.Kind == snapshot.NATDest && r.Hook == "prerouting" && r.InInterface == "" && !r.FromSource.IsValid() && !r.Marked && len(r.Unless) == 0 &&
		(!r.ToDestination.IsValid() || r.ToDestination.Bits() == 0) && (r.DestinationPort != 0 || r.FirstOfSeveral != 0)
}
