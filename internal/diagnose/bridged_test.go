package diagnose

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/snapshot"
)

// TestBridged: a server that answers its client past the rules does so for the sysctl where br_netfilter is there.
func TestBridged(t *testing.T) {
	for name, c := range map[string]struct {
		sysctls snapshot.Sysctls
		past    bool
		advice  string
	}{
		"past the rules":       {snapshot.Sysctls{snapshot.BridgeCalls4: "0"}, true, "sysctl -w net.bridge.bridge-nf-call-iptables=1"},
		"by the rules":         {snapshot.Sysctls{snapshot.BridgeCalls4: "1"}, false, "iptables -t nat -A POSTROUTING -s 10.244.0.0/24 -d 10.244.0.11 -p tcp --dport 8080 -j MASQUERADE"},
		"without br_netfilter": {snapshot.Sysctls{}, false, "-j MASQUERADE"},
		"of the other version": {snapshot.Sysctls{snapshot.BridgeCalls6: "0"}, false, "-j MASQUERADE"},
	} {
		cni := snapshot.Interface{Name: "cni0", Bridge: true, Addresses: []netip.Prefix{netip.MustParsePrefix("10.244.0.1/24")}}
		s := &snapshot.Snapshot{Sysctls: c.sysctls, NATRules: &snapshot.NATRules{}, Audit: &snapshot.Audit{Interfaces: []snapshot.Interface{cni}}}
		rec := &snapshot.Recording{Snapshots: []*snapshot.Snapshot{s, s}}
		row := row{rec: rec, place: &snapshot.FailedPlace{NoRoute: "network is unreachable"}} // of the address that rules draw a server for
		followed := left(snapshot.StepAnswerUntranslated, "10.244.0.12:1000", "10.96.40.2:80", "10.244.0.11:8080", "", "cni0", snapshot.FailedPlace{})
		followed.Failed.AnswerBridged = true
		row.FollowedService = &followed
		f := failing{}
		if row.advise(&f); f.advice == nil || !strings.Contains(f.advice.Title, c.advice) || !row.decided() {
			t.Errorf("%s: %+v, want %s", name, f.advice, c.advice)
		}
		if place := row.where(); !strings.Contains(place, "directly by a bridge") {
			t.Errorf("%s: %s", name, place)
		}
		a := &audit{s.Audit, rec, s.NATRules}
		service := &snapshot.Service{Target: followed.Target, Clients: []netip.Addr{netip.MustParseAddr("10.244.0.12")}}
		if got := a.bridgePast(service); (got != nil) != c.past {
			t.Errorf("%s: %v, want %v", name, got, c.past)
		}
		if service.Clients = append(service.Clients, netip.MustParseAddr("198.51.100.10")); a.bridgePast(service) != nil {
			t.Errorf("%s: a client elsewhere", name)
		}
	}
}
