package live

import (
	"context"
	"math"
	"math/rand/v2"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/ports"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/tui"
)

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
	births *conntrack.Births
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
	before, births, next := t.before, t.births, conntrack.NewBirths(rand.Uint64())
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
	sampler, cpu := conntrack.NewSampler(), ownTime()
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
func gap(between time.Duration, sysctls snapshot.Sysctls) conntrack.Gap {
	timeout := func(state string) uint32 {
		n, ok := sysctls.Int("net.netfilter.nf_conntrack_tcp_timeout_" + state)
		if !ok || n < 0 || n > math.MaxUint32 {
			return 0
		}
		return uint32(n)
	}
	return conntrack.Gap{Seconds: between.Seconds(), TimeWait: timeout("time_wait"), Close: timeout("close"), Now: time.Now()}
}

// ownTime is the CPU time of this process, all threads, what the kernel did for it
// included.
func ownTime() time.Duration {
	var ts unix.Timespec
	// It cannot fail with this clock and a valid pointer (clock_gettime(2)).
	_ = unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts)
	return time.Duration(ts.Nano())
}
