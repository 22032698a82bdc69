package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/bpf/pktgen"
	"github.com/natkit/natkit/internal/units"
	"github.com/natkit/natkit/tools/bench"
)

// Quantities of an observer.
const (
	observerProgram = "program_nanoseconds_per_run"
	observerCPU     = "machine_cpu_share"
	observerStart   = "start_milliseconds"
	observerMemory  = "peak_memory_mebibytes"
)

const unobserved = "nobody"

// rulesOfDrops drop one packet in seven, as the source ports are those from 1024 on:
// half a million per second where three and a half million come.
const rulesOfDrops = `table ip benchmark {
  chain prerouting {
    type filter hook prerouting priority raw
    udp sport < 10240 drop
  }
}`

const oneInSeven = 1.0 / 7

// bpftraceDrops is the one-liner that people use. It needs tracefs, which is mounted
// for it alone where it is not.
const bpftraceDrops = `test -d /sys/kernel/tracing/events || mount -t tracefs tracefs /sys/kernel/tracing
exec bpftrace -e 'tracepoint:skb:kfree_skb { @[args->location, args->reason] = count(); }'`

func observerQuantities(programs string) []bench.Quantity {
	fixed := func(unit string, factor float64, digits int) func(float64) string {
		return func(v float64) string { return units.Fixed(v*factor, digits) + " " + unit }
	}
	counted := func(name, label string, text func(float64) string) bench.Quantity {
		return bench.Quantity{Name: name, Label: label, Better: bench.Lower, Counted: true, Text: text}
	}
	return []bench.Quantity{
		{Name: packetRate, Label: "forwarded packets/s", Better: bench.Higher, Text: units.Rate},
		counted(observerProgram, programs, fixed("ns", 1, 0)),
		counted(observerCPU, "CPU of it, of all CPUs", fixed("%", 100, 2)),
		counted(observerStart, "until its programs are loaded", fixed("ms", 1, 0)),
		counted(observerMemory, "most memory", fixed("MiB", 1, 0)),
	}
}

// dropsSuite measures what it costs a gateway that drops to have its drops counted.
func dropsSuite(natkit string) bench.Suite {
	const empty, counting, exact, peer = "empty program", "natkit drops", "natkit drops --flows", "bpftrace"
	o := &observing{planes: planes{packetRuns: packetRuns{natkit: natkit}}, rules: rulesOfDrops, to: serverAddress, lost: oneInSeven}
	claims := []bench.Claim{
		{Subject: counting, Quantity: observerProgram, Bound: 60},
		{Subject: exact, Quantity: observerProgram, Bound: 200},
		{Subject: counting, Quantity: observerProgram, Than: peer, Bound: 1},
		{Subject: counting, Quantity: packetRate, Than: unobserved, Bound: 0.97},
		{Subject: counting, Quantity: packetRate, Than: peer, Bound: 1},
		{Subject: counting, Quantity: observerStart, Bound: 300},
		{Subject: counting, Quantity: observerMemory, Bound: 64},
	}
	return o.suite(bench.Suite{
		Name: "drops", Title: "natkit drops beside bpftrace, on a gateway that drops",
		About: "The lab's gateway forwards small packets and drops one in seven by a rule, everything\n" +
			"on one CPU, while its drops are counted. The empty program shows what the kernel's\n" +
			"tracepoint costs where it is on, with nothing in it: no tracer can cost less.",
		Quantities: observerQuantities("program per drop"),
		Claims:     claims,
		Programs:   [][]string{{natkit, "--version"}, {"bpftrace", "--version"}, {"nft", "--version"}},
	}, observer{name: unobserved},
		observer{name: empty, attach: attachNothing},
		observer{name: counting, args: []string{natkit, "drops", "--for", "2m", "--json"}},
		observer{name: exact, args: []string{natkit, "drops", "--for", "2m", "--json", "--flows"}},
		observer{name: peer, args: []string{"unshare", "--mount", "sh", "-ec", bpftraceDrops}})
}

// watchSuite measures what it costs a gateway that drops nothing to be looked at.
func watchSuite(natkit string) bench.Suite {
	const own, drops = "natkit profile", "natkit drops"
	o := &observing{planes: planes{packetRuns: packetRuns{natkit: natkit}}, rules: rulesDNAT, to: gatewayPublic}
	return o.suite(bench.Suite{
		Name: "watch", Title: "natkit profile and natkit drops on a busy gateway",
		About: "The lab's gateway translates small packets and drops none, everything on one CPU, while\n" +
			"natkit samples the stacks of all CPUs 99 times per second, or waits for drops.",
		Quantities: observerQuantities("program per run"),
		Claims: []bench.Claim{
			{Subject: drops, Quantity: packetRate, Than: unobserved, Bound: 0.97},
			{Subject: own, Quantity: packetRate, Than: unobserved, Bound: 0.97},
			{Subject: own, Quantity: observerCPU, Bound: 0.01},
			{Subject: own, Quantity: observerStart, Bound: 300},
		},
		Programs: [][]string{{natkit, "--version"}, {"nft", "--version"}},
	}, observer{name: unobserved}, observer{name: own, args: []string{natkit, "profile", "--for", "2m", "--hz", "99", "--json"}},
		observer{name: drops, args: []string{natkit, "drops", "--for", "2m", "--json"}})
}

// rulesDNAT send a port of the gateway on to the server.
const rulesDNAT = `table ip benchmark {
  chain prerouting {
    type nat hook prerouting priority dstnat
    ip daddr 198.18.0.1 udp dport 9 dnat to 198.19.0.2:9
  }
}`

