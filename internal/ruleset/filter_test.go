package ruleset

import (
	"net/netip"
	"testing"

	"github.com/natkit/natkit/internal/nat"
)

// TestAcceptsOthers: what a policy drops names the rule that lets in other sources, for the same port.
func TestAcceptsOthers(t *testing.T) {
	ssh, some := []nat.Ports{{First: 22, Last: 22}}, netip.MustParsePrefix("198.51.100.0/28")
	rule := func(ports []nat.Ports, from ...netip.Prefix) *Rule {
		r := &Rule{Target: Target{Kind: Accept}}
		r.Match.Protocol, r.Match.Ports, r.Match.From = 6, ports, from
		return r
	}
	listed := rule(ssh)
	listed.Match.unknown("match-set src")
	packet := &Packet{Conn: ConnNew, Packet: nat.Packet{Protocol: 6, Src: netip.MustParseAddr("198.51.100.77"), Dst: netip.MustParseAddr("192.168.1.10"), DstPort: 22}}
	for name, c := range map[string]struct {
		rule *Rule
		want bool
	}{"a network": {rule(ssh, some), true}, "a list": {listed, true}, "another port": {rule([]nat.Ports{{First: 80, Last: 80}}, some), false}, "any source of another port": {rule([]nat.Ports{{First: 80, Last: 80}}), false}} {
		table := &Table{Family: "ip", Name: "filter", Chains: []*Chain{{Name: "FORWARD", Type: "filter", Hook: "forward", Policy: "drop", Rules: []*Rule{c.rule}}}}
		one := *packet
		if f := Filter([]*Table{table}, &one, "forward"); len(f.Drops) != 1 || (f.AcceptsOthers != nil) != c.want {
			t.Errorf("%s: %+v", name, f)
		}
	}
}
