package gateway

import (
	"net/netip"
	"slices"
	"testing"
)

func TestRefsAreInTheFilesOrder(t *testing.T) {
	p := &Plan{
		Sources:      []Source{{Rule: Ref{"ipv6", 0, "masquerade"}}, {Rule: Ref{"nat", 1, "static"}}, {Rule: Ref{"nat", 1, "static"}}},
		Destinations: []Destination{{Rule: Ref{"nat", 10, "dnat"}}, {Rule: Ref{"nat", 1, "static"}}},
		Waiting:      []Waiting{{Rule: Ref{"nat", 3, "dnat"}, Interface: "ppp0"}},
	}
	var got []string
	for _, r := range p.Refs() {
		got = append(got, r.Rule.String())
	}
	if want := []string{"nat[1] static", "nat[3] dnat", "nat[10] dnat", "ipv6[0] masquerade"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	hairpin := Source{Rule: Ref{"nat", 0, "snat"}, Masquerade: true, Hairpin: HairpinOf{Prefix: netip.MustParsePrefix("0.0.0.0/0")}}
	plain := Source{Rule: Ref{"nat", 0, "snat"}, Masquerade: true}
	if r := (&Plan{Sources: []Source{hairpin, plain}}).Refs(); len(r) != 1 || r[0].Text != plain.String() || r[0].More != 1 {
		t.Errorf("a rule with an entry for what comes back: %+v", r)
	}
	if more := p.Refs()[0].More; more != 2 {
		t.Errorf("%d more entries", more)
	}
}

func TestBusiestHaveThoseThatLoseConnections(t *testing.T) {
	few, many := uint64(1), uint64(9)
	rules := []RuleStatus{
		{Rule: Ref{Index: 0}, Usage: Usage{Flows: 5}},
		{Rule: Ref{Index: 1}, New: &few},
		{Rule: Ref{Index: 2}, Usage: Usage{Flows: 7}},
		{Rule: Ref{Index: 3}, Dropped: &few},
		{Rule: Ref{Index: 4}, New: &many},
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
