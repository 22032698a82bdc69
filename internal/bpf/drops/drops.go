// Package drops counts the packets that the kernel drops, by where and why, with
// eBPF programs on the tracepoint skb:kfree_skb.
package drops

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"

	"github.com/natkit/natkit/internal/bpf"
	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
)

// Options specify which drops count, and what is kept of them.
type Options struct {
	// Netns restricts to a network namespace; nil is all of them.
	Netns *netns.Handle
	// Interface restricts to packets whose last device has this name in Netns
	// (nil: the one natkit runs in); empty is all.
	Interface string
	// Filter restricts to packets that it matches; nil is all.
	Filter *frame.Filter
	// FlowSample is the number of drops of which one has its flow noted: 1 is every
	// one, 0 none. The first drop of each kind on each CPU is always noted.
	FlowSample int
	// StackSample is the same for kernel stacks, which cost 1.5 µs each.
	StackSample int
	// Harmless keeps the frees that are no drops too.
	Harmless bool
	// PlacesOnly reports where, for which reason, but not which of conntrack, NAT and rules
	// it was: nothing is attached to the functions that every packet goes through.
	PlacesOnly bool
	// Events gets every drop that matches, as it comes, from one goroutine; nil for
	// none. It needs Linux 5.8 (ring buffer).
	Events func(Event)
	// Headers has the headers of some dropped packets kept for Tracer.Headers. It needs Linux 5.8 (ring buffer).
	Headers HeaderOptions
	// Types are the kernel's, where they are read already.
	Types *btf.Cache
	// Symbols returns the kernel's functions when Read needs them; nil reads them at the start. Kernels without
	// reasons need them at the start in any case.
	Symbols func() (*bpf.Table, error)

	// untyped takes the program for kernels before 5.5, and smallRing a ring buffer
	// of one page: for tests.
	untyped, smallRing bool
	// spilled is another size for the table of what the others have no place for, which
	// then are as small as can be: for tests.
	spilled uint32
	// noVerdicts attaches nothing to conntrack and NAT: for tests.
	noVerdicts bool
}

// Tracer counts from Start to Close.
type Tracer struct {
	opt      Options
	names    *names
	program  *ebpf.Program
	maps     map[string]*ebpf.Map
	source   string
	verdicts bool
	before   *counters
	programs []snapshot.ProgramDrop // before
	started  time.Time
	notes    []string

	closers []func() error
	reading sync.Mutex
	ring    *ring
	headers *headerReader
	links   links
}

// CheckPrivilege returns an error that names the capabilities a tracer lacks.
func CheckPrivilege() error {
	return bpf.CheckPrivilege("to attach eBPF programs to the kernel's tracepoints")
}

// Start loads and attaches the programs. The context bounds the start only. It needs
// CAP_BPF and CAP_PERFMON or CAP_SYS_ADMIN, and a kernel with BTF, 5.4 or later.
func Start(ctx context.Context, opt Options) (_ *Tracer, err error) {
	if err := CheckPrivilege(); err != nil {
		return nil, fmt.Errorf("trace drops: %w", err)
	}
	opt.Types = cmp.Or(opt.Types, btf.NewCache())
	t := &Tracer{opt: opt, maps: map[string]*ebpf.Map{}}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("trace drops: %w", err), t.Close())
		}
	}()
	if t.names, err = readNames(opt); err != nil {
		return nil, err
	}
	t.note(t.names.note)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := t.start(); err != nil {
		return nil, err
	}
	return t, nil
}

func (t *Tracer) start() error {
	s, err := t.prepare()
	if err != nil {
		return err
	}
	if !t.opt.noVerdicts && !t.opt.PlacesOnly {
		t.attachVerdicts(s)
	}
	if !t.verdicts && !t.opt.PlacesOnly {
		t.before = readCounters(t.opt.Netns)
	}
	if t.countsPrograms() {
		if t.programs, err = readPrograms(t.opt.Netns); err != nil {
			t.note("what eBPF programs of gateways drop is not shown by reason: " + err.Error())
		}
	}
	if err := t.attach(s); err != nil {
		return err
	}
	t.started = time.Now()
	if t.opt.Headers.All > 0 {
		if err := t.openHeaders(); err != nil {
			return err
		}
	}
	if t.opt.Events != nil {
		return t.openRing()
	}
	return nil
}

// Notes returns what natkit could not do here, a line each.
func (t *Tracer) Notes() []string { return t.notes }

func (t *Tracer) note(line string) {
	if line != "" {
		t.notes = append(t.notes, line)
	}
}

// Close detaches all programs, and waits until Events has returned.
func (t *Tracer) Close() error {
	var errs []error
	for i := len(t.closers) - 1; i >= 0; i-- {
		errs = append(errs, t.closers[i]())
	}
	t.closers = nil
	return errors.Join(errs...)
}

// later has a link or a program closed with the tracer.
func (t *Tracer) later(c interface{ Close() error }) { t.closers = append(t.closers, c.Close) }

// attach loads the counting program and lets it run.
func (t *Tracer) attach(s *ebpf.CollectionSpec) error {
	var errs []error
	for _, kind := range t.kinds() {
		err := t.attachKind(s, kind)
		if err == nil {
			t.source = kind.source
			return nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", kind.source, err))
	}
	return fmt.Errorf("attach to the tracepoint skb:kfree_skb (needs Linux 5.4 with CONFIG_DEBUG_INFO_BTF): %w", errors.Join(errs...))
}

// kind is a way to attach to the tracepoint.
type kind struct {
	source, program string
	attach          func(*ebpf.Program) (link.Link, error)
}

// kinds are those that can do what is asked for, the best first.
func (t *Tracer) kinds() []kind {
	typed := kind{"tp_btf", dropsProgDropsTyped, func(p *ebpf.Program) (link.Link, error) {
		return link.AttachTracing(link.TracingOptions{Program: p})
	}}
	raw := kind{"raw_tracepoint", dropsProgDropsRaw, func(p *ebpf.Program) (link.Link, error) {
		return link.AttachRawTracepoint(link.RawTracepointOptions{Name: "kfree_skb", Program: p})
	}}
	switch {
	case t.opt.untyped:
		return []kind{raw}
	case t.opt.Events != nil, t.opt.Headers.All > 0:
		return []kind{typed}
	}
	return []kind{typed, raw}
}

func (t *Tracer) attachKind(s *ebpf.CollectionSpec, k kind) error {
	p, err := t.load(s, k.program)
	if err != nil {
		return err
	}
	l, err := k.attach(p)
	if err != nil {
		return err
	}
	t.program = p
	t.later(l)
	return nil
}
