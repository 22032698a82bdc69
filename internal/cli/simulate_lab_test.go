package cli

import (
	"math"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/lab/build"
	"github.com/natkit/natkit/internal/lab/run"
	"github.com/natkit/natkit/internal/simulate"
	"github.com/natkit/natkit/internal/testutil"
	"github.com/natkit/natkit/internal/tune/journal"
)

// The prediction is tried on fewer and shorter batches than the scenario has, so
// that it takes a quarter of a minute.
const (
	triedBatches = 5
	triedBatch   = 180
)

// TestSimulationPredictsLab compares how many SYNs for each connection the kernel
// rejects in the stage fault of the lab's port-reuse-paws with what the preset lab
// says. Chance chooses ports and clocks here and there: over ten seeds the rate of so many
// connections has a standard deviation of some 3 %, so that 15 % is four of them, the
// prediction being the mean of ten.
func TestSimulationPredictsLab(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedProgram(t, "nginx")
	testutil.LockHost(t) // others that change the maximum would end the lab
	timeout := testutil.Patience(2 * time.Second)
	measured := measuredRejects(t, timeout)
	predicted := predictedRejects(t, timeout)
	t.Logf("for 100 connections: %.1f rejected SYNs measured, %.1f predicted", 100*measured, 100*predicted)
	if off := math.Abs(predicted/measured - 1); !(off <= 0.15) {
		t.Errorf("predicted %.3f rejected SYNs for each connection, measured %.3f: off by %.0f %%", predicted, measured, 100*off)
	}
}

func measuredRejects(t *testing.T, timeout time.Duration) float64 {
	t.Helper()
	found, err := lab.Find("port-reuse-paws")
	if err != nil {
		t.Fatal(err)
	}
	scenario, err := found.With(lab.Overrides{Requests: triedBatches * triedBatch, Timeout: timeout})
	if err != nil {
		t.Fatal(err)
	}
	stage, ok := scenario.Stage("fault")
	if !ok || scenario.Load.Batch.Requests != triedBatch {
		t.Fatalf("the scenario is not the one that the preset simulates: %+v", scenario.Load)
	}
	only := *stage
	only.Doctor = nil
	scenario.Stages, scenario.Expect = []lab.Stage{only}, lab.Expect{}
	j, err := journal.At(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	r, err := run.Run(t.Context(), scenario, run.Options{Dir: t.TempDir(), Server: build.Nginx, Journal: j, Version: "test"})
	if err != nil {
		t.Fatal(err)
	}
	h := r.Stages[0].Handshakes
	if h == nil || h.Opened != triedBatches*triedBatch || h.Rejected == 0 {
		t.Fatalf("the lab did not show the fault: %+v", h)
	}
	return h.RejectRate
}

func predictedRejects(t *testing.T, timeout time.Duration) float64 {
	t.Helper()
	const seeds = 10
	c, _, err := presetOf("lab")
	if err != nil {
		t.Fatal(err)
	}
	c.Batches = c.Batches[:triedBatches]
	c.Clients[0].SYN.Timeout.Duration = timeout
	sum := 0.0
	for c.Seed = range uint64(seeds) {
		r, err := simulate.Run(t.Context(), *c, nil)
		if err != nil {
			t.Fatal(err)
		}
		sum += float64(r.Totals.Rejects()) / float64(r.Totals.Accepted+r.Totals.Delayed)
	}
	return sum / seeds
}
