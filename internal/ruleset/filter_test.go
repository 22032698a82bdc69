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

// TestAccepts: the rule for both interfaces of a packet, in a chain that the base chain leads to, where one for
// destinations drops it before.
func TestAccepts(t *testing.T) {
	rule := func(in, out []string, from ...netip.Prefix) *Rule {
		r := &Rule{Target: Target{Kind: Accept}}
		r.Match.In, r.Match.Out, r.Match.From = in, out, from
		return r
	}
	lan, docker := []string{"lan0"}, []string{"docker0"}
	early := func(change func(*Match)) *Table {
		r := &Rule{Target: Target{Kind: Drop}}
		r.Match.To, r.Match.NotIn = []netip.Prefix{netip.MustParsePrefix("172.17.0.2/32")}, docker
		change(&r.Match)
		return &Table{Family: "ip", Name: "raw", Chains: []*Chain{{Name: "PREROUTING", Type: "filter", Hook: "prerouting", Priority: -300, Policy: "accept", Rules: []*Rule{r}}}}
	}
	packet := &Packet{Conn: ConnNew, Packet: nat.Packet{Protocol: 6, In: "lan0", Out: "docker0", Src: netip.MustParseAddr("192.168.1.20"), Dst: netip.MustParseAddr("172.17.0.2"), DstPort: 5432}}
	for name, c := range map[string]struct {
		rule   *Rule
		before func(*Match)
		want   bool
	}{
		"both": {rule(lan, docker), func(*Match) {}, true}, "one": {rule(lan, nil), func(*Match) {}, false},
		"another": {rule([]string{"wan0"}, docker), func(*Match) {}, false}, "of others": {rule(lan, docker, netip.MustParsePrefix("10.0.0.0/8")), func(*Match) {}, false},
		"a source is dropped": {rule(lan, docker), func(m *Match) { m.From = []netip.Prefix{netip.MustParsePrefix("192.168.1.20/32")} }, false},
		"a port is dropped":   {rule(lan, docker), func(m *Match) { m.Ports = []nat.Ports{{First: 5432, Last: 5432}} }, false},
	} {
		user := &Chain{Name: "DOCKER-USER", Rules: []*Rule{c.rule}}
		table := &Table{Family: "ip", Name: "filter", Chains: []*Chain{{Name: "FORWARD", Type: "filter", Hook: "forward", Policy: "drop",
			Rules: []*Rule{{Target: Target{Kind: Jump, Chains: []string{"DOCKER-USER"}}}}}, user}}
		if got := Accepts([]*Table{early(c.before), table}, packet, "forward", "prerouting"); (got != nil) != c.want {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
