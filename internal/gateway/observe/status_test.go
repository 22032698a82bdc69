package observe

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/natkit/natkit/internal/gateway"
)

func TestRulesAreInTheFilesOrder(t *testing.T) {
	p := &gateway.Plan{
		Sources:      []gateway.Source{{Rule: gateway.Ref{List: "ipv6", Index: 0, Kind: "masquerade"}}, {Rule: gateway.Ref{List: "nat", Index: 1, Kind: "static"}}, {Rule: gateway.Ref{List: "nat", Index: 1, Kind: "static"}}},
		Destinations: []gateway.Destination{{Rule: gateway.Ref{List: "nat", Index: 10, Kind: "dnat"}}, {Rule: gateway.Ref{List: "nat", Index: 1, Kind: "static"}}},
		Waiting:      []gateway.Waiting{{Rule: gateway.Ref{List: "nat", Index: 3, Kind: "dnat"}, Interface: "ppp0"}},
	}
	var got []string
	for _, r := range RulesOf(p) {
		got = append(got, r.Rule.String())
	}
	if want := []string{"nat[1] static", "nat[3] dnat", "nat[10] dnat", "ipv6[0] masquerade"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	hairpin := gateway.Source{Rule: gateway.Ref{List: "nat", Index: 0, Kind: "snat"}, Masquerade: true, Hairpin: gateway.HairpinOf{Prefix: netip.MustParsePrefix("0.0.0.0/0")}}
	plain := gateway.Source{Rule: gateway.Ref{List: "nat", Index: 0, Kind: "snat"}, Masquerade: true}
	if r := RulesOf(&gateway.Plan{Sources: []gateway.Source{hairpin, plain}}); len(r) != 1 || r[0].Text != plain.String() || r[0].More != 1 {
		t.Errorf("a rule with an entry for what comes back: %+v", r)
	}
	if more := RulesOf(p)[0].More; more != 2 {
		t.Errorf("%d more entries", more)
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
