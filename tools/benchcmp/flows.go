package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strconv"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/units"
	"github.com/natkit/natkit/tools/bench"
)

// A look takes about as long as that of doctor --trace, with its pauses.
const (
	packetRepeats = 2
	settling      = 2 * time.Second
	unlooked      = 5 * time.Second
	looked        = 10 * time.Second
)

// The rates during a look, of those just before and after it: from one run to the next they vary by more than a look
// costs.
const (
	packetShare  = "packet_share"
	requestShare = "request_share"
)

// flowsSuite measures what it costs a gateway at its limit to have connections followed: with small packets, and
// with short connections.
func flowsSuite(natkit string) bench.Suite {
	const trace = "natkit doctor --trace"
	f := &followed{observing{planes: planes{packetRuns: packetRuns{natkit: natkit}}, to: gatewayPublic}}
	subject := func(by observer, cost func(context.Context, bench.Values) error) bench.Subject {
		return bench.Subject{Name: by.name, Run: func(ctx context.Context) (bench.Sample, error) { return f.run(ctx, by, cost) }}
	}
	s := bench.Suite{
		Name: "flows", Title: "Connections followed on a busy gateway",
		About: "The lab's gateway translates as many small packets as it can, everything on one CPU, and then as\n" +
			"many short connections as it can, to nginx, on both CPUs, while natkit doctor --trace looks, one look\n" +
			"of its usual length after the other. The rates vary more between two runs of the same than a look costs;\n" +
			"what is steady is the CPU time that one takes: natkit's own and that of its eBPF programs, wherever\n" +
			"they run, in one more look under that load.",
		Method: fmt.Sprintf("%s packets of %d bytes in %s UDP flows, taken by the server without a drop (runs in which packets were lost are repeated), a run before a look, two from its begin on, and one after it; then %d connections at a time to nginx, which closes every connection: their rate in %[5]v, in %[6]v that begin with a look, and in %[5]v after it (shares are of the mean of before and after)",
			units.Count(packetsPerRun), packetBytes, units.Count(packetFlows), concurrency, unlooked, looked),
		Quantities: []bench.Quantity{
			{Name: packetRate, Label: "forwarded packets/s", Better: bench.Higher, Text: units.Rate},
			{Name: packetShare, Label: "packets, of the rate without", Better: bench.Higher, Text: func(v float64) string { return units.Fixed(v, 3) }},
			{Name: requestRate, Label: "requests/s", Better: bench.Higher, Text: units.Rate},
			{Name: observerCPU, Label: "CPU of a look, of all CPUs", Better: bench.Lower, Text: func(v float64) string { return units.Fixed(100*v, 2) + " %" }},
			{Name: requestShare, Label: "requests, of the rate without", Better: bench.Higher, Text: func(v float64) string { return units.Fixed(v, 3) }},
		},
		Subjects: []bench.Subject{subject(observer{name: unobserved}, nil), subject(observer{name: trace, attach: f.looks}, f.cost)},
		Baseline: unobserved,
		Rounds:   15, WarmUp: 1,
		Parameters: f.parameters(), Seed: packetSeed,
		Programs: [][]string{{natkit, "--version"}, {"nginx", "-v"}, {"nft", "--version"}},
		Setup:    f.setUp,
	}
	s.Parameters["packets"], s.Parameters["look_seconds"], s.Parameters["concurrency"] = packetRepeats*packetsPerRun, looked.Seconds(), concurrency
	for _, quantity := range []string{packetShare, requestShare} {
		s.Claims = append(s.Claims, bench.Claim{Subject: trace, Quantity: quantity, Than: unobserved, Bound: 0.95})
	}
	s.Claims = append(s.Claims, bench.Claim{Subject: trace, Quantity: observerCPU, Bound: 0.05})
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

// run takes packets, then connections, and then the cost, nil where there is none, under the same load.
func (f *followed) run(ctx context.Context, by observer, cost func(context.Context, bench.Values) error) (s bench.Sample, err error) {
	s.Values = bench.Values{}
	err = errors.Join(f.surrounded(ctx, by, s.Values, packetRate, packetShare, f.lossless), f.underLoad(ctx, &s, func() error {
		err := f.surrounded(ctx, by, s.Values, requestRate, requestShare, f.accepted)
		if err == nil && cost != nil {
			err = cost(ctx, s.Values)
		}
		return err
	}))
	return s, err
}

// cost is the share of the CPUs' time that one look takes: natkit's and its programs'.
func (f *followed) cost(ctx context.Context, v bench.Values) (err error) {
	statistics, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		return fmt.Errorf("switch run-time statistics on: %w", err)
	}
	defer func() { err = errors.Join(err, statistics.Close()) }()
	newest, err := newestProgram()
	if err != nil {
		return err
	}
	looking, stop := context.WithCancel(ctx)
	gathered := make(chan struct{})
	programs := &watch{}
	var gatherErr error
	go func() {
		defer close(gathered)
		gatherErr = programs.gather(looking, newest)
	}()
	_, used, err := f.look().Run(ctx)
	stop()
	<-gathered
	defer programs.close()
	_, spent, statErr := programs.statistics()
	v[observerCPU] = (used.OwnSeconds + spent.Seconds()) / used.Seconds / float64(runtime.NumCPU())
	return errors.Join(err, gatherErr, statErr)
}

