package lab

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/document"
)

// AccuracySchema names the JSON form of an Accuracy.
const AccuracySchema = "natkit.accuracy/1"

// Accuracy is what doctor found in a series of scenarios, beside what was wrong in
// each; doctor knows neither.
type Accuracy struct {
	Schema  string    `json:"schema"`
	Version string    `json:"natkit_version"`
	Started time.Time `json:"started_at"`
	Seconds float64   `json:"seconds"`
	Kernel  string    `json:"kernel"`
	CPUs    int       `json:"cpus"`
	// Rules are the IDs of all rules, in their order.
	Rules []string `json:"rules"`
	// Scenarios are those with a fault first, then the healthy ones.
	Scenarios []AccuracyRow `json:"scenarios"`

	// Faults is how many scenarios with a fault were run, Recalled how many of these
	// faults doctor named; Recall is the ratio, 0 where none was run.
	Faults   int     `json:"faults"`
	Recalled int     `json:"faults_found"`
	Recall   float64 `json:"recall"`
	// Healthy is how many scenarios without a fault were run.
	Healthy int `json:"healthy"`
	// FalseFindings is how many findings no scenario allows.
	FalseFindings int `json:"false_findings"`
	// NotRun could not be run, LeftOut need a consent that was not given.
	NotRun  int `json:"not_run"`
	LeftOut int `json:"left_out"`
	// Passed: every scenario that was not left out was run and met its expectation,
	// and nothing false was found.
	Passed bool `json:"passed"`
}

// What AccuracyRow.State may be.
const (
	RowPassed  = "passed"
	RowFailed  = "failed"
	RowNotRun  = "not-run"
	RowLeftOut = "left-out"
)

// What AccuracyRow.Cured may be.
const (
	Cured = "yes"
	// NotCured: the finding was still there after doctor's remedy.
	NotCured = "no"
	// AdviceOnly: doctor has no remedy for it that natkit applies.
	AdviceOnly = "advice only"
	// NotTried: doctor has one, and the scenario does not try it.
	NotTried = "not tried"
)

// AccuracyRow is one scenario.
type AccuracyRow struct {
	Scenario string `json:"scenario"`
	Title    string `json:"title"`
	// Injected is the rule that is to be found; empty in a healthy scenario.
	Injected string `json:"injected,omitempty"`
	// Found are the rules that doctor named; False those among them that it may not.
	Found []string `json:"found"`
	False []string `json:"false,omitempty"`
	// Unchecked are rules that lacked their data whenever doctor ran: their absence
	// means nothing.
	Unchecked []string `json:"unchecked,omitempty"`
	// Cured reports whether doctor's remedy made the fault go; empty where there is
	// none, or where it was not found.
	Cured   string  `json:"cured,omitempty"`
	State   string  `json:"state"`
	Seconds float64 `json:"seconds"`
	// Why is what of the expectation was not met, or why the scenario was not run.
	Why string `json:"why,omitempty"`
}

// Recalled reports whether doctor named the fault.
func (r *AccuracyRow) Recalled() bool { return slices.Contains(r.Found, r.Injected) }

// RowOf returns the row of a scenario's run in the matrix of doctor's accuracy.
func RowOf(s *Scenario, r *Report) AccuracyRow {
	row := newRow(s, RowPassed, "")
	row.Seconds = r.Seconds
	for _, f := range r.Findings {
		row.Found = append(row.Found, f.ID)
		if !s.Expect.Allows(f.ID) {
			row.False = append(row.False, f.ID)
		}
		if f.ID == s.Expect.Finding {
			row.Cured = curedBy(s, r, f)
		}
	}
	row.Unchecked = uncheckedIn(r)
	var why []string
	for _, v := range r.Verdict {
		if !v.Met {
			why = append(why, v.Expected+": "+v.Seen)
		}
	}
	if len(why) > 0 || len(row.False) > 0 || !r.ExpectationMet {
		row.State = RowFailed
	}
	row.Why = strings.Join(why, "; ")
	return row
}

// uncheckedIn are the rules that no stage with a doctor could check.
func uncheckedIn(r *Report) (all []string) {
	first := true
	for _, s := range r.Stages {
		switch {
		case s.Found == nil:
		case first:
			all, first = slices.Clone(s.Unchecked), false
		default:
			all = slices.DeleteFunc(all, func(id string) bool { return !slices.Contains(s.Unchecked, id) })
		}
	}
	return all
}

// curedBy compares the first finding of the fault with the stages after a remedy.
func curedBy(s *Scenario, r *Report, f diagnose.Finding) string {
	automatic := func(m diagnose.Remedy) bool { return m.Automatic && len(m.Changes) > 0 }
	if !slices.ContainsFunc(f.Remedies, automatic) {
		return AdviceOnly
	}
	state := NotTried
	for _, st := range s.Stages {
		if seen := r.Stage(st.Name); st.Apply == ApplyRemedy && seen != nil {
			if state = Cured; slices.Contains(seen.Found, f.ID) {
				state = NotCured
			}
		}
	}
	return state
}

// RowOfError is a scenario that could not be run.
func RowOfError(s *Scenario, err error, seconds float64) AccuracyRow {
	row := newRow(s, RowNotRun, document.OneLine(err.Error()))
	row.Seconds = seconds
	return row
}

// RowLeft is a scenario that was left out.
func RowLeft(s *Scenario, why string) AccuracyRow { return newRow(s, RowLeftOut, why) }

func newRow(s *Scenario, state, why string) AccuracyRow {
	return AccuracyRow{Scenario: s.Name, Title: s.Title, Injected: s.Expect.Finding, Found: []string{}, State: state, Why: why}
}

// Add takes a row in.
func (a *Accuracy) Add(row AccuracyRow) {
	a.Scenarios = append(a.Scenarios, row)
	a.FalseFindings += len(row.False)
	switch {
	case row.State == RowNotRun:
		a.NotRun++
	case row.State == RowLeftOut:
		a.LeftOut++
	case row.Injected == "":
		a.Healthy++
	default:
		a.Faults++
		if row.Recalled() {
			a.Recalled++
		}
		a.Recall = float64(a.Recalled) / float64(a.Faults)
	}
	run := func(r AccuracyRow) bool { return r.State == RowPassed || r.State == RowLeftOut }
	a.Passed = a.Faults+a.Healthy > 0 && !slices.ContainsFunc(a.Scenarios, func(r AccuracyRow) bool { return !run(r) })
}

// Matrix are the scenarios in the order in which they are run: by what is wrong, the
// healthy ones last.
func Matrix(all []*Scenario) []*Scenario {
	order := map[string]int{"": len(diagnose.Rules())}
	for i, r := range diagnose.Rules() {
		order[r.ID] = i
	}
	sorted := slices.Clone(all)
	slices.SortStableFunc(sorted, func(a, b *Scenario) int {
		return cmp.Or(cmp.Compare(order[a.Expect.Finding], order[b.Expect.Finding]), cmp.Compare(a.Name, b.Name))
	})
	return sorted
}

// AtRate returns those of the scenarios that have loads with a rate, at another one.
func AtRate(all []*Scenario, rate int64) (at []*Scenario, err error) {
	for _, s := range all {
		if !s.HasRate() {
			continue
		}
		if s, err = s.With(Overrides{Rate: rate}); err != nil {
			return nil, err
		}
		at = append(at, s)
	}
	return at, nil
}
