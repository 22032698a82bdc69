package lab

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/natkit/natkit/internal/diagnose"
)

// elsewhere are the rules whose fault no scenario can make on any kernel that natkit is
// tested on, with the file, from the root of the source, that shows it: recordings of
// the rule's cases, or a test in a VM.
var elsewhere = map[string]string{
	"lvs-affinity":   "internal/doctor/ipvs_test.go",                // IPVS is not in every kernel
	"lvs-conn-reuse": "internal/doctor/ipvs_test.go",                // and its delay went with Linux 5.9
	"tw-recycle":     "internal/diagnose/testdata/tw-recycle.txtar", // removed in Linux 4.12
}

// Every rule has a scenario that makes its fault happen on a real kernel, or stands in
// elsewhere.
func TestRulesHaveScenarios(t *testing.T) {
	injected := map[string]bool{}
	healthy := 0
	for _, s := range Scenarios() {
		injected[s.Expect.Finding] = true
		if s.Healthy() {
			healthy++
		}
	}
	known := map[string]bool{}
	for _, r := range diagnose.Rules() {
		known[r.ID] = true
		file, other := elsewhere[r.ID]
		switch {
		case injected[r.ID] && other:
			t.Errorf("rule %s has a scenario: take it out of elsewhere", r.ID)
		case injected[r.ID]:
		case !other:
			t.Errorf("rule %s has no scenario with expect: {finding: %s} in internal/lab/scenarios", r.ID, r.ID)
		case !shows(file, r.ID):
			t.Errorf("rule %s is to be shown by %s, which is not there or does not name it", r.ID, file)
		}
	}
	for id := range elsewhere {
		if !known[id] {
			t.Errorf("elsewhere has %s, and there is no such rule", id)
		}
	}
	if healthy < 8 {
		t.Errorf("%d healthy scenarios", healthy)
	}
}

// shows reports whether the file is there and names the rule.
func shows(file, id string) bool {
	text, err := os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(file)))
	return err == nil && bytes.Contains(text, []byte(id))
}
