package main

import (
	"context"
	"errors"
	"os"

	"github.com/natkit/natkit/internal/units"
	"github.com/natkit/natkit/tools/bench"
)

const cpuSeconds = "cpu_seconds"

// doctorSuite measures doctor on a large table, beside another natkit where NATKIT_BASE is the path of one.
func doctorSuite(natkit string) bench.Suite {
	const own, other = "natkit doctor", "natkit doctor of NATKIT_BASE"
	d := &onTable{}
	s := bench.Suite{
		Name: "doctor", Title: "natkit doctor on a large table",
		About:  "doctor, without a trace, in a namespace that tracks many connections.",
		Method: "natkit doctor --for 1s in a namespace that tracks " + units.Count(manyEntries) + " connections",
		Quantities: []bench.Quantity{takes, {Name: cpuSeconds, Label: "CPU time", Better: bench.Lower,
			Text: func(v float64) string { return units.Fixed(v, 3) + " s" }}, peaks},
		Subjects: []bench.Subject{{Name: own, Run: d.by(natkit)}},
		Rounds:   10, WarmUp: 1,
		Parameters: map[string]any{"entries": manyEntries},
		Programs:   [][]string{{natkit, "--version"}},
		Setup:      d.setUp,
	}
	if base := os.Getenv("NATKIT_BASE"); base != "" {
		s.Subjects, s.Baseline = append(s.Subjects, bench.Subject{Name: other, Run: d.by(base)}), other
		for _, quantity := range []string{took, cpuSeconds} {
			s.Claims = append(s.Claims, bench.Claim{Subject: own, Quantity: quantity, Than: other, Bound: 1.2})
		}
	}
	return s
}

// onTable runs doctor where a table is large.
type onTable struct{ *table }

func (d *onTable) setUp(ctx context.Context) (_ func(context.Context) error, err error) {
	if d.table, err = newTable(ctx); err != nil {
		return nil, err
	}
	if err := d.fill(ctx); err != nil {
		return nil, errors.Join(err, d.close())
	}
	return func(context.Context) error { return d.close() }, nil
}

func (d *onTable) by(natkit string) func(context.Context) (bench.Sample, error) {
	return func(ctx context.Context) (bench.Sample, error) {
		p := bench.Program{Netns: d.ns, Args: []string{natkit, "doctor", "--for", "1s", "--json"}, Accept: []int{exitFindings, exitIncomplete}}
		_, u, err := p.Run(ctx)
		return bench.Sample{Values: bench.Values{took: u.Seconds, cpuSeconds: u.CPUSeconds, peakMemory: float64(u.PeakBytes)}}, err
	}
}