// look is one of doctor on the gateway.
func (f *followed) look() bench.Program {
	return bench.Program{Netns: f.gateway, Args: []string{f.natkit, "doctor", "--quiet", "--trace"}, Accept: []int{exitFindings, exitIncomplete}}
}

// measure returns a rate during a look, which look begins, or during half of its time where look is nil.
type measure func(ctx context.Context, look func() error) (perSecond float64, err error)

// surrounded takes a rate during a look, and just before and after it.
func (f *followed) surrounded(ctx context.Context, by observer, v bench.Values, rate, share string, take measure) error {
	before, err := take(ctx, nil)
	if err != nil {
		return err
	}
	var w *watch
	v[rate], err = take(ctx, func() (err error) { w, err = by.start(ctx); return err })
	if err = errors.Join(err, w.stop()); err != nil {
		return err
	}
	after, err := take(ctx, nil)
	v[share] = 2 * v[rate] / (before + after)
	return err
}

// lossyRuns bounds the runs in which the gateway's backlog overflows, as its CPU also does other work.
const lossyRuns = 8

// lossless is the rate of forwarded packets: one run without a look takes half of a look's time.
func (f *followed) lossless(ctx context.Context, look func() error) (mean float64, err error) {
	runs := 1
	if look != nil {
		runs, err = packetRepeats, look()
	}
	if err != nil {
		return 0, err
	}
	spent := 0.0
	for lost := 0; runs > 0; {
		s, err := f.packets(ctx)
		switch {
		case errors.Is(err, errLoss) && lost < lossyRuns:
			fmt.Fprintf(os.Stderr, "flows: repeated: %v\n", err)
			lost++
		case err != nil:
			return 0, err
		default:
			spent += 1 / s.Values[packetRate]
			mean++
			runs--
		}
	}
	return mean / spent, nil
}

// underLoad has clients connect for as long as a look and what surrounds it take.
func (f *followed) underLoad(ctx context.Context, s *bench.Sample, take func() error) error {
	type end struct {
		outcome
		error
	}
	ended := make(chan end, 1)
	go func() {
		t := tools(f.natkit)[0]
		o, _, err := generator{natkit: f.natkit, tool: t}.run(ctx, []string{f.natkit, "bench", "http", "--json", "-c", strconv.Itoa(concurrency),
			"-t", (settling + unlooked + looked + unlooked + looked + settling).String(), labURL})
		ended <- end{o, err}
	}()
	err := wait(ctx, settling)
	if err == nil {
		err = take()
	}
	load := <-ended
	s.Failures = load.Failed
	return errors.Join(err, load.error)
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// accepted is the rate at which the server accepts connections.
func (f *followed) accepted(ctx context.Context, look func() error) (perSecond float64, err error) {
	opens := func() uint64 {
		t, readErr := collect.ReadTCP(f.packetRuns.server)
		if err = errors.Join(err, readErr); err != nil {
			return 0
		}
		return t.Counters["TcpPassiveOpens"]
	}
	during := unlooked
	began, first := time.Now(), opens()
	if look != nil {
		during, err = looked, errors.Join(err, look())
	}
	if err = errors.Join(err, wait(ctx, during-time.Since(began))); err != nil {
		return 0, err
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

// looks has one look follow the other until it is closed.
func (f *followed) looks() (io.Closer, error) {
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		for {
			if _, _, err := f.look().Run(ctx); err != nil {
				ended <- err
				return
			}
		}
	}()
	return closer(func() error {
		stop()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			return err
		}
		return nil
	}), nil
}

type closer func() error

func (c closer) Close() error { return c() }
