package simulate

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestYAML: each preset written and read again is the same.
func TestYAML(t *testing.T) {
	for _, p := range Presets() {
		text, err := YAML(&p.Config)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Parse("again.yaml", []byte(text))
		if err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		if diff := cmp.Diff(&p.Config, got); diff != "" {
			t.Errorf("%s:\n%s\n%s", p.Name, diff, text)
		}
	}
	off := false
	c := Config{Servers: []Servers{{Timestamps: &off}}, NAT: NAT{HoldDown: &Duration{}}}
	text, err := YAML(&c)
	if err != nil || !strings.Contains(text, "timestamps: false") || !strings.Contains(text, "hold_down: 0s") {
		t.Errorf("what is set to nothing is lost: %v\n%s", err, text)
	}
}
