// Package watch samples a network namespace again and again, at a cost that does not grow
// with its connection table: counters, settings, the drops that an eBPF program counted,
// and parts of the table, within a Budget. It keeps the sample before for rates. It never
// subscribes to conntrack's events.
package watch

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/natkit/natkit/internal/bpf/drops"
	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/ruleset/read"
	"github.com/natkit/natkit/internal/snapshot"
	"golang.org/x/sys/unix"
)

// Filter selects the entries that a sample's Table is of. Another Key than before is worth
// a reading at once.
type Filter struct {
	Key any
	// Match nil selects all.
	Match func(*conntrack.Entry) bool
}

// Sampler takes samples of one namespace after the other. It may be used by several
// goroutines.
type Sampler struct {
	mu sync.Mutex
	// ns is the namespace sampled, nil the one that natkit runs in.
	ns     *netns.Handle
	budget Budget
	last   *snapshot.Snapshot
	tables tables
	rules  rules
	tracer tracer
	// full is set where samples have all that doctor reads.
	full *collect.Reader
	// Names, where set, reads what the host calls addresses; set it before the first sample.
	Names func(context.Context, *netns.Handle) *snapshot.Names

	cpu     collect.CPUTimes
	cpuSeen *snapshot.CPU
	own     time.Duration
	ownAt   time.Time
}

// New returns a Sampler of a namespace, which it closes. The budget is for each namespace
// that it enters.
func New(ns *netns.Handle, b Budget) *Sampler {
	return &Sampler{ns: ns, budget: b, tables: tables{budget: b}}
}

// NewFull is New of samples that have all that doctor reads, and not what drops and CPUs did: their
// recordings are for rules. A sample costs more then where rules and interfaces are many.
func NewFull(ns *netns.Handle, b Budget) *Sampler {
	s := New(ns, b)
	s.full = collect.NewReader(collect.Options{Netns: ns})
	return s
}

// Continuous is a budget of half a percent of one CPU. A datagram has some 130 entries, and
// a few are always under way: fewer entries than the least save nothing. The most give a
// share to a percent and a rate of new flows to a few.
func Continuous() Budget { return Budget{Share: 0.005, Least: 1024, First: 2048, Most: 16384} }

// Unlimited is for few readings: each is of the most entries of Continuous.
func Unlimited() Budget { return Budget{Share: unlimited, Least: 1024, First: 16384, Most: 16384} }

// Sample takes one sample. The interval is the time between two of them.
func (s *Sampler) Sample(ctx context.Context, f Filter, interval time.Duration) *snapshot.Sample {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := &snapshot.Sample{Snapshot: s.read(ctx), Before: s.last}
	s.tables.budget.Interval = interval
	part(out.Snapshot, snapshot.PartTable, func() error { return s.tables.sample(ctx, s.ns, out.Snapshot, f) })
	if r := s.tables.shown; r != nil {
		out.Table, out.EntriesRead, out.TableAt, out.Cost.Table = r.table, r.entries, r.began, r.cost
		out.Flows, out.Ports = s.tables.flows, s.tables.ports
	}
	if err := s.tables.whyNarrow; err != nil {
		part(out.Snapshot, snapshot.PartPorts, func() error { return err })
	}
	if s.full != nil {
		s.compare(out)
	} else {
		s.measure(ctx, out)
	}
	out.Cost.Own = s.ownShare()
	s.last = out.Snapshot
	return out
}

// read takes a snapshot without the table.
func (s *Sampler) read(ctx context.Context) *snapshot.Snapshot {
	if s.full != nil {
		return s.full.Read(ctx)
	}
	now := collect.ReadLight(ctx, collect.Options{Netns: s.ns, Names: s.Names})
	part(now, "nat_rules", func() (err error) {
		now.NATRules, err = s.rules.read(s.ns)
		return err
	})
	return now
}

// compare adds what rules need of two samples, or why it is not there.
func (s *Sampler) compare(out *snapshot.Sample) {
	if out.Before == nil {
		return
	}
	part(out.Snapshot, snapshot.PartFlows, func() error { return s.tables.why })
	s.full.Compare(out.Recording())
}

