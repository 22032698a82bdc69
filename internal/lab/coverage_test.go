package lab

import (
	"testing"

	"github.com/natkit/natkit/internal/diagnose"
)

// Every rule has a scenario that makes its fault happen on a real kernel.
func TestRulesHaveScenarios(t *testing.T) {
	injected := map[string]bool{}
	healthy := 0
	for _, s := range Scenarios() {
		injected[s.Expect.Finding] = true
		if s.Healthy() {
			healthy++
		}
	}
	for _, r := range diagnose.Rules() {
		if !injected[r.ID] {
			t.Errorf("rule %s has no scenario with expect: {finding: %s} in internal/lab/scenarios", r.ID, r.ID)
		}
	}
	if healthy < 8 {
		t.Errorf("%d healthy scenarios", healthy)
	}
}
