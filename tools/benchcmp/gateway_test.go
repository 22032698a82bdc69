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
