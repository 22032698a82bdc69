package observe

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/nat"
)

func TestRulesAreInTheFilesOrder(t *testing.T) {
	p := &gateway.Plan{
		Sources:      []gateway.Entry{{Rule: gateway.Ref{List: "ipv6", Index: 0, Kind: "masquerade"}}, {Rule: gateway.Ref{List: "nat", Index: 1, Kind: "static"}}, {Rule: gateway.Ref{List: "nat", Index: 1, Kind: "static"}}},
		Destinations: []gateway.Entry{{Rule: gateway.Ref{List: "nat", Index: 10, Kind: "dnat"}}, {Rule: gateway.Ref{List: "nat", Index: 1, Kind: "static"}}},
		Waiting:      []gateway.Waiting{{Rule: gateway.Ref{List: "nat", Index: 3, Kind: "dnat"}, Interface: "ppp0"}},
	}
	var got []string
	for _, r := range RulesOf(p) {
		got = append(got, r.Rule.String())
	}
	if want := []string{"nat[1] static", "nat[3] dnat", "nat[10] dnat", "ipv6[0] masquerade"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	hairpin := gateway.Entry{Rule: gateway.Ref{List: "nat", Index: 0, Kind: "snat"}, Match: nat.Match{Original: []netip.Prefix{nat.Anywhere(32)}}}
	plain := gateway.Entry{Rule: gateway.Ref{List: "nat", Index: 0, Kind: "snat"}}
	if r := RulesOf(&gateway.Plan{Sources: []gateway.Entry{hairpin, plain}}); len(r) != 1 || r[0].Text != plain.String() {
		t.Errorf("a rule with an entry for what comes back: %+v", r)
	}
}

// A rule of several addresses, with its words, is shown as the plan has it.
func TestRulesOfWhole(t *testing.T) {
	p := compile(t, roles+`
  nat:
    - dnat: {on: wan, port: tcp/80, to: 172.17.0.2, hairpin: true}`, router)
	const want = "on 203.0.113.1, 203.0.113.2 tcp/80 becomes 172.17.0.2 hairpin"
	if r := RulesOf(p); len(r) != 1 || r[0].Text != want {
		t.Errorf("%+v, want %q", r, want)
	}
}

func TestBusiestHaveThoseThatLoseConnections(t *testing.T) {
	few, many := uint64(1), uint64(9)
	rules := []Rule{
		{Rule: gateway.Ref{Index: 0}, Usage: Usage{Flows: 5}},
		{Rule: gateway.Ref{Index: 1}, New: &few},
		{Rule: gateway.Ref{Index: 2}, Usage: Usage{Flows: 7}},
		{Rule: gateway.Ref{Index: 3}, Dropped: &few},
		{Rule: gateway.Ref{Index: 4}, New: &many},
	}
	for n, want := range [][]int{{}, {3}, {2, 3}, {0, 2, 3}, {0, 2, 3, 4}, {0, 1, 2, 3, 4}, {0, 1, 2, 3, 4}} {
		var got []int
		for _, r := range Busiest(rules, n) {
			got = append(got, r.Rule.Index)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%d: %v, want %v", n, got, want)
		}
	}
}
