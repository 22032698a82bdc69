package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/bpf/pktgen"
	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/units"
	"github.com/natkit/natkit/tools/bench"
)

// Quantities of a gateway that gets only new connections. The CPU time is that of the
// process that sends, in which the kernel forwards as well: it depends less on what else
// the machine does than the rate.
const (
	flowRate = "new_flows_per_second"
	flowCPU  = "cpu_nanoseconds_per_new_flow"
)

const rulesMasquerade = `table ip benchmark {
  chain postrouting {
    type nat hook postrouting priority srcnat
    ip daddr 198.19.0.2 masquerade
  }
}`

// newFlows of a run take some seconds, which includes several samples of top.
// newFlowPorts are the server's: a flow keeps its source port towards each of them, so
// that newFlows find free ports.
const (
	newFlows     = manyEntries
	newFlowPorts = 32
)

// topSuite measures what natkit top costs a gateway that only sees new connections.
func topSuite(natkit string) bench.Suite {
	const usual, sharing = "natkit top", "natkit top, on the gateway's CPU"
	o := &newcomers{observing: observing{planes: planes{packetRuns: packetRuns{natkit: natkit}}, rules: rulesMasquerade, to: serverAddress}}
	o.observing.send = o.connect
	top := func(name string, args ...string) observer {
		return observer{name: name, attach: func() (io.Closer, error) {
			return startOnTerminal(o.gateway, "flows/s", args...)
		}, counted: true}
	}
	quantities := observerQuantities("")
	quantities[3].Label = "until it shows a rate"
	s := o.suite(bench.Suite{
		Name: "top", Title: "natkit top on a gateway with nothing but new connections",
		About: "The lab's gateway masquerades connections of one packet each, everything on one CPU,\n" +
			"and its table fills up from nothing. Meanwhile natkit top shows its samples on a\n" +
			"terminal, with no CPU but the gateway's, too, as where all CPUs have packets to forward.\n" +
			"The machine's speed changes from second to second, so it is stopped (SIGSTOP) for every\n" +
			"other part of a run, and the parts are compared: what it costs while it is stopped, a\n" +
			"program where packets are dropped, is in both. The time that it was stopped makes the\n" +
			"next sample due, so that it works up to twice as often as it would.",
		Quantities: []bench.Quantity{
			{Name: flowRate, Label: "new flows/s", Better: bench.Higher, Text: units.Rate},
			nanoseconds(flowCPU, "CPU time per new flow", false),
			quantities[2], quantities[3], quantities[4],
		},
		Claims: []bench.Claim{
			{Subject: usual, Quantity: flowRate, Than: stopped(usual), Bound: 0.98},
			{Subject: usual, Quantity: observerCPU, Bound: 0.01},
			{Subject: usual, Quantity: observerMemory, Bound: 64},
		},
		Programs: [][]string{{natkit, "--version"}, {"nft", "--version"}},
	})
	for _, by := range []observer{top(usual, natkit, "top"),
		top(sharing, "taskset", "-c", "0", natkit, "top")} { // pktgen's one worker has the first CPU
		s.Subjects = append(s.Subjects, o.inTurn(by)...)
	}
	s.Baseline, s.Rounds = stopped(usual), 36
	s.Method = fmt.Sprintf("%s UDP flows of one packet of %d bytes, each new to the gateway, sent as fast as they go into an empty table in %d parts, and taken by the server",
		units.Count(newFlows), packetBytes, len(turns))
	s.Parameters = map[string]any{"flows": newFlows, "parts": len(turns), "server_ports": newFlowPorts, "frame_bytes": packetBytes, "workers": 1}
	s.Setup = o.setUp
	return s
}

// turns are the parts of a run in which the observer works: as many as without it, and
// as early as late, as the table that fills makes every part slower.
var turns = [...]bool{true, false, false, true, false, true, true, false}

func stopped(name string) string { return name + ", stopped" }

// inTurn are two subjects that share their runs: an observer that works, and the same
// one stopped. Whichever comes first in a round makes the run, and in every other run
// the turns are the other way round.
func (o *newcomers) inTurn(by observer) []bench.Subject {
	kept, first := map[bool]*bench.Sample{}, true
	take := func(works bool) func(context.Context) (bench.Sample, error) {
		return func(ctx context.Context) (bench.Sample, error) {
			if kept[works] == nil {
				on, off, err := o.takeTurns(ctx, by, first)
				if err != nil {
					return bench.Sample{}, err
				}
				kept[true], kept[false], first = &on, &off, !first
			}
			s := *kept[works]
			kept[works] = nil
			return s, nil
		}
	}
	return []bench.Subject{{Name: stopped(by.name), Run: take(false)},
		{Name: by.name, Run: take(true), Count: func(ctx context.Context) (bench.Values, error) { return o.count(ctx, by) }}}
}