// observing sends packets through the gateway while it is observed.
type observing struct {
	planes
	rules string
	// to is where the client sends to.
	to netip.AddrPort
	// lost is the share of packets that the rules drop.
	lost   float64
	server *swallower
	// send sends the packets of a run; nil is traffic.
	send func(context.Context) (bench.Sample, error)
}

// setUp makes the lab, the gateway's rules, and all flows known to it.
func (o *observing) setUp(ctx context.Context) (func(context.Context) error, error) {
	down, err := o.planes.setUp(ctx)
	if err != nil {
		return nil, err
	}
	if err = o.planes.rules(ctx, o.rules); err == nil {
		err = o.openServer()
	}
	if err != nil {
		return nil, errors.Join(err, down(ctx))
	}
	return func(ctx context.Context) error { return errors.Join(o.server.Close(), down(ctx)) }, nil
}

func (o *observing) openServer() error {
	at, err := pktgen.ReadEgress(pktgen.Route{Netns: o.planes.server}, gatewayInside)
	if err != nil {
		return err
	}
	o.server, err = swallow(o.planes.server, at.Interface)
	return err
}

func (o *observing) suite(s bench.Suite, observers ...observer) bench.Suite {
	s.Method = fmt.Sprintf("%s packets of %d bytes in %s UDP flows, sent as fast as they go, and taken by the server without a drop; the programs' own time is taken in a run of its own (BPF_ENABLE_STATS, about 20 ns of it the measurement)",
		units.Count(packetsPerRun), packetBytes, units.Count(packetFlows))
	s.Baseline, s.Rounds, s.WarmUp = unobserved, 15, 1
	s.Parameters, s.Seed = o.parameters(), packetSeed
	s.Setup = o.setUp
	for _, by := range observers {
		sub := bench.Subject{Name: by.name, Run: func(ctx context.Context) (bench.Sample, error) { return o.run(ctx, by) }}
		if len(by.args) > 0 || by.counted {
			sub.Count = func(ctx context.Context) (bench.Values, error) { return o.count(ctx, by) }
		}
		s.Subjects = append(s.Subjects, sub)
	}
	return s
}

// run measures the gateway with the observer beside it.
func (o *observing) run(ctx context.Context, by observer) (s bench.Sample, err error) {
	w, err := by.start(ctx)
	if err != nil {
		return bench.Sample{}, err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	return o.offer(ctx)
}

var errLoss = errors.New("packets were lost that no rule drops")

func (o *observing) offer(ctx context.Context) (bench.Sample, error) {
	if o.send != nil {
		return o.send(ctx)
	}
	return o.traffic(ctx)
}

// traffic sends packets through the gateway's rules to a server that takes them.
func (o *observing) traffic(ctx context.Context) (bench.Sample, error) {
	from, err := pktgen.ReadEgress(pktgen.Route{Netns: o.client}, o.to.Addr())
	if err != nil {
		return bench.Sample{}, err
	}
	before, err := o.server.received()
	if err != nil {
		return bench.Sample{}, err
	}
	r, err := pktgen.Run(ctx, o.config(o.to), from, nil, nil)
	if err != nil {
		return bench.Sample{}, err
	}
	after, err := o.server.received()
	if err != nil {
		return bench.Sample{}, err
	}
	forwarded := float64(after - before)
	lost := 1 - forwarded/float64(r.Sent)
	if tolerance := 0.02; lost < o.lost-tolerance || lost > o.lost+tolerance {
		return bench.Sample{}, fmt.Errorf("%w: %.1f %%, and the rules drop %.1f %%", errLoss, 100*lost, 100*o.lost)
	}
	return bench.Sample{Values: bench.Values{packetRate: forwarded / r.Seconds}}, nil
}

// count takes what does not depend on the machine's mood.
func (o *observing) count(ctx context.Context, by observer) (v bench.Values, err error) {
	statistics, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		return nil, fmt.Errorf("switch run-time statistics on: %w", err)
	}
	defer statistics.Close()
	w, err := by.start(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	began, before, err := w.work()
	if err != nil {
		return nil, err
	}
	if _, err := o.offer(ctx); err != nil {
		return nil, err
	}
	return w.values(began, before)
}

// work is the CPU time of the process until now, and when that was.
func (w *watch) work() (at time.Time, spent time.Duration, err error) {
	var u unix.Timespec
	// The clock of another process's CPU time: MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED)
	// of include/linux/posix-timers_types.h.
	clock := int32(^w.cmd.Process.Pid<<3 | 2)
	if err := unix.ClockGettime(clock, &u); err != nil {
		return time.Time{}, 0, fmt.Errorf("read the CPU time of %v: %w (has it ended? %s)", w.cmd.Args, err, w.stderr)
	}
	return time.Now(), time.Duration(u.Nano()), nil
}

// values are the counted ones, the CPU time from an instant on.
func (w *watch) values(began time.Time, before time.Duration) (bench.Values, error) {
	now, spent, err := w.work()
	if err != nil {
		return nil, err
	}
	runs, inPrograms, err := w.statistics()
	if err != nil {
		return nil, err
	}
	memory, err := w.peakBytes()
	if err != nil {
		return nil, err
	}
	v := bench.Values{
		observerCPU:    float64(spent-before+inPrograms) / float64(now.Sub(began)) / float64(runtime.NumCPU()),
		observerStart:  float64(w.took) / float64(time.Millisecond),
		observerMemory: memory / (1 << 20),
	}
	if runs > 0 { // where nothing is dropped, none counts
		v[observerProgram] = float64(inPrograms) / float64(runs)
	}
	return v, nil
}
