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
// rejects in the stage fault of the lab's port-reuse-paws with the preset lab's
// prediction. Ports and clocks are random in both: the rate of one run with this number of
// connections has a standard deviation of some 5 % in the kernel. So a run that is near is
// accepted, and another one is judged by its mean with up to two more: 15 % are five
// standard deviations then. The prediction is the mean of ten seeds.
func TestSimulationPredictsLab(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedProgram(t, "nginx")
	testutil.LockHost(t) // others that change the maximum would end the lab
	timeout := testutil.Patience(2 * time.Second)
	predicted := predictedRejects(t, timeout)
	sum, off := 0.0, 1.0
	for runs := 1.0; runs <= 3 && off > 0.10; runs++ {
		sum += measuredRejects(t, timeout)
		off = math.Abs(sum/runs/predicted - 1)
		t.Logf("for 100 connections: %.1f rejected SYNs measured in %.0f runs, %.1f predicted", 100*sum/runs, runs, 100*predicted)
	}
	if !(off <= 0.15) {
		t.Errorf("the prediction is off by %.0f %%", 100*off)
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
