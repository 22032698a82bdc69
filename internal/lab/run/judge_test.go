package run

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/load"
)

// An interruption after which something stayed is no mere interruption.
func TestNotRestored(t *testing.T) {
	stayed := errors.New("put everything back: a value stayed")
	err := notRestored(stayed, context.Canceled)
	if errors.Is(err, context.Canceled) || !errors.Is(err, stayed) || !strings.Contains(err.Error(), "canceled") {
		t.Errorf("interrupted and not restored: %v", err)
	}
	if err := notRestored(stayed, nil); err != stayed {
		t.Errorf("not restored: %v", err)
	}
}

func TestJudge(t *testing.T) {
	sc := &lab.Scenario{
		Load:   lab.Load{Requests: 1000},
		Expect: lab.Expect{Finding: "ct-table-full", Complete: "fixed", Rate: &lab.Rate{Stage: "fixed", AtLeast: 0.8, Of: "nat"}},
	}
	stage := func(name string, rate float64, completed, failed int64) lab.StageReport {
		return lab.StageReport{Name: name, Result: load.Result{RequestsPerSecond: rate, Completed: completed, Failed: failed}}
	}
	good := func() *lab.Report {
		return &lab.Report{
			RateRatios: []float64{0.8},
			Stages:     []lab.StageReport{stage("nat", 100, 1000, 0), stage("fixed", 80, 1000, 0)},
			Findings:   []diagnose.Finding{{ID: "ct-early-drop"}, {ID: "ct-table-full"}},
			Fix:        &lab.Fix{Restored: true},
		}
	}
	tests := map[string]struct {
		change func(*lab.Report)
		want   bool
	}{
		"all is well":                 {func(*lab.Report) {}, true},
		"doctor named something else": {func(r *lab.Report) { r.Findings = r.Findings[:1] }, false},
		"doctor named nothing":        {func(r *lab.Report) { r.Findings = nil }, false},
		"one request failed":          {func(r *lab.Report) { r.Stages[1] = stage("fixed", 80, 999, 1) }, false},
		"one request is missing":      {func(r *lab.Report) { r.Stages[1] = stage("fixed", 80, 999, 0) }, false},
		"a little too slow":           {func(r *lab.Report) { r.RateRatios = []float64{0.799} }, false},
		"the stage did not run":       {func(r *lab.Report) { r.Stages = r.Stages[:1] }, false},
		"nothing to compare with":     {func(r *lab.Report) { r.RateRatios = nil }, false},
		"a host value stayed":         {func(r *lab.Report) { r.Fix.Restored = false }, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r := good()
			tc.change(r)
			judge(sc, r)
			if r.ExpectationMet != tc.want {
				t.Errorf("met is %v, want %v: %+v", r.ExpectationMet, tc.want, r.Verdict)
			}
		})
	}
	empty := &lab.Report{}
	if judge(&lab.Scenario{}, empty); empty.ExpectationMet {
		t.Error("a scenario that expects nothing was met")
	}
}

func TestJudgeFindings(t *testing.T) {
	healthy := []string{}
	both := []string{"ct-flood", "ct-table-full"}
	for name, tc := range map[string]struct {
		expect lab.Expect
		found  []string
		after  []string
		want   bool
	}{
		"healthy, and nothing found":       {lab.Expect{Findings: &healthy}, nil, nil, true},
		"healthy, and something found":     {lab.Expect{Findings: &healthy}, []string{"ct-flood"}, nil, false},
		"all that may be":                  {lab.Expect{Finding: "ct-flood", Findings: &both}, both, nil, true},
		"less than may be":                 {lab.Expect{Finding: "ct-flood", Findings: &both}, both[:1], nil, true},
		"more than may be":                 {lab.Expect{Finding: "ct-flood", Findings: &both}, append(both, "snat-race"), nil, false},
		"the fault itself was not found":   {lab.Expect{Finding: "ct-flood", Findings: &both}, both[1:], nil, false},
		"cured":                            {lab.Expect{Finding: "ct-flood", Cured: "fixed"}, both[:1], []string{}, true},
		"cured, and something else to see": {lab.Expect{Finding: "ct-flood", Cured: "fixed"}, both[:1], both[1:], true},
		"not cured":                        {lab.Expect{Finding: "ct-flood", Cured: "fixed"}, both[:1], both[:1], false},
		"not checked after the remedy":     {lab.Expect{Finding: "ct-flood", Cured: "fixed"}, both[:1], nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := &lab.Report{Stages: []lab.StageReport{{Name: "fixed", Found: tc.after}}}
			for _, id := range tc.found {
				r.Findings = append(r.Findings, diagnose.Finding{ID: id})
			}
			if judge(&lab.Scenario{Expect: tc.expect}, r); r.ExpectationMet != tc.want {
				t.Errorf("met is %v, want %v: %+v", r.ExpectationMet, tc.want, r.Verdict)
			}
		})
	}
}
