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

// sharedSpace is where carriers' customers come from whose addresses the carrier translates (RFC 6598): lists of what
// no public address is contain it, and within the carrier's own network its customers come from there.
var sharedSpace = netip.MustParsePrefix("100.64.0.0/10")

// checkListed: clients that a list, or a rule that tells sources apart, keeps out of a service. As a rule that is
// meant, and so no fault: nobody but the operator knows whether they are wanted.
func checkListed(rec *snapshot.Recording) (*Finding, Check) {
	if rec.Followed == nil {
		return nil, Check{State: NotChecked, Why: needsTrace, NotAsked: true}
	}
	var kept []row
	for _, r := range rows(rec) {
		if r.blockedHere().how == "" && r.portless() == nil && r.isPublished() && r.keptByList() {
			kept = append(kept, r)
		}
	}
	if len(kept) == 0 {
		return passed("no list keeps clients that ask again and again out of a service that rules publish")
	}
	return listedFinding(rec, kept), Check{Why: fmt.Sprintf("rules keep clients out of %s by their source", units.Plural(int64(len(kept)), "service", "services"))}
}

// keptByList reports whether that it is a list is what excuses it, where a rule is known that keeps it out.
func (r *row) keptByList() bool {
	return r.culprit() != nil && r.excuse() == excuseListed
}

func listedFinding(rec *snapshot.Recording, kept []row) *Finding {
	first := func(r row) int { return map[bool]int{false: 1}[r.isSharedSpace()] }
	slices.SortStableFunc(kept, func(a, b row) int { return cmp.Compare(first(a), first(b)) })
	var services, rules []string
	var evidence []Evidence
	for i, r := range kept {
		services, rules = once(services, r.Protocol+" "+r.Service.String()), once(rules, r.culprit().Text)
		if i < mostListed {
			clients := units.Plural(int64(max(r.Clients, 1)), "client", "clients")
			evidence = append(evidence, Evidence{What: fmt.Sprintf("%s %s: %s kept out, such as %s", r.Protocol, r.Service, clients, r.Failed.Client.Addr()), Value: int64(r.Failing()),
				Unit: "of " + units.Plural(int64(r.of), "connection", "connections"), Source: "first packets at " + r.In})
		}
	}
	example, what := kept[0].Failed.Client.Addr(), kept[0].Failed.Client.Addr().String()
	if kept[0].isSharedSpace() {
		what = sharedSpace.String()
	}
	shown := func(all []string) string { return strings.Join(all[:min(len(all), mostShown)], ", ") }
	remedy := advice("source-unlist", what, rules[0], where(rec))
	if list := kept[0].allowList(); list != "" {
		remedy = advice("source-allow", what, list, where(rec))
	} else if p := kept[0].culprit(); p.Limits {
		remedy = limited(*p, rec)
	}
	f := worded("sources-listed", evidence, []Remedy{remedy}, shown(services), shown(rules), example)
	if f.Place = "this host drops it by " + rules[0]; kept[0].isSharedSpace() {
		f.Severity = Warning
		f.Cause += fmt.Sprintf("; %s is of %s, where a carrier's own customers come from: lists of addresses that are not public (bogons) contain that range", example, sharedSpace)
	}
	return f
}

// isSharedSpace reports whether customers of a carrier ask by an uplink, again and again, for a service that answers
// others. Forged sources do not ask twice.
func (r *row) isSharedSpace() bool {
	return sharedSpace.Contains(r.Failed.Client.Addr()) && r.Protocol == "tcp" && r.fromOutside() && r.Failing() >= fewestBlocked && r.Repeated >= fewestFailed && r.answered > 0
}
