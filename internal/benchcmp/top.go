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

	"github.com/natkit/natkit/internal/bench"
	"github.com/natkit/natkit/internal/bpf/pktgen"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/conntrack/match"
	"github.com/natkit/natkit/internal/units"
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

// newFlows of a run take some seconds: several samples of top are among them.
// newFlowPorts are the server's: towards each a flow keeps its source port, and so many
// flows find places for theirs.
const (
	newFlows     = manyEntries
	newFlowPorts = 32
)

// topSuite measures what natkit top costs a gateway that only sees new connections.
func topSuite(natkit string) bench.Suite {
	const usual, quick, sharing = "natkit top", "natkit top --interval 0.5", "natkit top, on the gateway's CPU"
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
			"terminal: with its usual interval, with its shortest, and with no CPU but the gateway's,\n" +
			"as where all CPUs have packets to forward.",
		Quantities: []bench.Quantity{
			{Name: flowRate, Label: "new flows/s", Better: bench.Higher, Text: units.Rate},
			nanoseconds(flowCPU, "CPU time per new flow", false),
			quantities[2], quantities[3], quantities[4],
		},
		Claims: []bench.Claim{
			{Subject: usual, Quantity: flowRate, Than: nobody, Bound: 0.98},
			{Subject: usual, Quantity: observerCPU, Bound: 0.01},
			{Subject: usual, Quantity: observerMemory, Bound: 64},
		},
		Programs: [][]string{{natkit, "--version"}, {"nft", "--version"}},
	}, observer{name: nobody}, top(usual, natkit, "top"), top(quick, natkit, "top", "--interval", "0.5"),
		top(sharing, "taskset", "-c", "0", natkit, "top")) // pktgen's one worker has the first CPU
	s.Method = fmt.Sprintf("%s UDP flows of one packet of %d bytes, each new to the gateway, sent as fast as they go into an empty table, and taken by the server",
		units.Count(newFlows), packetBytes)
	s.Parameters = map[string]any{"flows": newFlows, "server_ports": newFlowPorts, "frame_bytes": packetBytes, "workers": 1}
	s.Setup = o.setUp
	return s
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
	return dump.Delete(ctx, o.gateway, match.Filter{MarkMask: ^uint32(0)})
}

// connect makes all flows once. Emptying the table is not timed.
func (o *newcomers) connect(ctx context.Context) (bench.Sample, error) {
	if err := o.empty(ctx); err != nil {
		return bench.Sample{}, err
	}
	from, err := pktgen.ReadEgress(pktgen.Way{Netns: o.client}, o.to.Addr())
	if err != nil {
		return bench.Sample{}, err
	}
	cfg := o.config(o.to)
	cfg.Packets, cfg.Flows.Count, cfg.Flows.Destinations = newFlows, newFlows, nil
	for i := range uint16(newFlowPorts) {
		cfg.Flows.Destinations = append(cfg.Flows.Destinations, netip.AddrPortFrom(o.to.Addr(), o.to.Port()+i))
	}
	before, err := o.server.received()
	if err != nil {
		return bench.Sample{}, err
	}
	began := cpuTime()
	r, err := pktgen.Run(ctx, cfg, from, nil, pktgen.Options{})
	if err != nil {
		return bench.Sample{}, err
	}
	spent := cpuTime() - began
	after, err := o.server.received()
	if err != nil {
		return bench.Sample{}, err
	}
	there, err := dump.Count(o.gateway)
	if err != nil {
		return bench.Sample{}, err
	}
	return bench.Sample{
		Values:   bench.Values{flowRate: float64(after-before) / r.Seconds, flowCPU: float64(spent) / newFlows},
		Failures: max(0, r.Sent-int64(after-before)) + max(0, newFlows-there.Entries),
	}, nil
}

// cpuTime is what this process has taken, and the kernel for it.
func cpuTime() time.Duration {
	var ts unix.Timespec
	// It cannot fail with this clock and a valid pointer (clock_gettime(2)).
	_ = unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts)
	return time.Duration(ts.Nano())
}
