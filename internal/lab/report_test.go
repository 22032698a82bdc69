package lab

import (
	"testing"

	"github.com/natkit/natkit/internal/load"
)

func TestCaution(t *testing.T) {
	stage := func(name string, rate, other float64) StageReport {
		return StageReport{Name: name, OtherCPU: other, Result: load.Result{RequestsPerSecond: rate}}
	}
	for _, tc := range []struct {
		nat, fixed              StageReport
		caution, ratioUncertain bool
	}{
		{stage("nat", 100, 0.02), stage("fixed", 104, 0.05), false, false},
		{stage("nat", 100, 0.02), stage("fixed", 169, 0.05), true, true},
		{stage("nat", 100, 0.50), stage("fixed", 99, 0.05), false, true},
		{stage("nat", 100, 0), stage("fixed", 99, 0.11), true, true},
		{stage("nat", 100, 0), stage("baseline", 169, 0), false, false}, // without NAT it may
	} {
		r := &Report{Stages: []StageReport{tc.nat, tc.fixed}}
		if got := r.Caution(&r.Stages[1]) != ""; got != tc.caution {
			t.Errorf("%s, %.0f/s, others %.2f: %q", tc.fixed.Name, tc.fixed.RequestsPerSecond, tc.fixed.OtherCPU, r.Caution(&r.Stages[1]))
		}
		if got := r.Cautious(&r.Stages[1]); got != tc.ratioUncertain {
			t.Errorf("%s against nat with %.2f of others: uncertain %v", tc.fixed.Name, tc.nat.OtherCPU, got)
		}
	}
}
