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

// TestNobodyHas: a source of a network of this host that it does not answer for is to be corrected in the rule; one that a
// router may lead here is to be led here.
func TestNobodyHas(t *testing.T) {
	given := netip.MustParseAddr("198.51.100.5")
	for onLink, want := range map[string]string{"wan0": "such as 198.51.100.1", "": "let the next router lead 198.51.100.5 to this host"} {
		rec := household()
		rec.Last().Audit = &snapshot.Audit{
			Interfaces: []snapshot.Interface{{Name: "wan0", Up: true, Addresses: []netip.Prefix{netip.MustParsePrefix("198.51.100.1/24")}}},
			Elsewhere:  []snapshot.GivenElsewhere{{Address: given, OnLink: onLink}},
		}
		if got := unrouted(rec, given, "wan0").Title; !strings.Contains(got, want) {
			t.Errorf("on %q: %s", onLink, got)
		}
	}
}

// TestMartianVanishes: what a rule leads to a loopback address is known to be dropped for that.
func TestMartianVanishes(t *testing.T) {
	var f failing
	if !f.vanishesAt(household(), &snapshot.DNATTarget{Protocol: "tcp", Address: netip.MustParseAddr("127.0.0.1"), Port: 80, Local: true, Martian: true}, 30) || !f.known || !strings.Contains(f.advice.Title, "route_localnet=1") {
		t.Errorf("%+v", f)
	}
}
