package diagnose

import (
	"net/netip"
	"testing"

	"github.com/natkit/natkit/internal/snapshot"
)

// TestDrawn: of the servers that a rule draws among, the one is named that holds no connection though some are due to it.
func TestDrawn(t *testing.T) {
	addr := netip.MustParseAddr
	for name, c := range map[string]struct {
		births  []int64
		numbers uint32 // of the third server
		change  func(first, last *snapshot.NATRule, s *snapshot.Snapshot)
		found   bool
		as      string
	}{
		"one of three refuses":            {[]int64{50, 48}, 1, nil, true, "likely"},
		"few are due to it":               {[]int64{5, 4}, 1, nil, false, ""},
		"it is drawn seldom":              {[]int64{50, 48}, 0, nil, false, ""},
		"each has some":                   {[]int64{50, 48, 3}, 1, nil, false, ""},
		"a hash, and no counter":          {[]int64{50, 48}, 1, func(_, last *snapshot.NATRule, _ *snapshot.Snapshot) { last.Hashed = true }, false, ""},
		"a hash, and some are missing":    {[]int64{50, 48}, 1, func(first, last *snapshot.NATRule, _ *snapshot.Snapshot) { last.Hashed, last.Packets = true, 140 }, true, "possible"},
		"a counter, and none are missing": {[]int64{50, 48}, 1, func(_, last *snapshot.NATRule, _ *snapshot.Snapshot) { last.Counted, last.Packets = true, 99 }, false, ""},
		"another rule is for some of them": {[]int64{50, 48}, 1, func(_, last *snapshot.NATRule, s *snapshot.Snapshot) {
			other := *last
			other.Handle, other.Drawn = 9, nil
			s.NATRules.Rules = append(s.NATRules.Rules, other)
		}, false, ""},
	} {
		r := snapshot.NATRule{Family: "ip", Table: "lb", Chain: "pre", Handle: 4, Hook: "prerouting", Kind: snapshot.NATDest, Chance: true,
			NATCondition: snapshot.NATCondition{Protocol: "tcp", DestinationPort: 80}, Drawn: []snapshot.Drawn{{Address: addr("192.168.1.10"), Numbers: 20}, {Address: addr("192.168.1.11"), Numbers: 20}, {Address: addr("192.168.1.20"), Numbers: 20 * c.numbers}}}
		first := &snapshot.Snapshot{NATRules: &snapshot.NATRules{Rules: []snapshot.NATRule{r}}}
		last := &snapshot.Snapshot{NATRules: &snapshot.NATRules{Rules: []snapshot.NATRule{r}}, DNATTargets: &snapshot.DNATTargets{Targets: []snapshot.DNATTarget{{
			Protocol: "tcp", Address: addr("192.168.1.20"), Port: 80, NextHop: addr("192.168.1.20"), Interface: "lan0", Neighbour: snapshot.NeighbourReachable, Filter: &snapshot.Filter{Passes: true},
		}}}}
		if c.change != nil {
			c.change(&first.NATRules.Rules[0], &last.NATRules.Rules[0], last)
			first.NATRules.Rules[0].Counted, last.NATRules.Rules[0].Counted = last.NATRules.Rules[0].Packets > 0, last.NATRules.Rules[0].Packets > 0
		}
		services := &snapshot.Services{Complete: true, NewKnown: true}
		for i, n := range c.births {
			services.All = append(services.All, snapshot.Service{Kind: snapshot.ServiceDNAT, Protocol: "tcp", Service: netip.MustParseAddrPort("198.51.100.1:80"), Target: netip.AddrPortFrom(r.Drawn[i].Address, 80), New: n, Answered: n})
		}
		all := drawnOnes(&snapshot.Recording{Snapshots: []*snapshot.Snapshot{first, last}, Flows: &snapshot.Flows{Services: services}})
		if (len(all) == 1) != c.found || c.found && (all[0].key.target.String() != "192.168.1.20:80" || all[0].confidence != c.as || all[0].severity != Warning) {
			t.Errorf("%s: %+v", name, all)
		}
	}
}

// TestDrawnFilter: of several servers, the filter of the one that the packet was on its way to dropped it.
func TestDrawnFilter(t *testing.T) {
	drops := &snapshot.Filter{Drops: []snapshot.RulePlace{{Text: "inet fw forward: policy drop"}}}
	s := left(snapshot.StepLostHere, "198.51.100.10:40000", "198.51.100.1:80", "", "", "", snapshot.FailedPlace{Filter: &snapshot.Filter{Passes: true}})
	rec := household(s)
	rec.Drops = &snapshot.Drops{Flows: []snapshot.DropFlow{{Function: "nft_do_chain", Reason: "NETFILTER_DROP", Protocol: "tcp", Source: "198.51.100.10:40000", Destination: "192.168.1.20:80"}}}
	rec.Last().NATRules = &snapshot.NATRules{Rules: []snapshot.NATRule{{Family: "ip", Hook: "prerouting", Kind: snapshot.NATDest, NATCondition: snapshot.NATCondition{Protocol: "tcp", DestinationPort: 80}}}}
	rec.Last().DNATTargets = &snapshot.DNATTargets{Targets: []snapshot.DNATTarget{
		{Address: netip.MustParseAddr("192.168.1.10"), Port: 80, Filter: &snapshot.Filter{Passes: true}}, {Address: netip.MustParseAddr("192.168.1.20"), Port: 80, Filter: drops},
	}}
	lost := &rec.Followed.Services[0]
	if got := filterOf(rec, lost); got != drops {
		t.Errorf("%+v", got)
	}
	if r := (&row{FollowedService: lost, rec: rec, place: lost.Failed.Place}); r.becomes().String() != "192.168.1.20:80" {
		t.Errorf("becomes %s", r.becomes())
	}
}