// measure adds what was dropped and what the CPUs did since the sample before.
func (s *Sampler) measure(ctx context.Context, out *snapshot.Sample) {
	part(out.Snapshot, snapshot.PartDrops, func() (err error) {
		out.Drops, err = s.tracer.sample(ctx, s.ns)
		return err
	})
	part(out.Snapshot, snapshot.PartCPU, func() (err error) {
		out.CPU, err = s.machine()
		return err
	})
}

// part reads a part of a sample, and records the result.
func part(out *snapshot.Snapshot, name string, read func() error) {
	began := time.Now()
	err := read()
	p := snapshot.Part{Name: name, DurationSeconds: time.Since(began).Seconds()}
	if err != nil {
		p.Error = err.Error()
	}
	out.Parts = append(out.Parts, p)
}

// leastTicks of a CPU are enough to know what it did.
const leastTicks = 10

// machine returns what the CPUs did since the sample before, or since an earlier one where
// that was just now; nil for the first one.
func (s *Sampler) machine() (*snapshot.CPU, error) {
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
	s.cpuSeen = &snapshot.CPU{Packets: share(now.SoftIRQ, before.SoftIRQ), Busy: max(0, 1-share(now.Idle, before.Idle)), CPUs: now.CPUs}
	return s.cpuSeen, nil
}

// ownShare returns natkit's own CPU time since the sample before, as a share of one CPU.
func (s *Sampler) ownShare() float64 {
	now, own := time.Now(), CPUTime()
	elapsed, spent := now.Sub(s.ownAt), own-s.own
	first := s.ownAt.IsZero()
	s.ownAt, s.own = now, own
	if first || elapsed <= 0 {
		return 0
	}
	return float64(spent) / float64(elapsed)
}

// Enter continues with another namespace, which the Sampler closes.
func (s *Sampler) Enter(ns *netns.Handle) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.tracer.close()
	old := s.ns
	s.ns, s.last, s.tables, s.rules = ns, nil, tables{budget: s.budget}, rules{}
	if s.full != nil {
		s.full = collect.NewReader(collect.Options{Netns: ns})
	}
	return errors.Join(err, old.Close())
}

// Netns returns another handle of the namespace sampled; nil for the one that natkit runs
// in.
func (s *Sampler) Netns() (*netns.Handle, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ns == nil {
		return nil, nil
	}
	return s.ns.Dup()
}

// Close ends what counts drops, and closes the namespace.
func (s *Sampler) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(s.tracer.close(), s.ns.Close())
}

// tracer counts drops in one namespace.
type tracer struct {
	running *drops.Tracer
	own     *netns.Handle // where natkit's own namespace is sampled
	before  *snapshot.Drops
	failed  error
}

// sample returns what was dropped since the last sample; nil for the first one, which
// starts to count. What could not be started is not tried again.
func (t *tracer) sample(ctx context.Context, ns *netns.Handle) (*snapshot.Drops, error) {
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

// rulesAge is how long NAT rules are considered current: reading all of a large rule set
// takes milliseconds.
const rulesAge = 30 * time.Second

// rules are the NAT rules of a namespace, read now and then.
type rules struct {
	rules *snapshot.NATRules
	err   error
	at    time.Time
}

// read returns nil and the reason where they cannot be read; the kernel's own ranges are
// assumed then.
func (r *rules) read(ns *netns.Handle) (*snapshot.NATRules, error) {
	if r.at.IsZero() || time.Since(r.at) > rulesAge {
		r.rules, r.err = read.NAT(ns)
		r.at = time.Now()
	}
	return r.rules, r.err
}

// CPUTime returns the CPU time of this process, all threads and system calls included.
func CPUTime() time.Duration {
	var ts unix.Timespec
	// It cannot fail with this clock and a valid pointer (clock_gettime(2)).
	_ = unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts)
	return time.Duration(ts.Nano())
}
