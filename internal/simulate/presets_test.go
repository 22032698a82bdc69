package simulate

import (
	"slices"
	"strings"
	"testing"
)

// TestPresets: every file is listed, under its own name, and makes sense.
func TestPresets(t *testing.T) {
	entries, err := presetFiles.ReadDir("presets")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if name := strings.TrimSuffix(e.Name(), ".yaml"); !slices.Contains(presetOrder, name) {
			t.Errorf("presets/%s is not in the list", e.Name())
		}
	}
	for i, p := range Presets() {
		if p.Name != presetOrder[i] || p.Title == "" || p.About == "" {
			t.Errorf("preset %s says name %q, title %q, about %q", presetOrder[i], p.Name, p.Title, p.About)
		}
		if found, err := FindPreset(p.Name); err != nil || found != p {
			t.Errorf("FindPreset(%s): %v, %v", p.Name, found, err)
		}
	}
	if _, err := FindPreset("no-such"); err == nil || !strings.Contains(err.Error(), "old-kernel") {
		t.Errorf("an unknown preset: %v", err)
	}
}
