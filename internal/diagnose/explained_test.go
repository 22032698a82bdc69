package diagnose

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/natkit/natkit/internal/snapshot"
)

func TestExplain(t *testing.T) {
	const server, other = "192.168.1.10:53", "192.168.1.20:25"
	followed := func(service string) failing {
		s := netip.MustParseAddrPort(service)
		return failing{name: service, key: serviceID{protocol: "udp", service: s}, about: []netip.AddrPort{s}, how: "gets no answers", severity: Critical,
			cause: "nothing came back", advice: &Remedy{Title: "look on the server"}, client: netip.MustParseAddr("10.0.0.2"), bare: true}
	}
	known, decided, fromTable := followed(server), followed(server), followed(server)
	known.known, decided.decided, fromTable.client = true, true, netip.Addr{}
	stale := Finding{ID: "udp-stale-blackhole", Severity: Warning, Title: "stale", About: []netip.AddrPort{netip.MustParseAddrPort(server)}, Remedies: []Remedy{{Title: "forget it"}, {Title: "or wait"}}}
	untracked := &audit{Audit: &snapshot.Audit{Untracked: []snapshot.UntrackedRule{{Asked: &snapshot.Asked{Protocol: "udp", FirstPort: 53, LastPort: 53}}}}}
	exempt := Finding{ID: "notrack-nat", Severity: Warning, Title: "exempt", Remedies: stale.Remedies, isWhy: untracked.isUntracked}
	rec := &snapshot.Recording{Snapshots: []*snapshot.Snapshot{{}, {}}, Drops: &snapshot.Drops{}}
	for _, c := range []struct {
		name     string
		services []failing
		others   []Finding
		first    string
		advice   []string // of service-unanswered
	}{
		{"by its end", []failing{followed(server)}, []Finding{{ID: "drops-unexplained", Severity: Warning}, stale}, "udp-stale-blackhole", []string{"forget it"}},
		{"by its packets", []failing{followed(server)}, []Finding{exempt}, "notrack-nat", []string{"forget it"}},
		{"another service", []failing{followed(other)}, []Finding{stale, exempt}, "service-unanswered", []string{"look on the server"}},
		{"one of two", []failing{followed(server), followed(other)}, []Finding{stale}, "udp-stale-blackhole", []string{"look on the server"}},
		{"the host's", []failing{followed(server)}, []Finding{{ID: "rp-filter", Severity: Critical}}, "service-unanswered", []string{"look on the server"}},
		{"its cause is known", []failing{known}, []Finding{stale}, "service-unanswered", []string{"look on the server"}},
		{"the place decides", []failing{decided}, []Finding{stale}, "service-unanswered", []string{"look on the server"}},
		{"not followed", []failing{fromTable}, []Finding{stale}, "service-unanswered", []string{"look on the server"}},
	} {
		outcome := servicesFinding(rec, c.services)
		outcome.ID = "service-unanswered"
		findings := append([]Finding{*outcome}, c.others...)
		(&Report{Findings: findings}).explain(rec)
		at := slices.IndexFunc(findings, func(f Finding) bool { return f.ID == "service-unanswered" })
		var advice []string
		for _, m := range findings[at].Remedies {
			advice = append(advice, m.Title)
		}
		sorted := slices.IsSortedFunc(findings, func(a, b Finding) int { return int(b.Severity - a.Severity) })
		if findings[0].ID != c.first || !slices.Equal(advice, c.advice) || !sorted || findings[at].Severity != Critical {
			t.Errorf("%s: %s first, with advice %q, sorted %v; want %s and %q", c.name, findings[0].ID, advice, sorted, c.first, c.advice)
		}
	}
}
