package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/doctor"
	"github.com/natkit/natkit/internal/follow"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
	"github.com/natkit/natkit/tools/bench"
)

// A look takes about as long as that of doctor --trace, with its pauses.
const (
	packetRepeats = 2
	settling      = 2 * time.Second
	unlooked      = 4 * time.Second
	looked        = 10 * time.Second
)

// requestShare is the rate of requests during a look, of that just before, under one load: from one load to the next the
// rate varies by more than a look costs.
const requestShare = "request_share"

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
			"doctor --trace, SYNs are read besides.",
		Method: fmt.Sprintf("%s packets of %d bytes in %s UDP flows, taken by the server without a drop (runs in which packets were lost are repeated), from the begin of a look on; then %d connections at a time to nginx, which closes every connection: their rate in %v, and in the %v after that, which begin with a look (its share is of the rate before)",
			units.Count(packetRepeats*packetsPerRun), packetBytes, units.Count(packetFlows), concurrency, unlooked, looked),
		Quantities: []bench.Quantity{
			{Name: packetRate, Label: "forwarded packets/s", Better: bench.Higher, Text: units.Rate},
			{Name: requestRate, Label: "requests/s", Better: bench.Higher, Text: units.Rate},
			{Name: requestShare, Label: "of the rate before", Better: bench.Higher, Text: func(v float64) string { return units.Fixed(v, 3) }},
		},
		Subjects: []bench.Subject{subject(observer{name: unobserved}), subject(observer{name: flows, attach: f.flows}), subject(observer{name: trace, attach: f.trace})},
		Baseline: unobserved,
		Rounds:   15, WarmUp: 1,
		Parameters: f.parameters(), Seed: packetSeed,
		Programs: [][]string{{natkit, "--version"}, {"nginx", "-v"}, {"nft", "--version"}},
		Setup:    f.setUp,
	}
	s.Parameters["packets"], s.Parameters["look_seconds"], s.Parameters["concurrency"] = packetRepeats*packetsPerRun, looked.Seconds(), concurrency
	for _, name := range []string{flows, trace} {
		for _, quantity := range []string{packetRate, requestShare} {
			s.Claims = append(s.Claims, bench.Claim{Subject: name, Quantity: quantity, Than: unobserved, Bound: 0.95})
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

// run takes packets, then connections.
func (f *followed) run(ctx context.Context, by observer) (s bench.Sample, err error) {
	var rate float64
	for range lossyRuns {
		rate, err = f.look(ctx, by)
		if !errors.Is(err, errLoss) {
			break
		}
		fmt.Fprintf(os.Stderr, "flows: %s: repeated: %v\n", by.name, err)
	}
	if err != nil {
		return s, err
	}
	if s, err = f.connections(ctx, by); err == nil {
		s.Values[packetRate] = rate
	}
	return s, err
}

// lossyRuns bounds the runs in which the gateway's backlog overflows, as its CPU also does other work.
const lossyRuns = 4

// look takes runs of packets during one look, and returns their rate.
func (f *followed) look(ctx context.Context, by observer) (mean float64, err error) {
	w, err := by.start(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	spent := 0.0
	for range packetRepeats {
		s, err := f.packets(ctx)
		if err != nil {
			return 0, err
		}
		spent += 1 / s.Values[packetRate]
	}
	return packetRepeats / spent, nil
}

// connections takes the rate at which the server accepts connections before a look and while it lasts.
func (f *followed) connections(ctx context.Context, by observer) (bench.Sample, error) {
	type end struct {
		outcome
		error
	}
	ended := make(chan end, 1)
	go func() {
		t := tools(f.natkit)[0]
		o, _, err := generator{natkit: f.natkit, tool: t}.run(ctx, []string{f.natkit, "bench", "http", "--json", "-c", strconv.Itoa(concurrency),
			"-t", (settling + unlooked + looked + settling).String(), labURL})
		ended <- end{o, err}
	}()
	values, err := f.compared(ctx, by)
	load := <-ended
	return bench.Sample{Failures: load.Failed, Values: values}, errors.Join(err, load.error)
}

// compared takes both rates under a load that has just begun.
func (f *followed) compared(ctx context.Context, by observer) (v bench.Values, err error) {
	nothing := func() error { return nil }
	if _, err := f.accepted(ctx, settling, nothing); err != nil {
		return nil, err
	}
	before, err := f.accepted(ctx, unlooked, nothing)
	if err != nil {
		return nil, err
	}
	var w *watch
	defer func() { err = errors.Join(err, w.stop()) }()
	while, err := f.accepted(ctx, looked, func() (err error) { w, err = by.start(ctx); return err })
	return bench.Values{requestRate: while, requestShare: while / before}, err
}

// accepted is the rate at which the server accepts connections during a time that begins with something.
func (f *followed) accepted(ctx context.Context, during time.Duration, begin func() error) (perSecond float64, err error) {
	opens := func() uint64 {
		t, readErr := collect.ReadTCP(f.packetRuns.server)
		if err = errors.Join(err, readErr); err != nil {
			return 0
		}
		return t.Counters["TcpPassiveOpens"]
	}
	began, first := time.Now(), opens()
	if err = errors.Join(err, begin()); err != nil {
		return 0, err
	}
	select {
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-time.After(during - time.Since(began)):
	}
	last := opens()
	return float64(last-first) / time.Since(began).Seconds(), err
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
