package main

import (
	"testing"

	"github.com/natkit/natkit/internal/gateway"
)

// TestMixedRules: the suite measures rules that are all in force.
func TestMixedRules(t *testing.T) {
	const n = 1000
	c, err := gateway.Parse("mixed.yaml", []byte(mixedRules(n)))
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
