package main

import (
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/gateway"
)

// TestMixedRules: the suite measures rules that are all in force, and the few have the kinds of the many.
func TestMixedRules(t *testing.T) {
	const n = 1000
	many, few := compiled(t, mixedRules(countTo(n)), n), compiled(t, mixedRules(slices.Values(oneOfEach)), 1+len(oneOfEach))
	if diff := cmp.Diff(kindsOf(many), kindsOf(few)); diff != "" {
		t.Error(diff)
	}
	if got := len(kindsOf(few)); got != 1+len(oneOfEach) {
		t.Errorf("%d kinds of %d rules", got, 1+len(oneOfEach))
	}
}

// compiled is the plan of a file with n rules.
func compiled(t *testing.T, text string, n int) *gateway.Plan {
	t.Helper()
	c, err := gateway.Parse("mixed.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Config.NAT) != n {
		t.Errorf("%d rules, want %d", len(c.Config.NAT), n)
	}
	for _, f := range gateway.Check(c, gateway.Facts{}) {
		if f.Severity == gateway.Refuse {
			t.Errorf("refused: %s %s", f.ID, f.Message)
		}
	}
	p, err := gateway.Compile(&c.Config, gateway.Facts{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// kindsOf are the texts of rules without their numbers, each once.
func kindsOf(p *gateway.Plan) []string {
	number := regexp.MustCompile(`[0-9]+`)
	kinds := map[string]bool{}
	for _, r := range gateway.TextsOf(p) {
		kinds[number.ReplaceAllString(r.Rule.Kind+" "+r.Text, "N")] = true
	}
	return slices.Sorted(maps.Keys(kinds))
}

// TestSetElements: of two files no element is the same.
func TestSetElements(t *testing.T) {
	seen := map[string]bool{}
	for first := range 2 {
		for line := range strings.Lines(string(setElements(first, 70_000))) {
			if addr, err := netip.ParseAddr(strings.TrimSpace(line)); err != nil || !addr.Is4() || seen[line] {
				t.Fatalf("%q, %v", line, err)
			}
			seen[line] = true
		}
	}
	if len(seen) != 140_000 {
		t.Errorf("%d elements", len(seen))
	}
}

// TestForwardTo: the suite's rules choose among several hosts, in each of the ways.
func TestForwardTo(t *testing.T) {
	for _, more := range []string{"", ", balance: hash", ", balance: hash, health: {tcp: on, port: 9}"} {
		c, err := gateway.Parse("several.yaml", []byte(forwardTo(chosenHosts, more)))
		if err != nil {
			t.Fatal(err)
		}
		p, err := gateway.Compile(&c.Config, gateway.Facts{})
		if err != nil || len(p.Destinations) != 1 || len(p.Destinations[0].Action.Backends) != chosenHosts {
			t.Errorf("%+v, %v", p, err)
		}
	}
}
