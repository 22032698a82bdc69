package read

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/testutil"
)

// TestWalkPastMarks: however many rules lead to a chain that only marks packets, as
// kube-proxy has it, what the others translate is told with its conditions.
func TestWalkPastMarks(t *testing.T) {
	table := newTable("ip", "nat")
	first := table.chain("PREROUTING")
	first.bases = []base{{hook: 0, priority: -100}}
	table.chain("MARK").steps = []step{{other: "MARK"}}
	for i := range maxFollowed / 4 {
		to := []string{"MARK"}
		if i%1000 == 0 {
			to = append(to, fmt.Sprint(i))
			table.chain(fmt.Sprint(i)).steps = []step{{translates: true, rule: snapshot.NATRule{Kind: snapshot.NATDest}}}
		}
		first.steps = append(first.steps, step{rule: snapshot.NATRule{Protocol: "tcp", DestinationPort: uint16(1 + i)}, to: to})
	}
	all := table.rules(newBudget())
	if want := 1 + (maxFollowed/4-1)/1000; len(all) != want {
		t.Errorf("%d rules, want %d", len(all), want)
	}
	for _, f := range all {
		if f.rule.Partial || f.rule.DestinationPort%1000 != 1 {
			t.Errorf("%+v", f.rule.Condition())
		}
	}
}

// TestWalkTooManyWays: 22 chains that each jump twice to the next lead to the last one in
// four million ways. What is kept of them is bounded over all tables, and the answer says so.
func TestWalkTooManyWays(t *testing.T) {
	const chains, rules = 22, 900
	ways := newBudget()
	from, to := snapshot.NATRule{FromSource: netip.MustParsePrefix("198.18.0.0/15")}, snapshot.NATRule{ToDestination: netip.MustParsePrefix("203.0.113.0/24")}
	defer testutil.Bounded(t, 128*chains*rules)()
	for _, family := range []string{"ip", "ip6", "inet"} {
		table := newTable(family, "nat")
		table.chain("0").bases = []base{{hook: 0, priority: -100}}
		for i := range chains {
			next := []string{fmt.Sprint(i + 1)}
			table.chain(fmt.Sprint(i)).steps = []step{{rule: from, to: next}, {rule: to, to: next}} // a packet may meet both
		}
		for range rules {
			last := table.chain(fmt.Sprint(chains))
			last.steps = append(last.steps, step{translates: true, rule: snapshot.NATRule{Kind: snapshot.NATDest}})
		}
		for _, f := range table.rules(ways) {
			if !f.rule.Partial || f.rule.Ways != nil {
				t.Fatalf("%+v", f.rule)
			}
		}
	}
	if !ways.spent() {
		t.Error("all ways were followed")
	}
}

// TestWalkManyRules: however many rules there are, to meet each once from every hook is not
// too many, as those of a large cluster.
func TestWalkManyRules(t *testing.T) {
	table, ways := newTable("ip", "nat"), newBudget()
	for hook, name := range []string{"PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"} {
		table.chain(name).bases = []base{{hook: hook, priority: -100}}
		table.chain(name).steps = []step{{rule: snapshot.NATRule{Protocol: "tcp"}, to: []string{"services"}}}
	}
	services := table.chain("services")
	for range maxFollowed {
		services.steps = append(services.steps, step{translates: true, rule: snapshot.NATRule{Kind: snapshot.NATDest}})
	}
	if n := len(table.rules(ways)); n != 4*maxFollowed || ways.spent() {
		t.Errorf("%d rules, too many: %v", n, ways.spent())
	}
}
