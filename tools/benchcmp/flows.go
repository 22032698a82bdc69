package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"github.com/natkit/natkit/internal/doctor"
	"github.com/natkit/natkit/internal/follow"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
	"github.com/natkit/natkit/tools/bench"
)

// A look takes about as long as that of doctor --trace, with its pauses.
const packetRepeats, requestRepeats = 2, 4

// flowsSuite measures what it costs a gateway at its limit to have connections followed: with small packets, and
// with short connections.
func flowsSuite(natkit string) bench.Suite {
	const flows, trace = "natkit flows", "followed by doctor --trace"
	f := &followed{observing{planes: planes{packetRuns: packetRuns{natkit: natkit}}, to: gatewayPublic}}
	subject := func(by observer) bench.Subject {
		return bench.Subject{Name: by.name, Run: func(ctx context.Context) (bench.Sample, error) { return f.run(ctx, by) }}
	}
	s := bench.Suite{
		Name: "flows", Title: "Connections followed on a busy gateway",
		About: "The lab's gateway translates as many small packets as it can, everything on one CPU, and then as\n" +
			"many short connections as it can, to nginx, while connections are followed; and, as by\n" +
			"doctor --trace, SYNs are read besides. Each begins with the look.",
		Method: fmt.Sprintf("%s packets of %d bytes in %s UDP flows, taken by the server without a drop (runs in which packets were lost are repeated), then %s requests with %d connections at a time to nginx, which closes every connection; a look of its own for each",
			units.Count(packetRepeats*packetsPerRun), packetBytes, units.Count(packetFlows), units.Count(requestRepeats*synsRequests), concurrency),
		Quantities: []bench.Quantity{
			{Name: packetRate, Label: "forwarded packets/s", Better: bench.Higher, Text: units.Rate},
			{Name: requestRate, Label: "requests/s", Better: bench.Higher, Text: units.Rate},
		},
		Subjects: []bench.Subject{subject(observer{name: unobserved}), subject(observer{name: flows, attach: f.flows}), subject(observer{name: trace, attach: f.trace})},
		Baseline: unobserved,
		Rounds:   15, WarmUp: 1,
		Parameters: f.parameters(), Seed: packetSeed,
		Programs: [][]string{{natkit, "--version"}, {"nginx", "-v"}, {"nft", "--version"}},
		Setup:    f.setUp,
	}
	s.Parameters["packets"], s.Parameters["requests"], s.Parameters["concurrency"] = packetRepeats*packetsPerRun, requestRepeats*synsRequests, concurrency
	for _, name := range []string{flows, trace} {
		for _, q := range s.Quantities {
			s.Claims = append(s.Claims, bench.Claim{Subject: name, Quantity: q.Name, Than: unobserved, Bound: 0.95})
		}
	}
	return s
}

// followed is the lab with DNAT whose gateway is looked at.
type followed struct{ observing }

func (f *followed) setUp(ctx context.Context) (func(context.Context) error, error) {
	down, err := labUp(ctx, f.natkit, "nat")
	if err != nil {
		return nil, err
	}
	if err := f.attach(); err != nil {
		return nil, errors.Join(err, down(ctx))
	}
	_, _, err = bench.Program{Netns: f.gateway, Args: []string{"nft", rulesDNAT}}.Run(ctx)
	if err != nil {
		return nil, errors.Join(err, f.lab.Close(), down(ctx))
	}
	var ssh net.Listener // as gateways have: what listens has its SYNs watched
	if err := f.gateway.Do(func() (err error) { ssh, err = net.Listen("tcp", ":22"); return err }); err != nil {
		return nil, errors.Join(err, f.lab.Close(), down(ctx))
	}
	return func(ctx context.Context) error { return errors.Join(ssh.Close(), f.lab.Close(), down(ctx)) }, nil
}

// run takes packets, then requests, each from the beginning of a look on.
func (f *followed) run(ctx context.Context, by observer) (bench.Sample, error) {
	v := bench.Values{}
	var s bench.Sample
	var err error
	for range lossyRuns {
		v[packetRate], s, err = f.look(ctx, by, packetRepeats, packetRate, f.packets)
		if !errors.Is(err, errLoss) {
			break
		}
		fmt.Fprintf(os.Stderr, "flows: %s: repeated: %v\n", by.name, err)
	}
	if err != nil {
		return s, err
	}
	requests := &synWatched{f.packetRuns}
	v[requestRate], s, err = f.look(ctx, by, requestRepeats, requestRate, requests.sample)
	s.Values = v
	return s, err
}

// lossyRuns bounds the runs in which the gateway's backlog overflows, as its CPU also does other work.
const lossyRuns = 4

// look takes runs of equal work during one look, and returns their rate, and the last of them.
func (f *followed) look(ctx context.Context, by observer, runs int, rate string, offer func(context.Context) (bench.Sample, error)) (mean float64, s bench.Sample, err error) {
	w, err := by.start(ctx)
	if err != nil {
		return 0, s, err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	spent, failures := 0.0, s.Failures
	for range runs {
		if s, err = offer(ctx); err != nil {
			return 0, s, err
		}
		spent += 1 / s.Values[rate]
		failures += s.Failures
	}
	s.Failures = failures
	return float64(runs) / spent, s, nil
}

// packets are taken from the server before nginx's host sees them.
func (f *followed) packets(ctx context.Context) (s bench.Sample, err error) {
	if err := f.openServer(); err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, f.server.Close()) }()
	return f.traffic(ctx)
}

// flows follows connections on the gateway until it is closed.
func (f *followed) flows() (io.Closer, error) {
	t, err := follow.Start(context.Background(), follow.Options{Netns: f.gateway})
	return closer(func() error { _, err := t.Stop(); return err }), err
}

// trace does what doctor --trace does with packets.
func (f *followed) trace() (io.Closer, error) {
	t := doctor.StartTrace(context.Background(), doctor.TraceOptions{Netns: f.gateway, SYNs: true, Follow: true})
	return closer(func() error { return brokenPart(t.Stop()) }), nil
}

// brokenPart is the error of a trace.
func brokenPart(t snapshot.Trace) error {
	for _, p := range t.Parts {
		if p.Error != "" {
			return fmt.Errorf("trace %s: %s", p.Name, p.Error)
		}
	}
	return nil
}

type closer func() error

func (c closer) Close() error { return c() }
