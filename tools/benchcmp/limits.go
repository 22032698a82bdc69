package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/units"
	"github.com/natkit/natkit/tools/bench"
)

const (
	// took is how long a run took, a quantity of several suites.
	took = "seconds"
	// fixedRate is what the gateway carries after the remedy, as a share of what it did
	// before the fault: both are of one run.
	fixedRate = "fixed_rate_ratio"
)

var (
	takes = bench.Quantity{Name: took, Label: "time", Better: bench.Lower, Text: units.Seconds}
	fixes = bench.Quantity{Name: fixedRate, Label: "requests/s after the fix, of those before the fault", Better: bench.Higher,
		Text: func(v float64) string { return units.Fixed(v, 2) }}
	peaks = bench.Quantity{Name: peakMemory, Label: "peak memory", Better: bench.Lower, Text: units.Bytes[float64]}
)

// limitsSuite measures what is required of single runs.
func limitsSuite(natkit string) bench.Suite {
	const main, doctor, plan = "lab run table-full", "doctor --for 2s", "plan --rate 5000/s --duration 2s"
	return bench.Suite{
		Name: "limits", Title: "The main job, and doctor on a large table",
		About:      "The whole of the main job, and doctor in a namespace that tracks many connections.",
		Method:     "doctor in a namespace that tracks " + units.Count(manyEntries) + " connections",
		Quantities: []bench.Quantity{takes, peaks, fixes},
		Subjects: []bench.Subject{
			{Name: main, Run: func(ctx context.Context) (bench.Sample, error) {
				return mainJob(ctx, bench.Program{Args: []string{natkit, "lab", "run", labName, "--json"}})
			}},
			{Name: doctor, Run: func(ctx context.Context) (bench.Sample, error) {
				return onFullTable(ctx, bench.Program{Args: []string{natkit, "doctor", "--for", "2s", "--json"}, Accept: []int{exitFindings, exitIncomplete}})
			}},
			{Name: plan, Run: func(ctx context.Context) (bench.Sample, error) {
				return used(ctx, bench.Program{Args: []string{natkit, "plan", "--rate", "5000/s", "--duration", "2s", "--json"}})
			}},
		},
		Claims: []bench.Claim{
			{Subject: main, Quantity: took, Bound: 40},
			{Subject: doctor, Quantity: took, Bound: 3.5},
			{Subject: doctor, Quantity: peakMemory, Bound: 64 << 20},
			{Subject: plan, Quantity: took, Bound: 0.050},
		},
		Rounds:     3,
		Parameters: map[string]any{"scenario": labName, "entries": manyEntries},
		Programs:   [][]string{{natkit, "--version"}, {"nginx", "-v"}},
	}
}

// doctor's exit codes where there are findings, and where something could not be checked, such as whether a
// container's namespace is the host's.
const (
	exitFindings   = 3
	exitIncomplete = 4
)

// mainJob returns the resources used by a lab run, and the effect of its remedy.
func mainJob(ctx context.Context, p bench.Program) (bench.Sample, error) {
	stdout, u, err := p.Run(ctx)
	if err != nil {
		return bench.Sample{}, err
	}
	ratio, err := ratioOfFixed(stdout)
	return bench.Sample{Values: bench.Values{took: u.Seconds, peakMemory: float64(u.PeakBytes), fixedRate: ratio}}, err
}

// ratioOfFixed reads the report of a lab.
func ratioOfFixed(report []byte) (float64, error) {
	var r lab.Report
	if err := json.Unmarshal(report, &r); err != nil {
		return 0, fmt.Errorf("read the report of %s: %w", labName, err)
	}
	nat, fixed := r.Stage("nat"), r.Stage("fixed")
	if nat == nil || fixed == nil || nat.RequestsPerSecond == 0 {
		return 0, fmt.Errorf("the report of %s has no rates of nat and fixed", labName)
	}
	return fixed.RequestsPerSecond / nat.RequestsPerSecond, nil
}

// used returns the resources used by a program.
func used(ctx context.Context, p bench.Program) (bench.Sample, error) {
	_, u, err := p.Run(ctx)
	return bench.Sample{Values: bench.Values{took: u.Seconds, peakMemory: float64(u.PeakBytes)}}, err
}

// onFullTable runs a program in a namespace whose table is filled for it and gone
// afterwards: other subjects find the host's own limit.
func onFullTable(ctx context.Context, p bench.Program) (s bench.Sample, err error) {
	t, err := newTable(ctx)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	if err := t.fill(ctx); err != nil {
		return s, err
	}
	p.Netns = t.ns
	return used(ctx, p)
}
