package diagnose

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/snapshot"
)

// TestLeftOver: rules that leave a part of the connections over are named where nothing takes it.
func TestLeftOver(t *testing.T) {
	rule := func(handle uint64, change func(*snapshot.NATRule)) snapshot.NATRule {
		r := snapshot.NATRule{Family: "ip", Table: "nat", Chain: "pre", Handle: handle, Hook: "prerouting", Kind: snapshot.NATDest,
			NATCondition: snapshot.NATCondition{Protocol: "tcp", DestinationPort: 443}, Text: "dnat", Chance: true}
		change(&r)
		return r
	}
	short := rule(1, func(r *snapshot.NATRule) { r.Missing, r.Draws = "3", 4 })
	full := rule(2, func(r *snapshot.NATRule) { r.Draws = 4 })
	nth := rule(3, func(r *snapshot.NATRule) {
		r.Source, r.First, r.Last = "iptables-nft", netip.MustParseAddr("192.168.1.11"), netip.MustParseAddr("192.168.1.11")
	})
	ranges := rule(8, func(r *snapshot.NATRule) { r.Source = "nftables" })
	last := rule(4, func(r *snapshot.NATRule) { r.Chance = false })
	other := rule(5, func(r *snapshot.NATRule) { r.Chance, r.DestinationPort = false, 80 })
	listens := rule(6, func(r *snapshot.NATRule) { r.Listens = true })
	ranged := rule(7, func(r *snapshot.NATRule) { r.Chance, r.DestinationPort, r.LastDestinationPort = false, 400, 500 })
	for name, c := range map[string]struct {
		rules []snapshot.NATRule
		cause string
	}{
		"a map without an element": {[]snapshot.NATRule{short, other}, "no element for 3"},
		"a map with all":           {[]snapshot.NATRule{full}, ""},
		"statistic alone, twice":   {[]snapshot.NATRule{nth, nth}, "statistic"},
		"statistic, and the rest":  {[]snapshot.NATRule{nth, last}, ""},
		"a map, and the rest":      {[]snapshot.NATRule{short, last}, ""},
		"the rest by a range":      {[]snapshot.NATRule{nth, ranged}, ""},
		"a program here":           {[]snapshot.NATRule{listens}, ""},
		"a map of ranges":          {[]snapshot.NATRule{ranges}, ""},
		"nothing is drawn":         {[]snapshot.NATRule{last, other}, ""},
	} {
		s := &snapshot.Snapshot{NATRules: &snapshot.NATRules{Rules: c.rules}}
		service := snapshot.Service{Protocol: "tcp", Kind: snapshot.ServiceDNAT, Service: netip.MustParseAddrPort("198.51.100.1:443"), Target: netip.MustParseAddrPort("192.168.1.11:443"), Answered: 9}
		rec := &snapshot.Recording{Snapshots: []*snapshot.Snapshot{s, s}, Flows: &snapshot.Flows{Services: &snapshot.Services{All: []snapshot.Service{service}}}}
		all := leftOver(rec)
		if (len(all) == 1) != (c.cause != "") || len(all) == 1 && (!strings.Contains(all[0].cause, c.cause) || all[0].severity != Warning) {
			t.Errorf("%s: %+v, want %q", name, all, c.cause)
		}
	}
}
