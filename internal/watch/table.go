package watch

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/aggregate"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/ports"
	"github.com/natkit/natkit/internal/snapshot"
)

// tables reads parts of a namespace's table, one after the other, and compares each
// with the one before.
type tables struct {
	budget Budget
	filter Filter
	// shown is the last reading, flows what became of connections since the one before.
	shown *reading
	flows *snapshot.Flows
	ports *snapshot.Ports
	// why is the reason where there are no flows, whyNarrow where pools of few ports could not be counted exactly.
	why, whyNarrow error
	// before is the last reading that the next one is compared with; its entries are in
	// estimator.
	before    *reading
	estimator *aggregate.FlowEstimator
}

// Reasons for not knowing what became of connections.
var (
	errOneReading      = errors.New("compare two readings of the connection table: there is one so far")
	errNothingInCommon = errors.New("compare two readings of the connection table: they have no entries in common")
)

// reading is one of a part of the table.
type reading struct {
	table      *snapshot.ConntrackTable
	entries    int64
	complete   bool
	began, end time.Time
	// uptime is that of the snapshot that it is part of.
	uptime float64
	cost   time.Duration
	// collector has the ports that the entries use; nil where it was not compared.
	collector *ports.Collector
	// stat are conntrack's counters of the snapshot that it is part of.
	stat *snapshot.ConntrackStat
	// pressed is set where a pool of ports is nearly used up.
	pressed bool
}

// middle is when an entry was read, on average.
func (r *reading) middle() time.Time { return r.began.Add(r.end.Sub(r.began) / 2) }

// sample reads the table again where the budget allows it, or the filter is another one.
func (t *tables) sample(ctx context.Context, ns *netns.Handle, s *snapshot.Snapshot, f Filter) error {
	now, began, before := time.Now(), CPUTime(), t.before
	changed := f.Key != t.filter.Key
	t.filter = f
	var err error
	switch {
	case t.budget.Due(now):
		err = t.compare(ctx, ns, s)
	case changed:
		// Too soon after the reading before for a rate of new flows.
		t.shown, err = t.read(ctx, ns, s, t.budget.Least, func(*conntrack.Entry) {})
	default:
		return nil
	}
	if err != nil {
		t.shown, t.flows, t.why, t.ports, t.before, t.estimator, t.whyNarrow = nil, nil, err, nil, nil, nil, nil
		return err
	}
	t.shown.cost = CPUTime() - began
	t.budget.Spent(now, t.shown.cost, t.shown.entries)
	if t.shown.collector != nil {
		began = CPUTime()
		t.whyNarrow = t.countNarrow(ctx, ns, s, before)
		cost := CPUTime() - began
		t.shown.cost += cost
		t.shown.pressed = t.ports.IsPressed(nearlyUsedUp, s.NATRules)
		t.budget.Postpone(cost)
	}
	return nil
}

const (
	// nearlyUsedUp is the share of a pool's ports from which it is worth to count them again though nothing fails.
	nearlyUsedUp = 0.8
	// fewEntries is a table that such a count walks through in some 80 ms.
	fewEntries = 1 << 18
)

// countNarrow counts the pools of few ports exactly, as doctor does, where only a part of the table was read and insertions failed
// since the reading before, or a pool was nearly used up then: a sample would have it free again.
func (t *tables) countNarrow(ctx context.Context, ns *netns.Handle, s *snapshot.Snapshot, before *reading) error {
	r := t.shown
	if before == nil || r.complete {
		return nil
	}
	entries, _, _ := s.Entries()
	if failed := r.stat.Grown(before.stat)["insert_failed"] > 0; !failed && (!before.pressed || entries > fewEntries) {
		return nil
	}
	exact, err := collect.NarrowPools(ctx, ns, &collect.Narrow{Rules: s.NATRules, Release: s.Kernel.Release, Sampled: r.entries, Entries: entries,
		Seen: r.collector.Seen(), Now: r.end})
	if err != nil {
		return fmt.Errorf("count pools of few ports: %w", err)
	}
	t.ports.Replace(exact)
	return nil
}

// poolMemory bounds what finding the ports takes: as many pools as a reading can have
// entries need less.
const poolMemory = 8 << 20

// compare reads entries, and finds those that are new since the reading before.
func (t *tables) compare(ctx context.Context, ns *netns.Handle, s *snapshot.Snapshot) error {
	before, estimator, next := t.before, t.estimator, aggregate.NewFlowEstimator(rand.Uint64())
	collector := ports.NewCollector(ports.Options{MemoryBytes: poolMemory, Now: time.Now(), Addresses: ports.Given(s.NATRules)})
	if before != nil {
		estimator.BeginSecond(aggregate.Gap{
			Seconds: time.Since(before.end).Seconds(), Whole: s.UptimeSeconds - before.uptime, Now: time.Now(), Sysctls: s.Sysctls})
	}
	r, err := t.read(ctx, ns, s, t.budget.Entries(), func(e *conntrack.Entry) {
		if before != nil {
			estimator.Second(e)
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
	t.flows, t.why = nil, errOneReading
	if before != nil {
		count, _, _ := s.Entries()
		t.flows, t.why = estimator.Flows(r.middle().Sub(before.middle()).Seconds(), count, r.complete), nil
		if t.flows == nil {
			t.why = errNothingInCommon
		}
	}
	t.shown, t.before, t.estimator = r, r, next
	return nil
}

// read summarises the entries that the filter matches, and gives all to fn.
func (t *tables) read(ctx context.Context, ns *netns.Handle, s *snapshot.Snapshot, entries int64, fn func(*conntrack.Entry)) (*reading, error) {
	sampler, cpu := aggregate.NewSampler(), CPUTime()
	sampler.EstablishedTimeout(s.Sysctls.ClassTimeout("tcp/ESTABLISHED"))
	r := &reading{began: time.Now(), uptime: s.UptimeSeconds, stat: s.ConntrackStat}
	if count, _, known := s.Entries(); known && count == 0 { // the kernel would walk the whole hash for nothing
		r.table, r.complete, r.end = sampler.Table(true), true, r.began
		return r, nil
	}
	var e conntrack.Entry
	add := func(e *conntrack.Entry) error {
		r.entries++
		if t.filter.Match == nil || t.filter.Match(e) {
			sampler.Add(e)
		}
		fn(e)
		return nil
	}
	result, err := dump.Dump(ctx, ns, func(msgs []byte) error {
		if err := conntrack.Each(msgs, &e, add); err != nil {
			return err
		}
		if r.entries >= entries || t.budget.Exceeded(r.entries, CPUTime()-cpu) {
			return dump.ErrStop
		}
		return nil
	})
	r.end, r.complete = time.Now(), result.Complete
	r.table = sampler.Table(r.complete)
	return r, err
}

// What is listed of ports.
const (
	shownPools = 50
	shownUsers = 3
)

// poolsOf returns the use of ports by the entries of a reading and, where both are whole,
// by the one before.
func poolsOf(r, before *reading, s *snapshot.Snapshot) *snapshot.Ports {
	entries, _, _ := s.Entries()
	q := ports.Query{Complete: r.complete, Entries: entries, Rules: s.NATRules, Release: s.Kernel.Release,
		Top: shownPools, Users: shownUsers}
	if before != nil && before.complete && r.complete {
		q.Before, q.Seconds = before.collector, r.middle().Sub(before.middle()).Seconds()
	}
	return r.collector.Ports(q)
}
