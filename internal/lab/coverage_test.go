package lab

import (
	"bytes"
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/natkit/natkit/internal/diagnose"
)

// Every rule has a scenario that makes its fault happen on a real kernel, or a mode in
// diagnose/modes.yaml names the test in a VM or the recording that shows it.
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
		elsewhere := slices.ContainsFunc(diagnose.Modes(), func(m diagnose.Mode) bool {
			return cmp.Or(m.VM, m.Recording) != "" && slices.Contains(m.Findings, r.ID)
		})
		if !injected[r.ID] && !elsewhere {
			t.Errorf("rule %s has no scenario with expect: {finding: %s} in internal/lab/scenarios, and its mode names no test in a VM and no recording", r.ID, r.ID)
		}
	}
	if healthy < 8 {
		t.Errorf("%d healthy scenarios", healthy)
	}
}

// TestModesAreShown: what a mode says of scenarios, tests and recordings is so, and each
// scenario with a fault makes a mode.
func TestModesAreShown(t *testing.T) {
	made := map[string]bool{}
	for _, m := range diagnose.Modes() {
		for _, name := range m.Scenarios {
			s, err := Find(name)
			if err != nil {
				t.Errorf("mode %s: %v", m.Name, err)
				continue
			}
			made[name] = true
			if !slices.Contains(m.Findings, s.Expect.Finding) {
				t.Errorf("mode %s: scenario %s expects %q, the mode has %v", m.Name, name, s.Expect.Finding, m.Findings)
			}
		}
		file := cmp.Or(m.VM, m.Recording)
		switch {
		case file == "":
		case m.Status == diagnose.ByScenario, m.VM != "" && m.Recording != "":
			t.Errorf("mode %s: what shows it has to be one of scenarios, vm and recording", m.Name)
		default:
			for _, id := range m.Findings {
				if !shows(file, id) {
					t.Errorf("mode %s: %s is not there, or does not name %s", m.Name, file, id)
				}
			}
		}
		if file == "" && len(m.Scenarios) == 0 && len(m.Findings) > 0 {
			t.Errorf("mode %s has findings, and no scenario, vm or recording shows them", m.Name)
		}
	}
	for _, s := range Scenarios() {
		if s.Expect.Finding != "" && !made[s.Name] {
			t.Errorf("scenario %s is in no mode: put its name into internal/diagnose/modes.yaml", s.Name)
		}
	}
}

// shows reports whether the file is there and names the rule.
func shows(file, id string) bool {
	text, err := os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(file)))
	return err == nil && bytes.Contains(text, []byte(id))
}
