// Package live is natkit top: it takes the samples that internal/tui shows, and
// runs the screen on a terminal. What it reads costs the host little, however large
// its table is: counters, what eBPF programs counted, and parts of the table, bounded
// in entries and in CPU time. It never listens to events.
package live

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/natkit/natkit/internal/bpf/drops"
	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/aggregate"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/ports"
	"github.com/natkit/natkit/internal/ruleset/read"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/tui"
	"golang.org/x/sys/unix"
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

// tables reads parts of a namespace's table, one after the other, and compares each
// with the one before.
type tables struct {
	budget budget
	filter tui.Filter
	// empty is that the kernel counts no entry: it would walk the whole hash for nothing.
	empty bool
	// shown is the last reading, flows what became of connections since the one before.
	shown *reading
	flows *snapshot.Flows
	ports *snapshot.Ports
	// before is the last reading that the next one is compared with; births has its
	// entries.
	before *reading
	births *aggregate.FlowEstimator
}

// reading is one look at a part of the table.
type reading struct {
	table      *snapshot.ConntrackTable
	looked     int64
	complete   bool
	began, end time.Time
	cost       time.Duration
	// collector has the ports that the entries use; nil where it was not compared.
	collector *ports.Collector
}

// middle is when an entry was read, on average.
func (r *reading) middle() time.Time { return r.began.Add(r.end.Sub(r.began) / 2) }

// look reads the table again where the budget allows it, or where somebody asks for
// other entries than before.
func (t *tables) look(ctx context.Context, ns *netns.Handle, s *snapshot.Snapshot, filter tui.Filter, interval time.Duration) error {
	now := time.Now()
	entries := t.budget.next(now)
	asked := filter != t.filter
	t.filter = filter
	count, known := s.Sysctls.Int(snapshot.ConntrackCount)
	t.empty = known && count == 0
	began := ownTime()
	var err error
	switch {
	case entries > 0:
		err = t.compare(ctx, ns, s, entries, interval)
	case asked:
		// Too soon after the reading before for a rate of new flows.
		t.shown, err = t.read(ctx, ns, leastEntries, interval, func(*conntrack.Entry) {})
	default:
		return nil
	}
	if err != nil {
		t.shown, t.flows, t.ports, t.before, t.births = nil, nil, nil, nil, nil
		return err
	}
	t.shown.cost = ownTime() - began
	t.budget.spent(now, interval, t.shown.cost, t.shown.looked)
	return nil
}

// compare reads so many entries, and finds those that are new since the reading before.
func (t *tables) compare(ctx context.Context, ns *netns.Handle, s *snapshot.Snapshot, entries int, interval time.Duration) error {
	before, births, next := t.before, t.births, aggregate.NewFlowEstimator(rand.Uint64())
	collector := ports.NewCollector(ports.Options{MemoryBytes: poolMemory, Now: time.Now(), Addresses: ports.Given(s.NATRules)})
	if before != nil {
		births.BeginSecond(gap(time.Since(before.end), s.Sysctls))
	}
	r, err := t.read(ctx, ns, entries, interval, func(e *conntrack.Entry) {
		if before != nil {
			births.Second(e)
		}
		next.First(e)
		collector.Add(e)
	})
	if err != nil {
		return err
	}
	next.EndFirst(r.complete)
	r.collector = collector
	t.ports = poolsOf(r, before, s)
	t.flows = nil
	if before != nil {
		count, _ := s.Sysctls.Int(snapshot.ConntrackCount)
		t.flows = births.Flows(r.middle().Sub(before.middle()).Seconds(), count, r.complete)
	}
	t.shown, t.before, t.births = r, r, next
	return nil
}

// read summarises the entries that the filter chooses, and gives all to fn.
func (t *tables) read(ctx context.Context, ns *netns.Handle, entries int, interval time.Duration, fn func(*conntrack.Entry)) (*reading, error) {
	sampler, cpu := aggregate.NewSampler(), ownTime()
	r := &reading{began: time.Now()}
	if t.empty {
		r.table, r.complete, r.end = sampler.Table(true), true, r.began
		return r, nil
	}
	var e conntrack.Entry
	add := func(e *conntrack.Entry) error {
		r.looked++
		if t.filter.Entry(e) {
			sampler.Add(e)
		}
		fn(e)
		return nil
	}
	result, err := dump.Dump(ctx, ns, func(msgs []byte) error {
		if err := conntrack.Each(msgs, &e, add); err != nil {
			return err
		}
		if t.budget.enough(r.looked, entries, ownTime()-cpu, interval) {
			return dump.ErrStop
		}
		return nil
	})
	r.end, r.complete = time.Now(), result.Complete
	r.table = sampler.Table(r.complete)
	return r, err
}

// gap is what lies between two readings.
func gap(between time.Duration, sysctls snapshot.Sysctls) aggregate.Gap {
	timeout := func(state string) uint32 {
		n, ok := sysctls.Int("net.netfilter.nf_conntrack_tcp_timeout_" + state)
		if !ok || n < 0 || n > math.MaxUint32 {
			return 0
		}
		return uint32(n)
	}
	return aggregate.Gap{Seconds: between.Seconds(), TimeWait: timeout("time_wait"), Close: timeout("close"), Now: time.Now()}
}

// ownTime is the CPU time of this process, all threads, what the kernel did for it
// included.
func ownTime() time.Duration {
	var ts unix.Timespec
	// It cannot fail with this clock and a valid pointer (clock_gettime(2)).
	_ = unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts)
	return time.Duration(ts.Nano())
}

// What is shown of ports, and the memory to find it in: as many pools as a reading
// can have entries need less.
const (
	shownPools = 50
	shownUsers = 3
	poolMemory = 8 << 20
)

// rulesAge is how long NAT rules are taken for those that there are: reading all of a
// large rule set takes milliseconds.
const rulesAge = 30 * time.Second

// rules are the NAT rules of a namespace, read now and then.
type rules struct {
	rules *snapshot.NATRules
	err   error
	at    time.Time
}

// read returns nil, and says why, where there is no reading them: then the kernel's own
// ranges are assumed.
func (r *rules) read(ns *netns.Handle) (*snapshot.NATRules, error) {
	if r.at.IsZero() || time.Since(r.at) > rulesAge {
		r.rules, r.err = read.NAT(ns)
		r.at = time.Now()
	}
	return r.rules, r.err
}

// poolsOf tells how far the ports are used up, by the entries of a reading and, where
// both are whole, by the one before.
func poolsOf(r, before *reading, s *snapshot.Snapshot) *snapshot.Ports {
	entries, _ := s.Sysctls.Int(snapshot.ConntrackCount)
	q := ports.Query{Complete: r.complete, Entries: entries, Rules: s.NATRules, Release: s.Kernel.Release,
		Top: shownPools, Users: shownUsers}
	if before != nil && before.complete && r.complete {
		q.Before, q.Seconds = before.collector, r.middle().Sub(before.middle()).Seconds()
	}
	return r.collector.Ports(q)
}
