package ruleset

import (
	"testing"

	"github.com/natkit/natkit/internal/nat"
)

// TestLimitBefore: what a rule drops behind one that accepts what is not too many names that rule; a list
// of addresses that came before (recent) limits nothing.
func TestLimitBefore(t *testing.T) {
	limited := func(name string) *Table {
		var m Match
		m.otherXT(name, 0, nil, false)
		accept := &Rule{Match: m, Target: Target{Kind: Accept}}
		return &Table{Family: "ip", Name: "filter", Chains: []*Chain{{
			Name: "FORWARD", Type: "filter", Hook: "forward", Rules: []*Rule{accept, {Target: Target{Kind: Drop}}},
		}}}
	}
	packet := &Packet{Conn: ConnNew, Packet: nat.Packet{Protocol: 17}}
	for name, want := range map[string]string{"limit": "iptables -t filter -A FORWARD (limit) -j ACCEPT", "hashlimit": "iptables -t filter -A FORWARD (hashlimit) -j ACCEPT", "recent": ""} {
		f := Filter([]*Table{limited(name)}, packet, "forward")
		if len(f.Drops) != 1 || f.Drops[0].Limit != want || f.Drops[0].Limits != (want != "") {
			t.Errorf("%s: %+v, want the limit %q", name, f.Drops, want)
		}
	}
}
