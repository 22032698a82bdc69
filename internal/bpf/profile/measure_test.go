package profile

import (
	"context"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/profile"
)

// record samples for a time, or until ctx ends, which is no error.
func record(ctx context.Context, opt Options, window time.Duration) (*profile.Stacks, error) {
	p, err := Start(opt)
	if err != nil {
		return nil, err
	}
	select {
	case <-time.After(window):
	case <-ctx.Done():
	}
	return p.Stop()
}

// Cost is what a recording took of the machine.
type Cost struct {
	Seconds float64
	CPUs    int
	// Samples is how often the program ran, ProgramSeconds how long in all.
	Samples        uint64
	ProgramSeconds float64
	// StartSeconds is the time until the CPUs were sampled, StopSeconds that from
	// then to the named stacks.
	StartSeconds, StopSeconds float64
	// ProcessSeconds is the CPU time of this process, all of it.
	ProcessSeconds float64
}

// Share is the part of the time of all CPUs, from 0 to 1. The interrupts
// themselves are not in it: the kernel does not count them.
func (c Cost) Share() float64 {
	if c.Seconds <= 0 || c.CPUs <= 0 {
		return 0
	}
	return (c.ProgramSeconds + c.ProcessSeconds) / (c.Seconds * float64(c.CPUs))
}

// Measure makes a recording at the usual rate and tells its cost, by the kernel's own
// statistics of programs (Linux 5.8), which cost some 20 ns a sample themselves.
func Measure(ctx context.Context, window time.Duration) (Cost, error) {
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		return Cost{}, fmt.Errorf("count the run time of eBPF programs: %w (needs Linux 5.8)", err)
	}
	defer stats.Close()
	before, began := processTime(), time.Now()
	p, err := Start(Options{})
	if err != nil {
		return Cost{}, err
	}
	cost := Cost{CPUs: len(p.opt.CPUs), StartSeconds: time.Since(began).Seconds()}
	select {
	case <-time.After(window):
	case <-ctx.Done():
	}
	info, err := p.objects.Sample.Stats()
	if err != nil {
		p.close()
		return Cost{}, fmt.Errorf("read the run time of the eBPF program: %w", err)
	}
	cost.Samples, cost.ProgramSeconds = info.RunCount, info.Runtime.Seconds()
	stopped := time.Now()
	s, err := p.Stop()
	if err != nil {
		return Cost{}, err
	}
	cost.Seconds, cost.StopSeconds = s.Seconds, time.Since(stopped).Seconds()
	cost.ProcessSeconds = (processTime() - before).Seconds()
	return cost, nil
}

// processTime is the CPU time that this process took.
func processTime() time.Duration {
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
