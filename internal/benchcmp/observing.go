package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/bench"
	"github.com/natkit/natkit/internal/units"
)

// Quantities of an observer.
const (
	observerProgram = "program_nanoseconds_per_run"
	observerCPU     = "machine_cpu_share"
	observerStart   = "start_milliseconds"
	observerMemory  = "peak_memory_mebibytes"
)

const nobody = "nobody"

// rulesOfDrops forwards three packets of four, and drops one.
const rulesOfDrops = `table ip benchmark {
  chain prerouting {
    type filter hook prerouting priority raw
    udp sport & 3 == 0 drop
  }
}`

const oneInFour = 0.25

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
	const counting, exact, peer = "natkit drops", "natkit drops --flows", "bpftrace"
	o := &observing{planes: planes{packetRuns: packetRuns{natkit: natkit}}, rules: rulesOfDrops, lost: oneInFour}
	claims := []bench.Claim{
		{Subject: counting, Quantity: observerProgram, Bound: 60},
		{Subject: exact, Quantity: observerProgram, Bound: 200},
		{Subject: counting, Quantity: observerProgram, Than: peer, Bound: 1},
		{Subject: counting, Quantity: packetRate, Than: nobody, Bound: 0.97},
		{Subject: counting, Quantity: observerStart, Bound: 300},
		{Subject: counting, Quantity: observerMemory, Bound: 64},
	}
	return o.suite(bench.Suite{
		Name: "drops", Title: "natkit drops beside bpftrace, on a gateway that drops",
		About: "The lab's gateway forwards small packets and drops one in four by a rule, everything\n" +
			"on one CPU, while somebody counts its drops.",
		Quantities: observerQuantities("program per drop"),
		Claims:     claims,
		Programs:   [][]string{{natkit, "--version"}, {"bpftrace", "--version"}, {"nft", "--version"}},
	}, observer{name: nobody},
		observer{counting, []string{natkit, "drops", "--for", "2m", "--json"}},
		observer{exact, []string{natkit, "drops", "--for", "2m", "--json", "--flows"}},
		observer{peer, []string{"unshare", "--mount", "sh", "-ec", bpftraceDrops}})
}

// profileSuite measures what it costs a gateway to have its CPUs sampled.
func profileSuite(natkit string) bench.Suite {
	const own = "natkit profile"
	o := &observing{planes: planes{packetRuns: packetRuns{natkit: natkit}}, rules: rulesDNAT}
	return o.suite(bench.Suite{
		Name: "profile", Title: "natkit profile on a busy gateway",
		About: "The lab's gateway translates small packets, everything on one CPU, while natkit samples\n" +
			"the stacks of all CPUs 99 times per second.",
		Quantities: observerQuantities("program per sample"),
		Claims: []bench.Claim{
			{Subject: own, Quantity: observerCPU, Bound: 0.01},
			{Subject: own, Quantity: observerStart, Bound: 300},
		},
		Programs: [][]string{{natkit, "--version"}, {"nft", "--version"}},
	}, observer{name: nobody}, observer{own, []string{natkit, "profile", "--for", "2m", "--hz", "99", "--json"}})
}

// observing sends packets through the gateway while somebody looks on.
type observing struct {
	planes
	rules string
	// lost is the share of packets that the rules drop.
	lost float64
}

func (o *observing) suite(s bench.Suite, observers ...observer) bench.Suite {
	s.Method = fmt.Sprintf("%s packets of %d bytes in %s UDP flows, sent as fast as they go; the programs' own time is taken in a run of its own (BPF_ENABLE_STATS, about 20 ns of it the measurement)",
		units.Count(packetsPerRun), packetBytes, units.Count(packetFlows))
	s.Baseline, s.Rounds, s.WarmUp = nobody, 15, 1
	s.Parameters, s.Seed = o.parameters(), packetSeed
	s.Setup = o.setUp
	for _, by := range observers {
		sub := bench.Subject{Name: by.name, Run: func(ctx context.Context) (bench.Sample, error) { return o.run(ctx, by) }}
		if len(by.args) > 0 {
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
	return o.traffic(ctx)
}

// traffic is one run through the gateway's rules.
func (o *observing) traffic(ctx context.Context) (bench.Sample, error) {
	s, err := o.runKernel(ctx, o.rules, o.rules == rulesDNAT)
	if err != nil {
		return bench.Sample{}, err
	}
	lost := s.Values[lostShare]
	if tolerance := 0.02; lost < o.lost-tolerance || lost > o.lost+tolerance {
		return bench.Sample{}, fmt.Errorf("%.1f %% of the packets were lost, and the rules drop %.1f %%", 100*lost, 100*o.lost)
	}
	s.GeneratorLimit = "" // the whole path is one CPU's work, the generator included
	s.Values = bench.Values{packetRate: s.Values[packetRate]}
	return s, nil
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
	if _, err := o.traffic(ctx); err != nil {
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
		return time.Time{}, 0, fmt.Errorf("read the CPU time of a process: %w", err)
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
	if runs == 0 {
		return nil, errors.New("the observer's programs did not run")
	}
	memory, err := w.peakBytes()
	if err != nil {
		return nil, err
	}
	return bench.Values{
		observerProgram: float64(inPrograms) / float64(runs),
		observerCPU:     float64(spent-before+inPrograms) / float64(now.Sub(began)) / float64(runtime.NumCPU()),
		observerStart:   float64(w.took) / float64(time.Millisecond),
		observerMemory:  memory / (1 << 20),
	}, nil
}
