package gateway

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestPlanAsJSON: a plan that was stored is the same plan.
func TestPlanAsJSON(t *testing.T) {
	for _, c := range compileCases {
		p := compile(t, c.body, router)
		text, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		back := &Plan{}
		if err := json.Unmarshal(text, back); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if Digest(back) != Digest(p) || lines(back) != lines(p) {
			t.Errorf("%s: another plan came back:\n%s", c.name, cmp.Diff(lines(p), lines(back)))
		}
	}
}
