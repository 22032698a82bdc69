// Package profile samples what the CPUs do: an eBPF program on a timer of each of
// them counts the kernel stacks that it interrupts.
package profile

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/natkit/natkit/internal/bpf"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/profile"
	"golang.org/x/sys/unix"
)

//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -cflags "-O2 -Wall -Wextra -Wno-unused-parameter -Werror -mcpu=v2" -target bpfel profile profile.bpf.c

// Bounds of Options.Hz. DefaultHz is not a divisor of a timer's rate, so that
// samples do not fall in step with what happens in a timer.
const (
	DefaultHz = 99
	MaxHz     = 10_000
)

// Options are what to sample.
type Options struct {
	// Hz is the samples per second of each CPU; 0 means DefaultHz.
	Hz int
	// CPUs are their numbers; none means all that are online.
	CPUs []int
	// Types are the kernel's, where they are read already.
	Types *btf.Cache
	// Symbols returns the kernel's functions when the recording ends; nil reads them.
	Symbols func() (*bpf.Table, error)
}

// Profiler is a running recording.
type Profiler struct {
	objects profileObjects
	events  []int // file descriptors
	opt     Options
	started time.Time
	kernel  string
}

// Start begins to sample. Memory is bounded, however long it takes: some 10 MiB
// in the kernel. Stop ends it and has to be called.
//
// The samples are the CPU's time (cpu-clock) also where there are counters of
// cycles: with those the kernel takes as many samples of a CPU that is busy one
// second in ten as of one that always is, and the share of all CPU time, the first
// thing to know, could not be distinguished. What runs with interrupts disabled is found
// at the instruction that enables them.
func Start(opt Options) (*Profiler, error) {
	if opt.Hz == 0 {
		opt.Hz = DefaultHz
	}
	if opt.Hz < 1 || opt.Hz > MaxHz {
		return nil, fmt.Errorf("profile the CPUs at %d Hz: must be from 1 to %d", opt.Hz, MaxHz)
	}
	if err := bpf.CheckPrivilege("to sample the kernel's stacks"); err != nil {
		return nil, fmt.Errorf("profile the CPUs: %w", err)
	}
	// An error is better now than after the recording.
	if err := bpf.CheckSymbols("/proc"); err != nil {
		return nil, err
	}
	cpus, err := chooseCPUs(opt.CPUs)
	if err != nil {
		return nil, fmt.Errorf("profile the CPUs: %w", err)
	}
	opt.CPUs = cpus
	if opt.Symbols == nil {
		opt.Symbols = func() (*bpf.Table, error) { return bpf.ReadSymbols("/proc") }
	}
	p := &Profiler{opt: opt}
	if err := p.start(); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func (p *Profiler) start() (err error) {
	if p.kernel, err = netns.Sysctl(nil, "kernel.osrelease"); err != nil {
		return err
	}
	if err := p.load(); err != nil {
		return err
	}
	for _, cpu := range p.opt.CPUs {
		fd, err := openEvent(cpu, p.opt.Hz, p.objects.Sample.FD())
		if err != nil {
			return err
		}
		p.events = append(p.events, fd)
	}
	p.started = time.Now()
	return eachEvent(p.events, unix.PERF_EVENT_IOC_ENABLE)
}

func (p *Profiler) load() error {
	spec, err := loadProfile()
	if err != nil {
		return err
	}
	if err := bpf.Prepare(spec, nil); err != nil {
		return err
	}
	err = spec.LoadAndAssign(&p.objects, &ebpf.CollectionOptions{Cache: p.opt.Types})
	var verifier *ebpf.VerifierError
	switch {
	case errors.As(err, &verifier):
		return fmt.Errorf("load the eBPF program that samples stacks: the kernel's verifier refuses it: %w (needs Linux 5.4)", err)
	case err != nil:
		return fmt.Errorf("load the eBPF program that samples stacks: %w (needs CONFIG_BPF_EVENTS and Linux 5.4)", err)
	}
	return nil
}

// Stop ends the recording and returns its stacks.
func (p *Profiler) Stop() (*profile.Stacks, error) {
	defer p.close()
	if err := eachEvent(p.events, unix.PERF_EVENT_IOC_DISABLE); err != nil {
		return nil, err
	}
	s := &profile.Stacks{
		Kernel:  p.kernel,
		Event:   "cpu-clock",
		Seconds: time.Since(p.started).Seconds(),
		Hz:      p.opt.Hz,
		CPUs:    len(p.opt.CPUs),
	}
	// Reading symbols takes the time of several samples: it must not be in them.
	symbols, err := p.opt.Symbols()
	if err != nil {
		return nil, err
	}
	return s, p.read(s, symbols)
}

// close may be called more than once.
func (p *Profiler) close() {
	for _, fd := range p.events {
		unix.Close(fd)
	}
	p.events = nil
	p.objects.Close()
}
