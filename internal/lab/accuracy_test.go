package lab

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/tune"
)

func automatic(id string) diagnose.Finding {
	return diagnose.Finding{ID: id, Remedies: []diagnose.Remedy{{Automatic: true, Changes: []tune.Change{{Kind: tune.Sysctl}}}}}
}

// faulty is a scenario with a remedy and what a run of it found.
func faulty(inFixed []string, findings ...diagnose.Finding) (*Scenario, *Report) {
	s := &Scenario{Name: "faulty", Stages: []Stage{{Name: "fault"}, {Name: "fixed", Apply: ApplyRemedy}}, Expect: Expect{Finding: "ct-flood"}}
	return s, &Report{Findings: findings, Stages: []StageReport{{Name: "fault", Found: []string{"x"}}, {Name: "fixed", Found: inFixed}}, ExpectationMet: true}
}

func TestRowOf(t *testing.T) {
	advice := diagnose.Finding{ID: "ct-flood", Remedies: []diagnose.Remedy{{Title: "look"}}}
	for name, tc := range map[string]struct {
		inFixed  []string
		findings []diagnose.Finding
		change   func(*Scenario, *Report)
		want     AccuracyRow
	}{
		"found and cured": {[]string{}, []diagnose.Finding{automatic("ct-flood")}, nil,
			AccuracyRow{Found: []string{"ct-flood"}, Cured: Cured, State: RowPassed}},
		"found and not cured": {[]string{"ct-flood"}, []diagnose.Finding{automatic("ct-flood")}, nil,
			AccuracyRow{Found: []string{"ct-flood"}, Cured: NotCured, State: RowPassed}},
		"advice": {[]string{}, []diagnose.Finding{advice}, nil,
			AccuracyRow{Found: []string{"ct-flood"}, Cured: AdviceOnly, State: RowPassed}},
		"not tried": {nil, []diagnose.Finding{automatic("ct-flood")}, func(s *Scenario, _ *Report) { s.Stages = s.Stages[:1] },
			AccuracyRow{Found: []string{"ct-flood"}, Cured: NotTried, State: RowPassed}},
		"missed": {nil, nil, func(_ *Scenario, r *Report) {
			r.ExpectationMet, r.Verdict = false, []Verdict{{Expected: "a", Seen: "b"}, {Expected: "c", Seen: "d", Met: true}}
		}, AccuracyRow{Found: []string{}, State: RowFailed, Why: "a: b"}},
		// A single run may allow it: the matrix does not.
		"another one too": {[]string{}, []diagnose.Finding{automatic("ct-flood"), automatic("ct-chain-cap")}, nil,
			AccuracyRow{Found: []string{"ct-flood", "ct-chain-cap"}, False: []string{"ct-chain-cap"}, Cured: Cured, State: RowFailed}},
		"another one that is allowed": {[]string{}, []diagnose.Finding{automatic("ct-flood"), automatic("ct-chain-cap")},
			func(s *Scenario, _ *Report) { s.Expect.Findings = &[]string{"ct-flood", "ct-chain-cap"} },
			AccuracyRow{Found: []string{"ct-flood", "ct-chain-cap"}, Cured: Cured, State: RowPassed}},
		"unchecked wherever doctor looked": {[]string{}, []diagnose.Finding{automatic("ct-flood")},
			func(_ *Scenario, r *Report) {
				r.Stages[0].Unchecked, r.Stages[1].Unchecked = []string{"a", "b"}, []string{"b"}
			},
			AccuracyRow{Found: []string{"ct-flood"}, Unchecked: []string{"b"}, Cured: Cured, State: RowPassed}},
	} {
		t.Run(name, func(t *testing.T) {
			s, r := faulty(tc.inFixed, tc.findings...)
			if tc.change != nil {
				tc.change(s, r)
			}
			tc.want.Scenario, tc.want.Injected = "faulty", "ct-flood"
			if diff := cmp.Diff(tc.want, RowOf(s, r)); diff != "" {
				t.Errorf("row (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAccuracyAdds(t *testing.T) {
	fault := AccuracyRow{Injected: "ct-flood", Found: []string{"ct-flood"}, State: RowPassed}
	missed := AccuracyRow{Injected: "ct-flood", Found: []string{}, State: RowFailed}
	wrong := AccuracyRow{Found: []string{"a", "b"}, False: []string{"a", "b"}, State: RowFailed}
	healthy := AccuracyRow{Found: []string{}, State: RowPassed}
	broken := RowOfError(&Scenario{Name: "x"}, errors.New("no\nway"), 1)
	left := RowLeft(&Scenario{Name: "x"}, "because")
	for name, tc := range map[string]struct {
		rows []AccuracyRow
		want Accuracy
	}{
		"nothing":              {nil, Accuracy{}},
		"all right":            {[]AccuracyRow{fault, healthy}, Accuracy{Faults: 1, Recalled: 1, Recall: 1, Healthy: 1, Passed: true}},
		"one missed":           {[]AccuracyRow{fault, missed}, Accuracy{Faults: 2, Recalled: 1, Recall: 0.5}},
		"false findings":       {[]AccuracyRow{fault, wrong}, Accuracy{Faults: 1, Recalled: 1, Recall: 1, Healthy: 1, FalseFindings: 2}},
		"one not run":          {[]AccuracyRow{fault, broken}, Accuracy{Faults: 1, Recalled: 1, Recall: 1, NotRun: 1}},
		"one left out":         {[]AccuracyRow{fault, left}, Accuracy{Faults: 1, Recalled: 1, Recall: 1, LeftOut: 1, Passed: true}},
		"nothing but left out": {[]AccuracyRow{left}, Accuracy{LeftOut: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			var a Accuracy
			for _, row := range tc.rows {
				a.Add(row)
			}
			a.Scenarios = nil
			if diff := cmp.Diff(tc.want, a); diff != "" {
				t.Errorf("accuracy (-want +got):\n%s", diff)
			}
		})
	}
	if broken.Why != "no way" || broken.State != RowNotRun {
		t.Errorf("a scenario that could not be run: %+v", broken)
	}
}

// The matrix begins with the faults in the order of the rules.
func TestMatrixOrder(t *testing.T) {
	ordered := Matrix(Scenarios())
	if len(ordered) != len(Scenarios()) || ordered[0].Expect.Finding != diagnose.Rules()[0].ID {
		t.Fatalf("%d scenarios, the first %s", len(ordered), ordered[0].Name)
	}
	healthy := false
	for _, s := range ordered {
		if healthy && !s.Healthy() {
			t.Errorf("%s comes after a healthy scenario", s.Name)
		}
		healthy = s.Healthy()
	}
}
