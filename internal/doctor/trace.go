package doctor

import (
	"context"
	"sync"
	"time"

	"github.com/cilium/ebpf/btf"

	"github.com/natkit/natkit/internal/bpf"
	"github.com/natkit/natkit/internal/bpf/drops"
	"github.com/natkit/natkit/internal/bpf/profile"
	"github.com/natkit/natkit/internal/follow"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/syn"
	"github.com/natkit/natkit/internal/tap"
)

// FlowSample is the interval at which the flow of a drop is read: it costs the dropping
// CPU 6 ns a drop on average, and shows who is concerned at 20 drops a second.
const FlowSample = 8

// Bounds of what a trace lists; sums are of all. Most of the rest are single packets.
const (
	mostSites     = 1000
	mostFlows     = 4000
	mostFunctions = 100
)

// TraceOptions specify what to record.
type TraceOptions struct {
	// Netns is the namespace whose drops count; nil is the one natkit runs in. The
	// profile is of the whole machine.
	Netns *netns.Handle
	// Drops, Profile, SYNs and Follow choose the parts.
	Drops, Profile, SYNs, Follow bool
	// Answers is as in syn.Options.
	Answers bool
	// FlowSample is as in drops.Options, Hz as in profile.Options.
	FlowSample int
	Hz         int
}

// Trace is for collect.RecordOptions.Trace: between the two snapshots of ns (nil: the
// namespace that natkit runs in) drops are counted, CPUs profiled, SYNs recorded and
// connections followed.
func Trace(ns *netns.Handle) func(context.Context, *snapshot.Snapshot) (stop func() snapshot.Trace) {
	return func(ctx context.Context, before *snapshot.Snapshot) func() snapshot.Trace {
		began := time.Now()
		t := StartTrace(ctx, TraceOptions{Netns: ns, Drops: true, Profile: true, SYNs: true, Answers: mayReject(before), Follow: true, FlowSample: FlowSample})
		return func() snapshot.Trace {
			t.linger(ctx, min(time.Since(began), longestLook-time.Since(began)))
			return t.Stop()
		}
	}
}

// fewestInTimeWait is from how many sockets in TIME_WAIT on they may reject SYNs in a burst, of which the first
// has its answer before anything is suspected.
const fewestInTimeWait = 20

func mayReject(s *snapshot.Snapshot) bool {
	return s.TCP != nil && s.TCP.Sockets != nil && s.TCP.Sockets.TimeWait >= fewestInTimeWait
}

// longestLook is for how long a trace goes on at most for want of connections to judge by.
const longestLook = 10 * time.Second

// linger waits while services fail of which too few connections were seen to judge.
func (t *Tracer) linger(ctx context.Context, most time.Duration) {
	const turn = 200 * time.Millisecond
	for end := time.Now().Add(most); t.follow != nil && time.Now().Before(end) && t.follow.Undecided(); {
		select {
		case <-ctx.Done():
			return
		case <-time.After(min(turn, most)):
		}
	}
}

// Tracer records from StartTrace to Stop.
type Tracer struct {
	// types are the kernel's, for the programs of all parts.
	types *btf.Cache
	// symbols are the kernel's functions when the trace ends.
	symbols func() (*bpf.Table, error)
	drops   *drops.Tracer
	// own is the namespace that natkit runs in, where none was given.
	own      *netns.Handle
	profiler *profile.Profiler
	// source has the packets for syns and follow.
	source *tap.Source
	syns   *syn.Tap
	follow *follow.Tap
	trace  snapshot.Trace
}

// StartTrace begins to record what the kernel drops, where its CPUs spend their time, and
// how SYNs are answered. What cannot be recorded is in the trace that Stop returns.
// The profile comes last, so that it does not see the rest being loaded.
func StartTrace(ctx context.Context, o TraceOptions) *Tracer {
	t := &Tracer{types: btf.NewCache(), symbols: sync.OnceValues(func() (*bpf.Table, error) { return bpf.ReadSymbols("/proc") })}
	if o.SYNs || o.Follow {
		t.source = tap.OpenSourceWith(t.types, o.Netns)
	}
	if o.Drops {
		t.part(snapshot.PartDrops, func() error { return t.startDrops(ctx, o) })
	}
	if o.SYNs {
		t.part(snapshot.PartSYNs, func() (err error) {
			t.syns, err = syn.Start(ctx, syn.Options{Netns: o.Netns, Source: t.source, Answers: o.Answers})
			return err
		})
	}
	if o.Follow {
		t.part(snapshot.PartFollowed, func() (err error) {
			t.follow, err = follow.Start(ctx, follow.Options{Netns: o.Netns, Source: t.source})
			return err
		})
	}
	if o.Profile {
		t.part(snapshot.PartProfile, func() (err error) {
			t.profiler, err = profile.Start(profile.Options{Hz: o.Hz, Types: t.types, Symbols: t.symbols})
			return err
		})
	}
	return t
}

func (t *Tracer) startDrops(ctx context.Context, o TraceOptions) (err error) {
	ns := o.Netns
	if ns == nil {
		if t.own, err = netns.Current(); err != nil {
			return err
		}
		ns = t.own
	}
	t.drops, err = drops.Start(ctx, drops.Options{Netns: ns, FlowSample: o.FlowSample, Types: t.types, Symbols: t.symbols})
	return err
}

// Stop ends the recording. It may be called once.
func (t *Tracer) Stop() snapshot.Trace {
	if t.profiler != nil {
		t.part(snapshot.PartProfile, t.stopProfile)
	}
	if t.drops != nil {
		t.part(snapshot.PartDrops, t.stopDrops)
	}
	if t.syns != nil {
		t.part(snapshot.PartSYNs, func() (err error) { t.trace.SYNs, err = t.syns.Stop(); return err })
	}
	if t.follow != nil {
		t.part(snapshot.PartFollowed, func() (err error) { t.trace.Followed, err = t.follow.Stop(); return err })
	}
	t.source.Close()
	t.own.Close()
	return t.trace
}

func (t *Tracer) stopProfile() error {
	stacks, err := t.profiler.Stop()
	if err != nil {
		return err
	}
	p := stacks.Summarize()
	p.Functions = p.Functions[:min(len(p.Functions), mostFunctions)]
	t.trace.Profile = p
	return nil
}

func (t *Tracer) stopDrops() error {
	d, err := t.drops.Read()
	if err == nil {
		d.Sites = d.Sites[:min(len(d.Sites), mostSites)]
		d.Flows = d.Flows[:min(len(d.Flows), mostFlows)]
		t.trace.Drops = d
	}
	if closeErr := t.drops.Close(); err == nil {
		err = closeErr
	}
	return err
}

// part does a part's start or end, and adds how that went.
func (t *Tracer) part(name string, do func() error) {
	began := time.Now()
	err := do()
	p := t.partOf(name)
	p.DurationSeconds += time.Since(began).Seconds()
	if err != nil {
		p.Error = err.Error()
	}
}

func (t *Tracer) partOf(name string) *snapshot.Part {
	for i := range t.trace.Parts {
		if t.trace.Parts[i].Name == name {
			return &t.trace.Parts[i]
		}
	}
	t.trace.Parts = append(t.trace.Parts, snapshot.Part{Name: name})
	return &t.trace.Parts[len(t.trace.Parts)-1]
}
