package diagnose

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/snapshot"
)

// gatewayPools are of a host with a gateway: a pool of a hundred ports, by a map.
func gatewayPools() *pools {
	rule := snapshot.NATRule{
		Gateway: "nat[3] snat", Source: "nftables", Family: "inet", Table: "natkit", Chain: "postrouting", Handle: 7, Hook: "postrouting", Kind: snapshot.NATSource, First: netip.MustParseAddr("203.0.113.7"), Last: netip.MustParseAddr("203.0.113.7"), FirstPort: 2000, LastPort: 2099, Text: "snat ip to 203.0.113.7:2000-2099", NATCondition: snapshot.NATCondition{FromSource: netip.MustParsePrefix("10.0.0.0/16")},
	}
	others := rule
	others.FirstPort, others.LastPort, others.Protocol = 0, 0, snapshot.OtherProtocols
	another := rule
	another.Gateway, another.FromSource, another.FullyRandom = "nat[4] snat", netip.MustParsePrefix("10.1.0.0/16"), true
	rec := &snapshot.Recording{Snapshots: []*snapshot.Snapshot{{}}}
	return &pools{table: &table{rec: rec}, rules: &snapshot.NATRules{Rules: []snapshot.NATRule{rule, others, another}}}
}

func TestRemediesOfTheGatewaysRulesNameItsFile(t *testing.T) {
	p := gatewayPools()
	pool := &snapshot.PortPool{Address: "203.0.113.7", Protocol: "tcp", Destination: "198.51.100.9:443", FirstPort: 2000, LastPort: 2099, Used: 100, Share: 1}
	r := p.portRemedies(pool)[0]
	if !strings.Contains(r.Title, "nat[3] snat in the gateway's file") || r.Automatic || len(r.Changes) > 0 {
		t.Errorf("%+v", r)
	}
	for _, r := range p.raceRemedies() {
		if len(r.Changes) > 0 || strings.Contains(r.Title, "cannot change") || strings.Contains(r.Title, "iptables") {
			t.Errorf("%+v", r)
		}
	}
	if r := p.raceRemedies()[0]; !strings.HasSuffix(r.Title, "'natkit gateway apply' with it: nat[3] snat") {
		t.Errorf("%+v", r)
	}
}
