package profile

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/testutil"
)

// What a recording at the usual rate may cost, and how soon it has to begin.
const (
	maxShare        = 0.01
	maxStartSeconds = 0.3
)

func TestCost(t *testing.T) {
	testutil.NeedRoot(t)
	needRealTime(t)
	cost := measure(t, 4*time.Second)
	if cost.Share() > maxShare {
		t.Errorf("%.2f %% of the machine's time, at most %.2f", 100*cost.Share(), 100*maxShare)
	}
}

// TestCostUnderLoad: stacks of packets are deep. The packets are sent by this
// process, so that its own time says nothing.
func TestCostUnderLoad(t *testing.T) {
	network := newDNATNetwork(t)
	needRealTime(t)
	ctx, cancel := context.WithCancel(t.Context())
	var sender sync.WaitGroup
	defer sender.Wait()
	defer cancel()
	sender.Go(func() { network.flood(t, ctx) })
	cost := measure(t, time.Second)
	cost.ProcessSeconds = 0
	if cost.Share() > maxShare/2 {
		t.Errorf("%.2f %% of the machine's time is the program's, at most %.2f", 100*cost.Share(), 100*maxShare/2)
	}
}

// needRealTime skips a test where times are no measure.
func needRealTime(t *testing.T) {
	t.Helper()
	if testutil.Patience(time.Second) > time.Second {
		testutil.Impossible(t, "an emulated processor's time is no measure")
	}
	if raceDetector {
		testutil.Impossible(t, "time under the race detector is no measure")
	}
}

func measure(t *testing.T, window time.Duration) Cost {
	t.Helper()
	cost, err := Measure(t.Context(), window)
	if err != nil {
		t.Fatal(err)
	}
	if cost.Samples == 0 {
		t.Fatal("the program did not run")
	}
	if cost.StartSeconds > maxStartSeconds {
		t.Errorf("it began after %.3f s, at most %.1f", cost.StartSeconds, maxStartSeconds)
	}
	t.Logf("%d samples, %.0f ns each; %.1f ms to start, %.1f to stop; %.1f ms of CPU in this process; %.3f %% in all", cost.Samples,
		1e9*cost.ProgramSeconds/float64(cost.Samples), 1e3*cost.StartSeconds, 1e3*cost.StopSeconds, 1e3*cost.ProcessSeconds, 100*cost.Share())
	return cost
}
