package metrics

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	natkit "github.com/natkit/natkit/internal/testutil"
)

// TestPromtool: promtool accepts the metrics, the alerts with their own tests, and the expressions of the dashboard.
func TestPromtool(t *testing.T) {
	promtool := natkit.NeedNightlyProgram(t, "promtool")
	run := func(stdin string, args ...string) {
		t.Helper()
		cmd := exec.Command(promtool, args...)
		cmd.Dir, cmd.Stdin = "../../deploy/mixin", strings.NewReader(stdin)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	var text bytes.Buffer
	if err := NewRegistry(full).Write(&text); err != nil {
		t.Fatal(err)
	}
	run(text.String(), "check", "metrics")
	run("", "check", "rules", "alerts.yaml")
	run("", "test", "rules", "alerts_test.yaml")
	run("", "check", "rules", dashboardRules(t))
}

// dashboardRules writes the expressions of the dashboard as recording rules, which promtool can check.
func dashboardRules(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../deploy/mixin/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Panels []struct{ Targets []struct{ Expr string } }
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	rules := []map[string]string{}
	for _, p := range d.Panels {
		for _, e := range p.Targets {
			rules = append(rules, map[string]string{"record": fmt.Sprintf("panel:%d", len(rules)), "expr": strings.ReplaceAll(e.Expr, "$__rate_interval", "5m")})
		}
	}
	if len(rules) < 15 {
		t.Fatalf("the dashboard has %d expressions", len(rules))
	}
	out, err := json.Marshal(map[string]any{"groups": []any{map[string]any{"name": "dashboard", "rules": rules}}}) // which is YAML
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "dashboard.yaml")
	if err := os.WriteFile(name, out, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}
