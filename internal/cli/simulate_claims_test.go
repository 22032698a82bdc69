package cli

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/natkit/natkit/internal/simulate"
	"github.com/natkit/natkit/internal/units"
)

const simulateDoc = "../../docs/simulate.md"

//go:generate go test -count=1 -run ^TestSimulateDocIsCurrent$ . -args -update-docs

// TestSimulateDocIsCurrent holds what docs/simulate.md shows of the simulator: an output,
// and the table that puts what is said of the case beside what is simulated.
func TestSimulateDocIsCurrent(t *testing.T) {
	text, err := os.ReadFile(simulateDoc)
	if err != nil {
		t.Fatal(err)
	}
	doc := string(text)
	for name, made := range map[string]string{"output": sampleOutput(t), "claims": claimsTable(t)} {
		doc = replaced(t, doc, name, made)
	}
	if *updateDocs {
		if err := os.WriteFile(simulateDoc, []byte(doc), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if diff := cmp.Diff(string(text), doc); diff != "" {
		t.Errorf("docs/simulate.md is not what the simulator says; `make generate` rewrites it (-file +simulated):\n%s", diff)
	}
}

// TestSimulateDocConfig: the configuration that the page shows is one.
func TestSimulateDocConfig(t *testing.T) {
	text, err := os.ReadFile(simulateDoc)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(text), "```yaml\n")
	config, _, _ := strings.Cut(rest, "```")
	if !ok {
		t.Fatal("there is no configuration")
	}
	// Alternatives are comments: each is one, too.
	for _, other := range []string{"rate: 500 ", "# daily: ", "# points: ", "# csv: "} {
		one := strings.Replace(config, "  rate: 500 ", "  # rate: 500 ", 1)
		one = strings.Replace(one, "# "+strings.TrimPrefix(other, "# "), strings.TrimPrefix(other, "# "), 1)
		if _, err := simulate.Parse("docs.yaml", []byte(one)); err != nil {
			t.Errorf("with %q: %v", other, err)
		}
	}
}

// replaced is the page with other text between two marks.
func replaced(t *testing.T, doc, name, text string) string {
	t.Helper()
	begin, end := "<!-- "+name+": made by make generate -->\n", "<!-- end of "+name+" -->\n"
	before, rest, ok1 := strings.Cut(doc, begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok1 || !ok2 {
		t.Fatalf("%s has no place for %s", simulateDoc, name)
	}
	return before + begin + text + end + after
}

func sampleOutput(t *testing.T) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if code := Run(t.Context(), Env{Stdout: &stdout, Stderr: &stderr, Getenv: func(string) string { return "" }}, []string{"simulate", "--preset", "mixed"}); code != exitOK {
		t.Fatalf("exit code %d: %s", code, &stderr)
	}
	return "```text\n$ natkit simulate --preset mixed\n" + stdout.String() + "```\n"
}

func claimsTable(t *testing.T) string {
	t.Helper()
	var table strings.Builder
	fmt.Fprintf(&table, "| said | figure | simulated | preset |\n|---|---|---|---|\n")
	for _, row := range claims(t) {
		fmt.Fprintf(&table, "| %s | %s | %s | `%s` |\n", row[0], row[1], row[2], row[3])
	}
	return table.String()
}

// claims are the rows: what is said, its figure, what is simulated, and the preset.
func claims(t *testing.T) [][4]string {
	old := ramped(t, "old-kernel", 520, 580)
	quiet := steady(t, "old-kernel", 20)
	vendor := ramped(t, "new-kernel", 930, 970)
	modern := ramped(t, "modern-kernel", 1040, 1080)
	loaded := steady(t, "old-kernel", 600)
	doubled := steady(t, "doubled", 600)
	mixed := steady(t, "mixed", 600)
	return [][4]string{
		{"new sessions at the balancer stop growing", "529/s", begins(old, simulate.IncidentSessions), "old-kernel"},
		{"a TIME_WAIT of 2.6 and 3.10 stands under load", "112.5 s", lives(old), "old-kernel"},
		{"and below 100 closings in a slot's 7.5 s", "60 s", lives(quiet), "old-kernel"},
		{"errors begin with these kernels", "564/s", begins(old, simulate.IncidentRejects), "old-kernel"},
		{"twice as many of these servers do not help (refused for 100 connections)", "as before", refused(doubled) + ", before " + refused(loaded), "doubled"},
		{"beside servers of 3.10.0-1127 the load moves there (their share)", "toward the new", shareOfNew(mixed), "mixed"},
		{"a TIME_WAIT of 3.10.0-1127 stands under load", "60.5 s", lives(vendor), "new-kernel"},
		{"errors begin with 3.10.0-1127", "1,049/s", begins(vendor, simulate.IncidentRejects), "new-kernel"},
		{"a TIME_WAIT of 4.1 and later stands", "60 s", lives(modern), "modern-kernel"},
		{"errors begin with these", "–", begins(modern, simulate.IncidentRejects), "modern-kernel"},
		{"three SNAT addresses help (refused for 100 connections)", "3 times the rate", refused(steady(t, "addresses", 600)), "addresses"},
		{"tcp_max_tw_buckets=5000: fewer errors, not none (at 800/s)", "fewer", refused(steady(t, "max-tw-buckets", 800)) + ", without " + refused(steady(t, "old-kernel", 800)), "max-tw-buckets"},
		{"timestamps off cures", "no errors", refused(steady(t, "no-timestamps", 600)) + ", all by sequence number", "no-timestamps"},
	}
}

func claimed(t *testing.T, preset string, change func(*simulate.Config)) *simulate.Result {
	t.Helper()
	c, _, err := presetOf(preset)
	if err != nil {
		t.Fatal(err)
	}
	c.Duration.Duration = 15 * time.Minute
	change(c)
	r, err := simulate.Run(t.Context(), *c, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// ramped raises the rate slowly, at equal distances, so that what begins does so at an
// exact rate.
func ramped(t *testing.T, preset string, from, to float64) *simulate.Result {
	t.Helper()
	return claimed(t, preset, func(c *simulate.Config) {
		c.Arrivals = &simulate.Arrivals{Spacing: simulate.SpacingEven,
			Points: []simulate.RatePoint{{Rate: from}, {At: c.Duration, Rate: to}}}
	})
}

func steady(t *testing.T, preset string, rate float64) *simulate.Result {
	t.Helper()
	return claimed(t, preset, func(c *simulate.Config) { c.Arrivals = &simulate.Arrivals{Rate: rate} })
}

func begins(r *simulate.Result, kind string) string {
	for _, i := range r.Incidents {
		if i.Kind == kind {
			return fmt.Sprintf("%s/s", units.Fixed(r.Config.Arrivals.At(r.Config.Start.Duration, time.Duration(i.StartSeconds*float64(time.Second))), 0))
		}
	}
	return "not at all"
}

func lives(r *simulate.Result) string {
	l := r.Servers[0].Life
	if l.MinSeconds == l.MaxSeconds {
		return fmt.Sprintf("%.1f s", l.MaxSeconds)
	}
	return fmt.Sprintf("%.1f s at most", l.MaxSeconds)
}

func refused(r *simulate.Result) string {
	return fmt.Sprintf("%.1f", 100*float64(r.Totals.Rejects())/float64(r.Totals.Connections))
}

// shareOfNew is that of the second group in the first minutes and in the last.
func shareOfNew(r *simulate.Result) string {
	share := func(points []simulate.Point) float64 {
		var of [2]float64
		for _, p := range points {
			of[0] += float64(p.Servers[0].Connections)
			of[1] += float64(p.Servers[1].Connections)
		}
		return 100 * of[1] / (of[0] + of[1])
	}
	n := int(5 * 60 / r.IntervalSeconds)
	full := r.Curve[:int(r.Config.Duration.Seconds()/r.IntervalSeconds)]
	return fmt.Sprintf("from %.0f %% to %.0f %%", share(full[:n/5]), share(full[len(full)-n:]))
}
