package main

import (
	"context"
	"errors"
	"fmt"

	syntap "github.com/natkit/natkit/internal/syn"
	"github.com/natkit/natkit/internal/units"
	"github.com/natkit/natkit/tools/bench"
)

// synsRequests take some two seconds.
const synsRequests = 40_000

// synsSuite measures what it costs a server to have its SYNs looked at, as doctor --trace
// does.
func synsSuite(natkit string) bench.Suite {
	const arriving, answers = "SYNs and RSTs", "SYNs, RSTs and answers"
	w := &synWatched{packetRuns: packetRuns{natkit: natkit}}
	return bench.Suite{
		Name: "syns", Title: "SYNs looked at on a busy server",
		About: "Short connections through the lab's DNAT to nginx, while natkit looks at the SYNs that\n" +
			"come to the server, as doctor --trace does; and at the answers, too, as it does from the\n" +
			"first sign of a SYN on that was not accepted.",
		Method: fmt.Sprintf("%s requests with %d connections at a time, through the lab's DNAT to nginx, which closes every connection",
			units.Count(synsRequests), concurrency),
		Quantities: []bench.Quantity{
			{Name: requestRate, Label: "requests/s", Better: bench.Higher, Text: units.Rate},
			{Name: requestCPU, Label: "machine CPU per request", Better: bench.Lower, Text: func(v float64) string { return units.Fixed(v, 1) + " µs" }},
		},
		Subjects: []bench.Subject{
			{Name: unobserved, Run: func(ctx context.Context) (bench.Sample, error) { return w.sample(ctx) }},
			{Name: arriving, Run: func(ctx context.Context) (bench.Sample, error) { return w.watched(ctx, false) }},
			{Name: answers, Run: func(ctx context.Context) (bench.Sample, error) { return w.watched(ctx, true) }},
		},
		Baseline: unobserved,
		Claims: []bench.Claim{
			{Subject: arriving, Quantity: requestRate, Than: unobserved, Bound: 0.95},
			{Subject: answers, Quantity: requestRate, Than: unobserved, Bound: 0.9},
		},
		Rounds: 15, WarmUp: 1,
		Parameters: map[string]any{"requests": synsRequests, "concurrency": concurrency, "url": labURL},
		Programs:   [][]string{{natkit, "--version"}, {"nginx", "-v"}},
		Setup:      w.setUp,
	}
}

// synWatched is the lab with DNAT whose server is watched.
type synWatched struct{ packetRuns }

func (w *synWatched) setUp(ctx context.Context) (func(context.Context) error, error) {
	down, err := labUp(ctx, w.natkit, "nat")
	if err != nil {
		return nil, err
	}
	if err := w.attach(); err != nil {
		return nil, errors.Join(err, down(ctx))
	}
	return func(ctx context.Context) error { return errors.Join(w.lab.Close(), down(ctx)) }, nil
}

// sample is a run of requests.
func (w *synWatched) sample(ctx context.Context) (bench.Sample, error) {
	t := tools(w.natkit)[0]
	g := generator{natkit: w.natkit, tool: t}
	o, usage, err := g.run(ctx, t.command(synsRequests, concurrency, 0))
	if err != nil {
		return bench.Sample{}, err
	}
	return bench.Sample{Failures: o.Failed, Values: bench.Values{
		requestRate: o.PerSecond, requestCPU: 1e6 * usage.CPUSeconds / float64(o.Completed),
	}}, nil
}

// watched is one during which the server's SYNs are looked at; one that sees none is
// no measurement.
func (w *synWatched) watched(ctx context.Context, answers bool) (bench.Sample, error) {
	watch, err := syntap.Start(ctx, syntap.Options{Netns: w.server, Answers: answers})
	if err != nil {
		return bench.Sample{}, err
	}
	s, err := w.sample(ctx)
	seen, stopErr := watch.Stop()
	if err = errors.Join(err, stopErr); err != nil {
		return s, err
	}
	if least := uint64(synsRequests / seen.Sample / 2); seen.SYNs < least {
		return s, fmt.Errorf("watch SYNs of the lab's server: %s of %s connections were seen, 1 in %d in the end",
			units.Count(seen.SYNs), units.Count(synsRequests), seen.Sample)
	}
	return s, nil
}
