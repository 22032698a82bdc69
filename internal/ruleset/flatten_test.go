package ruleset

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/testutil"
)

// baseOf adds a built-in chain of type nat.
func baseOf(t *Table, hook string) *Chain { return t.builtin(strings.ToUpper(hook)) }

func jumpsTo(m Match, chains ...string) *Rule {
	return &Rule{Match: m, Target: Target{Kind: Jump, Chains: chains}}
}

func dnat() *Rule { return &Rule{Target: Target{Kind: DNAT, Name: "DNAT"}} }

// TestWalkPastMarks: however many rules lead to a chain that only marks packets, as
// kube-proxy has it, what the others translate has its conditions.
func TestWalkPastMarks(t *testing.T) {
	table := &Table{Family: "ip", Name: "nat"}
	first := baseOf(table, "prerouting")
	table.Chain("MARK").Rules = []*Rule{{Target: Target{Kind: Pass, Name: "MARK"}}}
	const rules = mostAgain / 4
	for i := range rules {
		to := []string{"MARK"}
		if i%1000 == 0 {
			to = append(to, fmt.Sprint(i))
			table.Chain(fmt.Sprint(i)).Rules = []*Rule{dnat()}
		}
		port := uint16(1 + i)
		first.Rules = append(first.Rules, jumpsTo(Match{Match: nat.Match{Protocol: 6, Ports: []nat.Ports{{First: port, Last: port}}}}, to...))
	}
	all := NATRules([]*Table{table}, &Budget{})
	if want := 1 + (rules-1)/1000; len(all.Rules) != want || all.TooMany {
		t.Errorf("%d rules, want %d; too many: %v", len(all.Rules), want, all.TooMany)
	}
	for _, r := range all.Rules {
		if r.Partial || r.DestinationPort%1000 != 1 {
			t.Errorf("%+v", r.NATCondition)
		}
	}
}

// TestWalkTooManyPaths: 22 chains that each jump twice to the next lead to the last one on
// four million paths. What is kept of them is bounded over all tables, and reported.
func TestWalkTooManyPaths(t *testing.T) {
	const chains, rules = 22, 900
	from, to := Match{Match: nat.Match{From: []netip.Prefix{netip.MustParsePrefix("198.18.0.0/15")}}}, Match{Match: nat.Match{To: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}}}
	defer testutil.Bounded(t, 128*chains*rules)()
	var tables []*Table
	for _, family := range []string{"ip", "ip6", "inet"} {
		table := &Table{Family: family, Name: "nat"}
		baseOf(table, "prerouting").Rules = []*Rule{jumpsTo(Match{}, "0")}
		for i := range chains {
			next := fmt.Sprint(i + 1)
			table.Chain(fmt.Sprint(i)).Rules = []*Rule{jumpsTo(from, next), jumpsTo(to, next)} // a packet may meet both
		}
		for range rules {
			last := table.Chain(fmt.Sprint(chains))
			last.Rules = append(last.Rules, dnat())
		}
		tables = append(tables, table)
	}
	all := NATRules(tables, &Budget{})
	for _, r := range all.Rules {
		if !r.Partial || r.Ways != nil {
			t.Fatalf("%+v", r)
		}
	}
	if !all.TooMany || len(all.Rules) == 0 {
		t.Error("all paths were followed")
	}
}

// TestWalkManyRules: however many rules there are, to meet each once from every hook is not
// too many, as those of a large cluster.
func TestWalkManyRules(t *testing.T) {
	table := &Table{Family: "ip", Name: "nat"}
	for _, name := range []string{"prerouting", "input", "output", "postrouting"} {
		baseOf(table, name).Rules = []*Rule{jumpsTo(Match{Match: nat.Match{Protocol: 6}}, "services")}
	}
	services := table.Chain("services")
	for range mostAgain {
		services.Rules = append(services.Rules, dnat())
	}
	if all := NATRules([]*Table{table}, &Budget{}); len(all.Rules) != 4*mostAgain || all.TooMany {
		t.Errorf("%d rules, too many: %v", len(all.Rules), all.TooMany)
	}
}

// TestExceptions: a rule has the conditions of those before it that take packets away, and
// is partial if these are in a chain that was left.
func TestExceptions(t *testing.T) {
	text := `*nat
-A POSTROUTING -d 10.0.0.0/8 -j RETURN
-A POSTROUTING -p tcp -j SUB
-A POSTROUTING -s 10.1.0.0/16 -j MASQUERADE
-A SUB -s 10.1.0.0/24 -j RETURN
-A SUB -s 10.1.1.0/24 -j INNER
-A SUB -j MASQUERADE
-A INNER -s 10.1.1.0/28 -j ACCEPT
COMMIT
`
	set := Parse(text, 4)
	var got []string
	for _, r := range NATRules(set.Tables, &Budget{}).Rules {
		got = append(got, fmt.Sprint(r.Chain, " ", len(r.Unless), " ", r.Partial))
	}
	if want := "[SUB 2 true POSTROUTING 1 true]"; fmt.Sprint(got) != want {
		t.Errorf("%v, want %s", got, want)
	}
}
