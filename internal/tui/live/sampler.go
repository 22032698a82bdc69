// Package live is natkit top: it takes the samples that internal/tui shows, and
// runs the screen on a terminal. What it reads costs the host little, however large
// its table is: counters, what eBPF programs counted, and parts of the table, bounded
// in entries and in CPU time. It never listens to events.
package live

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/natkit/natkit/internal/bpf/drops"
	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/tui"
)

// sampler takes samples of one namespace after the other. It may be used by several
// goroutines.
type sampler struct {
	mu sync.Mutex
	// ns is the namespace looked at, nil the one that natkit runs in.
	ns     *netns.Handle
	host   string
	last   *snapshot.Snapshot
	tables tables
	rules  rules
	tracer tracer

	cpu     collect.CPUTimes
	cpuSeen *tui.CPU
	own     time.Duration
	ownAt   time.Time
}

// newSampler takes ns over.
func newSampler(ns *netns.Handle) *sampler {
	host, _ := os.Hostname() // nobody depends on it
	return &sampler{ns: ns, host: host}
}

// take looks once.
func (s *sampler) take(ctx context.Context, filter tui.Filter, interval time.Duration) *tui.Sample {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := &tui.Sample{Snapshot: collect.ReadLight(ctx, collect.Options{Netns: s.ns}), Host: s.host, Before: s.last}
	s.part(out, "nat_rules", func() (err error) {
		out.NATRules, err = s.rules.read(s.ns)
		return err
	})
	s.part(out, tui.PartTable, func() error { return s.tables.look(ctx, s.ns, out.Snapshot, filter, interval) })
	if r := s.tables.shown; r != nil {
		out.Table, out.Looked, out.TableAt, out.Cost.Table = r.table, r.looked, r.began, r.cost
		out.Filter = s.tables.filter
		out.Flows, out.Ports = s.tables.flows, s.tables.ports
	}
	s.part(out, snapshot.PartDrops, func() (err error) {
		out.Drops, err = s.tracer.look(ctx, s.ns)
		return err
	})
	s.part(out, tui.PartCPU, func() (err error) {
		out.CPU, err = s.machine()
		return err
	})
	out.Cost.Own = s.ownShare()
	s.last = out.Snapshot
	return out
}

// part does a part of a sample, and keeps how that went.
func (s *sampler) part(out *tui.Sample, name string, do func() error) {
	began := time.Now()
	err := do()
	p := snapshot.Part{Name: name, DurationSeconds: time.Since(began).Seconds()}
	if err != nil {
		p.Error = err.Error()
	}
	out.Parts = append(out.Parts, p)
}

// leastTicks of a CPU are enough to tell what it did.
const leastTicks = 10

// machine is what the CPUs did since the sample before, or since an earlier one where
// that was just now; nil at the first one.
func (s *sampler) machine() (*tui.CPU, error) {
	now, err := collect.ReadCPUTimes()
	if err != nil {
		return nil, err
	}
	before := s.cpu
	all := float64(now.All - min(now.All, before.All))
	if before.All > 0 && all < float64(leastTicks*now.CPUs) {
		return s.cpuSeen, nil
	}
	s.cpu = now
	if before.All == 0 {
		return nil, nil
	}
	share := func(now, before uint64) float64 { return float64(now-min(before, now)) / all }
	s.cpuSeen = &tui.CPU{Packets: share(now.SoftIRQ, before.SoftIRQ), Busy: max(0, 1-share(now.Idle, before.Idle)), CPUs: now.CPUs}
	return s.cpuSeen, nil
}

// ownShare is natkit's own CPU time since the sample before, or since its start, as a
// part of one CPU.
func (s *sampler) ownShare() float64 {
	now, own := time.Now(), ownTime()
	elapsed, spent := now.Sub(s.ownAt), own-s.own
	first := s.ownAt.IsZero()
	s.ownAt, s.own = now, own
	if first || elapsed <= 0 {
		return 0
	}
	return float64(spent) / float64(elapsed)
}

// look at another namespace; the sampler takes ns over.
func (s *sampler) enter(ns *netns.Handle) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.tracer.close()
	old := s.ns
	s.ns, s.last, s.tables, s.rules = ns, nil, tables{}, rules{}
	return errors.Join(err, old.Close())
}

// space is another handle of the namespace looked at, for work beside the samples; nil
// for the one that natkit runs in.
func (s *sampler) space() (*netns.Handle, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ns == nil {
		return nil, nil
	}
	return s.ns.Again()
}

func (s *sampler) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(s.tracer.close(), s.ns.Close())
}

// tracer counts drops in one namespace.
type tracer struct {
	running *drops.Tracer
	own     *netns.Handle // where natkit's own namespace is looked at
	before  *snapshot.Drops
	failed  error
}

// look is what was dropped since the last look; nil at the first one, which starts to
// count. What cannot be had is not tried again.
func (t *tracer) look(ctx context.Context, ns *netns.Handle) (*snapshot.Drops, error) {
	if t.failed == nil && t.running == nil {
		t.failed = t.start(ctx, ns)
	}
	if t.failed != nil {
		return nil, t.failed
	}
	now, err := t.running.Read()
	if err != nil {
		return nil, err
	}
	before := t.before
	t.before = now
	if before == nil {
		return nil, nil
	}
	return now.Since(before), nil
}

func (t *tracer) start(ctx context.Context, ns *netns.Handle) (err error) {
	if ns == nil {
		if t.own, err = netns.Current(); err != nil {
			return err
		}
		ns = t.own
	}
	t.running, err = drops.Start(ctx, drops.Options{Netns: ns, PlacesOnly: true})
	return err
}

// close lets it begin anew.
func (t *tracer) close() error {
	var err error
	if t.running != nil {
		err = t.running.Close()
	}
	err = errors.Join(err, t.own.Close())
	*t = tracer{}
	return err
}
