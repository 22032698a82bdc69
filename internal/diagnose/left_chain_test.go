package diagnose

import (
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/snapshot"
)

// TestLeftRule: a service is refused whose rule is in a chain that nothing leads to.
func TestLeftRule(t *testing.T) {
	for name, c := range map[string]struct {
		port    uint16
		partial bool
		want    string
	}{
		"its rule":                      {8080, false, "likely"},
		"a rule with ports of some set": {0, true, "possible"},
		"a rule for another port":       {8081, false, ""},
	} {
		rec := household(failed(snapshot.StepRefusedHere, "tcp", "wan0", outside+"4000", "198.51.100.1:8080", snapshot.FailedPlace{Local: true, InUplink: true}))
		rec.Last().Audit = &snapshot.Audit{}
		rec.Last().NATRules.Unreached = []snapshot.UnreachedRule{{From: "DOCKER", Owner: "docker", NATRule: snapshot.NATRule{Source: "iptables-nft", Family: "ip", Table: "nat", Chain: "DOCKER", Hook: "prerouting", Kind: snapshot.NATDest,
			NATCondition: snapshot.NATCondition{Protocol: "tcp", DestinationPort: c.port}, Partial: c.partial}}}
		all := followedOnes(rec)
		if c.want == "" && len(all) == 0 {
			continue
		}
		if len(all) != 1 || all[0].confidence != c.want || !strings.HasPrefix(all[0].advice.Title, "systemctl restart docker") {
			t.Errorf("%s: %+v", name, all)
		}
	}
}

// TestWithoutData: where nothing came of the answer the server may be what is slow.
func TestWithoutData(t *testing.T) {
	s := failed(snapshot.StepDataMissing, "tcp", "lan0", pc, "203.0.113.1:443", snapshot.FailedPlace{Out: "wan0", Uplink: true})
	s.Out, s.Failed.MSSBytes, s.Failed.LinkMTUBytes = "wan0", 1460, 1400
	if all := followedOnes(household(s)); len(all) != 1 || all[0].confidence != "possible" || !strings.Contains(all[0].cause, "slow") {
		t.Errorf("%+v", all)
	}
}

// TestMissingData: servers are to be told a smaller MSS, whichever link takes less.
func TestMissingData(t *testing.T) {
	for mtu, want := range map[int]string{1400: "clamp the MSS", 1500: "find what the way takes"} {
		s := failed(snapshot.StepDataMissing, "tcp", "lan0", pc, "203.0.113.1:443", snapshot.FailedPlace{Out: "wan0", Uplink: true})
		s.Out, s.Failed.MSSBytes, s.Failed.LinkMTUBytes, s.Failed.GapBytes = "wan0", 1460, mtu, 2896
		all := followedOnes(household(s))
		if len(all) != 1 || all[0].severity != Warning || !strings.HasPrefix(all[0].advice.Title, want) || !strings.Contains(all[0].place, "large packets of the server do not come here") {
			t.Errorf("MTU %d: %+v", mtu, all)
		}
	}
}
