package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"

	"github.com/natkit/natkit/internal/simulate"
	"github.com/natkit/natkit/internal/units"
	"github.com/natkit/natkit/tools/bench"
)

// A day at this rate.
const (
	dayRate        = 1000
	dayConnections = dayRate * 24 * 60 * 60
)

// simulatedDay is what all subjects have in common: the second half says what is between
// clients and servers.
const simulatedDay = `seed: 1
duration: 24h
arrivals: {rate: 1000}
clients: [{name: clients, hosts: 100, clock: {offset: uptime}}]
connection: {duration: 20ms, closes_first: server}
`

// simulatedDays are networks that keep the simulator busy in different ways.
var simulatedDays = []struct{ name, text string }{
	{"round robin, balancer, two kernels", `nat: {strategy: round-robin}
balancer: {}
servers: [{name: old, count: 4, kernel: wheel}, {name: new, count: 4, kernel: wheel-rearm}]
`},
	{"Linux NAT, 8 destinations", `nat: {strategy: kernel}
servers: [{name: modern, count: 8, kernel: timer}]
`},
	{"random ports, a third of the SYNs refused", `nat: {strategy: random}
servers: [{name: modern, kernel: timer}]
`},
}

// simulateSuite measures a simulated day. There is no peer that computes the same; the
// requirement is absolute.
func simulateSuite(natkit string) bench.Suite {
	d := &simulatedDayBench{natkit: natkit}
	s := bench.Suite{
		Name: "simulate", Title: "Simulating a day",
		About: "`natkit simulate` computes what becomes of " + units.Count(dayConnections) + " connections, one after the other:\n" +
			"a day at " + units.Count(dayRate) + " per second.",
		Method:     "the whole day, on one CPU",
		Quantities: []bench.Quantity{takes, peaks},
		Rounds:     3,
		Parameters: map[string]any{"connections": dayConnections, "configuration": simulatedDay},
		Seed:       1,
		Programs:   [][]string{{natkit, "--version"}},
		Setup:      d.setUp,
	}
	for i, day := range simulatedDays {
		s.Subjects = append(s.Subjects, bench.Subject{Name: day.name, Run: func(ctx context.Context) (bench.Sample, error) { return d.run(ctx, i) }})
		s.Claims = append(s.Claims, bench.Claim{Subject: day.name, Quantity: took, Bound: 60},
			bench.Claim{Subject: day.name, Quantity: peakMemory, Bound: 512 << 20})
	}
	return s
}

type simulatedDayBench struct{ natkit, dir string }

// setUp writes the configurations.
func (d *simulatedDayBench) setUp(context.Context) (teardown func(context.Context) error, err error) {
	if d.dir, err = os.MkdirTemp("", "benchcmp-"); err != nil {
		return nil, err
	}
	for i, day := range simulatedDays {
		err = errors.Join(err, os.WriteFile(d.file(i), []byte(simulatedDay+day.text), 0o600))
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(d.dir))
	}
	return func(context.Context) error { return os.RemoveAll(d.dir) }, nil
}

func (d *simulatedDayBench) file(i int) string {
	return filepath.Join(d.dir, fmt.Sprintf("day%d.yaml", i))
}

// run simulates one, and sees that it was the whole day.
func (d *simulatedDayBench) run(ctx context.Context, i int) (bench.Sample, error) {
	out, u, err := bench.Program{Args: []string{"taskset", "-c", "0", d.natkit, "simulate", d.file(i), "--json"}}.Run(ctx)
	if err != nil {
		return bench.Sample{}, err
	}
	var r simulate.Result
	if err := json.Unmarshal(out, &r); err != nil {
		return bench.Sample{}, fmt.Errorf("read natkit's document: %w", err)
	}
	s := bench.Sample{Values: bench.Values{took: u.Seconds, peakMemory: float64(u.PeakBytes)}}
	// The arrivals are random: five standard deviations.
	if off := math.Abs(float64(r.Totals.Connections - dayConnections)); off > 5*math.Sqrt(dayConnections) {
		s.Failures = int64(off)
	}
	return s, nil
}
