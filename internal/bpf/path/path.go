// Package path follows chosen packets through the functions of the kernel, by eBPF
// programs on kprobes: before and after NAT rewrites them, and their copies too.
package path

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cilium/ebpf"

	"github.com/natkit/natkit/internal/bpf"
	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/netns"
)

// Options specify which packets are followed, and where.
type Options struct {
	// Netns restricts to packets that a device in this network namespace has when
	// they are first seen; nil is all namespaces. They are followed into others.
	Netns *netns.Handle
	// Interface restricts to those that it, of Netns (nil: natkit's own), has then.
	Interface string
	// Filter is what they match then; nil is all.
	Filter *frame.Filter
	// Functions is a profile or a list of names and patterns.
	Functions string
	// Packets is the number of packets to follow.
	Packets int
	// Progress is called while it starts; may be nil.
	Progress func(string)

	// oneByOne does as on a kernel without kprobe.multi, for tests.
	oneByOne bool
}

// Attached describes what a Tracer watches.
type Attached struct {
	// Functions is their number, Refused those that the kernel let not be watched.
	Functions, Refused int
	// OneByOne: the kernel has no kprobe.multi, and only the most important functions
	// of a profile are watched.
	OneByOne bool
	// NoReturns is why returned verdicts are not shown, of some functions or of all;
	// nil where they are.
	NoReturns error
	// Took is the time from nothing to all attached.
	Took time.Duration
}

// Tracer follows packets from Start to Close.
type Tracer struct {
	types   *types
	symbols *bpf.Table
	coll    *ebpf.Collection
	att     attachment
	info    Attached
	packets int
}

// Start loads and attaches the programs. It needs CAP_BPF and CAP_PERFMON, or
// CAP_SYS_ADMIN, and CAP_SYSLOG; the error of a kernel that cannot do it says in one
// line what it lacks.
func Start(ctx context.Context, opt Options) (*Tracer, error) {
	began := time.Now()
	t := &Tracer{types: newTypes(), packets: opt.Packets, att: attachment{progress: opt.Progress}}
	if t.att.progress == nil {
		t.att.progress = func(string) {}
	}
	if err := t.start(ctx, opt); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	t.info.Functions, t.info.Refused = len(t.att.functions), len(t.att.skipped)
	t.info.OneByOne = !t.att.multi
	t.info.Took = time.Since(began)
	return t, nil
}

func (t *Tracer) start(ctx context.Context, opt Options) error {
	patterns, err := patternsOf(opt.Functions)
	if err != nil {
		return err
	}
	if err := bpf.CheckPrivilege("to attach eBPF programs to functions of the kernel"); err != nil {
		return fmt.Errorf("path %w", err)
	}
	t.att.multi = !opt.oneByOne && canMulti()
	if t.att.multi {
		t.att.traceable = readTraceable(traceableFiles)
	} else if err := checkKprobes(); err != nil {
		return err
	}
	inode, ifindex, err := bpf.Scope(opt.Netns, opt.Interface)
	if err != nil {
		return err
	}
	if t.symbols, err = bpf.ReadSymbols("/proc"); err != nil {
		return err
	}
	chosen, err := t.choose(opt.Functions, patterns)
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	t.att.progress(fmt.Sprintf("attaching to %d functions", len(chosen.steps)))
	if err := t.load(opt, inode, ifindex); err != nil {
		return err
	}
	// Returns come first: they are cut off from nothing, and show nothing alone.
	t.info.NoReturns = t.attachResults(chosen.decide)
	if err := t.attach(chosen); err != nil {
		return err
	}
	// A packet that began before would lack the steps of what was not yet watched.
	if err := t.coll.Variables[pathVarActive].Set(uint32(1)); err != nil {
		return fmt.Errorf("let packets begin: %w", err)
	}
	return nil
}

// choose leaves out most of a profile where functions are watched one by one, but
// nothing that was named.
func (t *Tracer) choose(functions string, patterns []string) (selected, error) {
	_, profile := known.profiles[functions]
	s, err := choose(t.symbols, t.types, patterns)
	if err != nil || t.att.multi {
		return s, err
	}
	s.decide = nil // each costs as much as a probe
	if profile {
		some := newMatcher(known.profiles[few])
		s.steps = slices.DeleteFunc(s.steps, func(t target) bool { return !some.match(t.Name) })
	}
	if len(s.steps) > maxOneByOne {
		return s, fmt.Errorf("%d functions are too many for this kernel, which attaches to one at a time only (no kprobe.multi: "+
			"it needs CONFIG_FPROBE and Linux 5.18): name up to %d", len(s.steps), maxOneByOne)
	}
	return s, nil
}

// maxOneByOne bounds the time of attaching, some 1 ms for each.
const maxOneByOne = 200

// Attached returns what is watched.
func (t *Tracer) Attached() Attached { return t.info }

// Close ends the watching.
func (t *Tracer) Close() error {
	err := t.att.close()
	if t.coll != nil {
		t.coll.Close()
	}
	return err
}
