package cli

import (
	"errors"
	"testing"

	"github.com/natkit/natkit/internal/diagnose"
)

// What could not be checked must not look healthy.
func TestVerdict(t *testing.T) {
	checks := func(states ...diagnose.State) *diagnose.Report {
		r := &diagnose.Report{}
		for _, s := range states {
			r.Checks = append(r.Checks, diagnose.Check{State: s, Why: "because"})
			if s == diagnose.Found {
				r.Findings = append(r.Findings, diagnose.Finding{ID: "x"})
			}
		}
		return r
	}
	if err := verdict(checks(diagnose.OK, diagnose.NotChecked)); err != nil {
		t.Errorf("one check was made and found nothing: %v", err)
	}
	if err := verdict(checks(diagnose.NotChecked, diagnose.NotChecked)); err == nil || errors.Is(err, errFindings) {
		t.Errorf("no check was made: %v, want an error of its own", err)
	}
	absent := checks(diagnose.NotChecked, diagnose.OK)
	absent.Checks[1].Absent = true
	if err := verdict(absent); err == nil {
		t.Error("no check was made but of what is not there")
	}
	if err := verdict(checks(diagnose.NotChecked, diagnose.Found)); !errors.Is(err, errFindings) {
		t.Errorf("a finding beside an unmade check: %v", err)
	}
}
