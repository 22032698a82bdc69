package diagnose

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
)

// leftOver are the services of which rules translate a part by chance or in turn and none the rest, which is for this
// host then, where no program takes it: a map with fewer elements than numbers are drawn, or rules with 'statistic'
// alone.
func leftOver(rec *snapshot.Recording) (all []failing) {
	rules := rec.Last().NATRules
	if rules == nil || rules.TooMany {
		return nil
	}
	seen := map[serviceID]bool{}
	for i := range rules.Rules {
		r := &rules.Rules[i]
		drawn := r.Missing != "" || isStatistic(r)
		if !drawn || r.Listens || r.Hook != "prerouting" || r.TranslatesSource() || r.DestinationPort == 0 || r.LastDestinationPort > r.DestinationPort || takesRest(rules, r) {
			continue
		}
		if !seen[serviceOf(r)] {
			seen[serviceOf(r)], all = true, append(all, restOf(rec, r))
		}
	}
	return all
}

// isStatistic reports whether a rule is for a part of what comes to it, whatever rules before it took (xt_statistic):
// those of nftables may share the numbers, and their maps have ranges.
func isStatistic(r *snapshot.NATRule) bool {
	return r.Chance && strings.HasPrefix(r.Source, "iptables") && r.First.IsValid()
}

// serviceOf is what a rule is for, as a service.
func serviceOf(r *snapshot.NATRule) serviceID {
	return serviceID{protocol: r.Protocol, service: netip.AddrPortFrom(r.ToDestination.Addr(), r.DestinationPort)}
}

// takesRest reports whether another rule may translate what a rule leaves over: one for all that come to it.
func takesRest(rules *snapshot.NATRules, r *snapshot.NATRule) bool {
	return slices.ContainsFunc(rules.Rules, func(o snapshot.NATRule) bool {
		whole := o.Missing == "" && !isStatistic(&o)
		return whole && o.Hook == r.Hook && !o.TranslatesSource() && (o.Handle != r.Handle || o.Chain != r.Chain) && (o.Protocol == "" || o.Protocol == r.Protocol) &&
			o.MayMatchPort(r.DestinationPort) &&
			(!o.ToDestination.IsValid() || !r.ToDestination.IsValid() || o.ToDestination.Overlaps(r.ToDestination))
	})
}

func restOf(rec *snapshot.Recording, r *snapshot.NATRule) failing {
	f := failing{name: ruleName(r), how: "gets no answer to a part of the connections", severity: Notice, confidence: "possible", known: true}
	f.key.protocol = r.Protocol
	f.matches = func(id serviceID) bool { return mayMatch(r, id.protocol, id.service) && !id.target.IsValid() }
	f.cause = fmt.Sprintf("the rules for it are for a part of its connections by chance or in turn (statistic), and none is for the rest, which is not translated: the last one is to be for all: %s: %s", r.Place(), r.Text)
	f.advice = new(advice("rest-statistic", r.Place()+": "+r.Text, where(rec)))
	if f.place = "a part of the connections meets none of its rules, which are all for a part"; r.Missing != "" {
		f.cause = fmt.Sprintf("the rule draws one of %d numbers, from 0 on, and its map has no element for %s: what draws that is not translated, and is for this host: %s: %s", r.Draws, r.Missing, r.Place(), r.Text)
		f.place = fmt.Sprintf("the map of its rule has no element for %s, and the rule draws one of %d numbers from 0 on", r.Missing, r.Draws)
		f.advice = new(advice("rest-map", r.Draws, r.Missing, r.Place(), where(rec)))
	}
	f.evidence = []Evidence{{What: "rule that leaves a part over", Value: r.Place() + ": " + r.Text, Source: "NAT rules by netlink"}}
	if s, _ := tableServices(rec); s != nil && slices.ContainsFunc(s.All, func(s snapshot.Service) bool { return mayBe(r, &s) && s.Answered > 0 }) {
		f.severity, f.confidence = Warning, "likely" // it is asked
	}
	return f
}
