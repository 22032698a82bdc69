package diagnose

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var began = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// seen is the report of a round of ten seconds: of each rule the severity of its finding, '-' for none and
// '?' for no result, as in "w" of one rule.
func seen(round int, severities string) *Report {
	r := &Report{TakenAt: began.Add(time.Duration(round) * 10 * time.Second), Netns: "gw"}
	for i, s := range severities {
		id := string(rune('a' + i))
		c := Check{ID: id, State: OK}
		switch s {
		case '?':
			c.State, c.Why = NotChecked, "no permission"
		case '-':
		default:
			c.State = Found
			r.Findings = append(r.Findings, Finding{ID: id, Title: fmt.Sprintf("title %d", round),
				Severity: map[rune]Severity{'n': Notice, 'w': Warning, 'c': Critical}[s]})
		}
		r.Checks = append(r.Checks, c)
	}
	return r
}

// course is a line for each event: the round, what, severity, rules, how often.
func course(t *Tracker, rounds ...string) (lines []string) {
	for i, severities := range rounds {
		for _, e := range t.Add(seen(i, severities)) {
			line := fmt.Sprintf("%d %s %s", i, e.Kind, e.ID+strings.Join(e.Checks, ","))
			if e.Severity > 0 {
				line += " " + e.Severity.String()
			}
			if e.Was > 0 {
				line += " was " + e.Was.String()
			}
			if e.Times > 1 {
				line += fmt.Sprintf(" x%d", e.Times)
			}
			lines = append(lines, line)
		}
	}
	return lines
}

func TestTracker(t *testing.T) {
	each := func(course string) []string { return strings.Split(course, "") }
	for _, tc := range []struct {
		name   string
		rounds []string
		want   []string
	}{
		{"nothing", each("----"), nil},
		{"comes at once, goes after three", each("-ww----w"), []string{"1 came a warning", "5 went a warning", "7 came a warning x2"}},
		{"from the first report", each("c"), []string{"0 came a critical"}},
		{"numbers are no change", each("wwww"), []string{"0 came a warning"}},
		{"brief absences are counted", each("w-w--w---"), []string{"0 came a warning", "8 went a warning x3"}},
		{"worse at once", each("nwc"), []string{"0 came a notice", "1 changed a warning was notice", "2 changed a critical was warning"}},
		{"better after three, to the worst of them", each("cwnn"), []string{"0 came a critical", "3 changed a warning was critical"}},
		{"no result keeps the finding", each("w?????-?-?-"), []string{"0 came a warning", "1 unchecked a", "10 went a warning"}},
		{"a rule without a result is an event for as long as it lasts", each("?---?"), []string{"0 unchecked a", "3 checked a", "4 unchecked a x2"}},
		{"one event for a reason", []string{"???", "---", "---", "---"}, []string{"0 unchecked a,b,c", "3 checked a,b,c"}},
		{"the most severe first", []string{"nwc"}, []string{"0 came c critical", "0 came b warning", "0 came a notice"}},
	} {
		if diff := cmp.Diff(tc.want, course(NewTracker(), tc.rounds...)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.name, diff)
		}
	}
}

// TestTrackerFlaps: what comes and goes for hours is a few events, and counted; when it is over for long it is
// forgotten, and its next coming is the first.
func TestTrackerFlaps(t *testing.T) {
	for _, period := range []int{1, 3, 4, 10, 40} {
		tracker, events, comings := NewTracker(), 0, 0
		const rounds = 24 * 360
		for i := range rounds {
			there := "-"
			if i/period%2 == 0 {
				there = "w"
				if i%period == 0 {
					comings++
				}
			}
			events += len(tracker.Add(seen(i, there)))
		}
		// Each pair of events doubles what is to be calm, until no absence is as long.
		if most := 2*6 + 1; events > most {
			t.Errorf("%d rounds there and %d not: %d events in a day, want %d at most", period, period, events, most)
		}
		findings, _ := tracker.Standing()
		if len(findings) != 1 || findings[0].Times != comings {
			t.Errorf("period %d: %+v, came %d times", period, findings, comings)
		}
	}
	tracker := NewTracker()
	var calm []string
	for range 2 * mostCalm {
		calm = append(calm, "-")
	}
	course(tracker, strings.Split("w---w---w", "")...)
	course(tracker, calm...)
	if len(tracker.findings) != 0 {
		t.Errorf("a finding of long ago is kept: %+v", tracker.findings["a"])
	}
	if diff := cmp.Diff([]string{"0 came a warning", "3 went a warning"}, course(tracker, "w", "-", "-", "-")); diff != "" {
		t.Errorf("after it was forgotten (-want +got):\n%s", diff)
	}
}

// TestTrackerRandom: whatever comes, each finding's events alternate, say what the one before left, and a finding
// that is there is standing.
func TestTrackerRandom(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		tracker, level := NewTracker(), map[string]Severity{}
		for round := range 400 {
			row := make([]byte, 3)
			for i := range row {
				row[i] = "--??nwwc"[random.IntN(8)]
			}
			report := seen(round, string(row))
			for _, e := range tracker.Add(report) {
				switch e.Kind {
				case Came:
					if level[e.ID] != 0 || e.Severity == 0 || e.Finding == nil || e.Since != e.At {
						t.Fatalf("round %d: %+v, stood at %v", round, e, level[e.ID])
					}
					level[e.ID] = e.Severity
				case Changed:
					if level[e.ID] != e.Was || e.Was == 0 || e.Severity == 0 || e.Severity == e.Was {
						t.Fatalf("round %d: %+v, stood at %v", round, e, level[e.ID])
					}
					level[e.ID] = e.Severity
				case Went:
					if level[e.ID] != e.Severity || e.Severity == 0 {
						t.Fatalf("round %d: %+v, stood at %v", round, e, level[e.ID])
					}
					level[e.ID] = 0
				}
			}
			for _, f := range report.Findings {
				if level[f.ID] < f.Severity {
					t.Fatalf("round %d: %s is %s and stands at %s", round, f.ID, f.Severity, level[f.ID])
				}
			}
		}
	}
}
