package diagnose

import (
	"regexp"
	"slices"
	"testing"
)

// TestModes: each rule reports a mode, each mode names rules that there are, and one without
// a rule names what shows it.
func TestModes(t *testing.T) {
	kebab := regexp.MustCompile(`^[a-z]+(-[a-z]+)*$`)
	reported, names := map[string]bool{}, map[string]bool{}
	for _, m := range Modes() {
		switch {
		case !kebab.MatchString(m.Name):
			t.Errorf("mode %q: not words in small letters, joined by hyphens", m.Name)
		case names[m.Name]:
			t.Errorf("mode %s is there twice", m.Name)
		case m.Title == "":
			t.Errorf("mode %s has no title", m.Name)
		case m.Status != ByScenario && m.Note == "":
			t.Errorf("mode %s has no note: why no scenario makes it, or what shows it", m.Name)
		}
		names[m.Name] = true
		if unreported := m.Status == NotVisible || m.Status == NotReported; unreported != (len(m.Findings) == 0) {
			t.Errorf("mode %s is %s, with the findings %v", m.Name, m.Status, m.Findings)
		}
		for _, id := range m.Findings {
			reported[id] = true
			if !slices.ContainsFunc(Rules(), func(r Rule) bool { return r.ID == id }) {
				t.Errorf("mode %s: there is no rule %s", m.Name, id)
			}
		}
	}
	for _, r := range Rules() {
		if !reported[r.ID] {
			t.Errorf("rule %s is in no mode: put its id into modes.yaml", r.ID)
		}
	}
}