// takeTurns makes a run in parts, in which the observer works or is stopped.
func (o *newcomers) takeTurns(ctx context.Context, by observer, first bool) (on, off bench.Sample, err error) {
	w, err := by.start(ctx)
	if err != nil {
		return on, off, err
	}
	defer func() { err = errors.Join(err, w.cmd.Process.Signal(unix.SIGCONT), w.stop()) }()
	if err := o.empty(ctx); err != nil {
		return on, off, err
	}
	var working, idle flows
	for part, works := range turns {
		signal, sum := unix.SIGSTOP, &idle
		if works == first {
			signal, sum = unix.SIGCONT, &working
		}
		if err := w.cmd.Process.Signal(signal); err != nil {
			return on, off, fmt.Errorf("stop and wake %s: %w", by.name, err)
		}
		if err := o.connectPart(ctx, sum, part, len(turns)); err != nil {
			return on, off, err
		}
	}
	return working.sample(), idle.sample(), nil
}

// flows sums up parts of a run.
type flows struct {
	sent, arrived, missing int64
	seconds                float64
	spent                  time.Duration
}

func (f *flows) sample() bench.Sample {
	return bench.Sample{
		Values:   bench.Values{flowRate: float64(f.arrived) / f.seconds, flowCPU: float64(f.spent) / float64(f.sent)},
		Failures: f.sent - f.arrived + f.missing,
	}
}

// newcomers send a gateway nothing but new connections.
type newcomers struct{ observing }

// setUp makes room in the table.
func (o *newcomers) setUp(ctx context.Context) (func(context.Context) error, error) {
	putBack, err := allow(ctx, newFlows+newFlows/2)
	if err != nil {
		return nil, err
	}
	down, err := o.observing.setUp(ctx)
	if err != nil {
		return nil, errors.Join(err, putBack())
	}
	tearDown := func(ctx context.Context) error { return errors.Join(o.empty(ctx), down(ctx), putBack()) }
	// However slow the machine, all flows of a run are in the table at its end.
	if err := o.gateway.Do(func() error {
		return os.WriteFile("/proc/sys/net/netfilter/nf_conntrack_udp_timeout", []byte("600"), 0)
	}); err != nil {
		return nil, errors.Join(fmt.Errorf("have flows live longer: %w", err), tearDown(ctx))
	}
	return tearDown, nil
}

func (o *newcomers) empty(ctx context.Context) error {
	_, err := dump.Delete(ctx, o.gateway, &conntrack.Filter{MarkMask: ^uint32(0)})
	return err
}

// connect makes all flows once. Emptying the table is not timed.
func (o *newcomers) connect(ctx context.Context) (bench.Sample, error) {
	if err := o.empty(ctx); err != nil {
		return bench.Sample{}, err
	}
	var all flows
	err := o.connectPart(ctx, &all, 0, 1)
	return all.sample(), err
}

// connectPart makes one of parts shares of the flows; each share uses its own ports of
// the server.
func (o *newcomers) connectPart(ctx context.Context, sum *flows, part, parts int) error {
	from, err := pktgen.ReadEgress(pktgen.Route{Netns: o.client}, o.to.Addr())
	if err != nil {
		return err
	}
	cfg, share, ports := o.config(o.to), newFlows/parts, newFlowPorts/parts
	cfg.Packets, cfg.Flows.Count, cfg.Flows.Destinations = int64(share), share, nil
	for i := range ports {
		cfg.Flows.Destinations = append(cfg.Flows.Destinations, netip.AddrPortFrom(o.to.Addr(), o.to.Port()+uint16(part*ports+i)))
	}
	before, err := o.server.received()
	if err != nil {
		return err
	}
	lostBefore, err := readLosses(o.gateway, o.planes.server)
	if err != nil {
		return err
	}
	began := cpuTime()
	r, err := pktgen.Run(ctx, cfg, from, nil, nil)
	if err != nil {
		return err
	}
	sum.spent += cpuTime() - began
	after, err := o.server.received()
	if err != nil {
		return err
	}
	there, err := dump.Count(o.gateway)
	if err != nil {
		return err
	}
	arrived, missing := int64(after-before), max(0, int64(share*(part+1))-there.Entries)
	if arrived != r.Sent || missing > 0 {
		lost, err := readLosses(o.gateway, o.planes.server)
		if err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "of %d packets %d arrived and %d have no entry: lost %s\n", r.Sent, arrived, missing, lost.since(lostBefore))
	}
	sum.sent, sum.arrived, sum.seconds = sum.sent+r.Sent, sum.arrived+arrived, sum.seconds+r.Seconds
	sum.missing += missing
	return nil
}

// cpuTime returns the CPU time of this process, including the kernel's for it.
func cpuTime() time.Duration {
	var ts unix.Timespec
	// It cannot fail with this clock and a valid pointer (clock_gettime(2)).
	_ = unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts)
	return time.Duration(ts.Nano())
}
