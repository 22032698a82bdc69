// Package look reads the status of a gateway from the kernel's table, its connections,
// the journal and the interfaces. It changes nothing, and subscribes to nothing: each
// reading costs what it reads, and counting drops costs per dropped packet.
package look

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/engine"
	"github.com/natkit/natkit/internal/gateway/observe"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/tune/journal"
	"github.com/natkit/natkit/internal/watch"
)

// Options say what to read.
type Options struct {
	// Netns is the namespace to read; nil is the one natkit runs in.
	Netns *netns.Handle
	// Enter is that namespace's, as in gateway.Facts.
	Enter string
	// Engines are asked what is in force; nil stands for those of this version.
	Engines engine.Set
	// Store has the plans, Journal what waits for confirmation; nil is none.
	Store   *engine.Store
	Journal *journal.Journal
	// Proc is the root of procfs; empty means /proc.
	Proc string
	// MaxEntries bounds how much of the connection table is read; 0 is all of it.
	MaxEntries int64
	// Top bounds the pools that are reported; 0 is all.
	Top int
}

func (o Options) proc() string {
	if o.Proc == "" {
		return "/proc"
	}
	return o.Proc
}

// Looker reads the status repeatedly, and computes rates from one reading to the next.
type Looker struct {
	o      Options
	before counters
	// plan is that of the last reading, with its digest.
	plan   *gateway.Plan
	digest string
	// drops are counted by rule; nil without CountDrops.
	drops *dropCount
	// others are other programs' chains.
	others others
}

// New makes a Looker.
func New(o Options) *Looker { return &Looker{o: o} }

// Look returns the gateway's status. What cannot be read is missing, and Notes say why;
// an error means that nothing could be read. Needs CAP_NET_ADMIN in the namespace.
func (l *Looker) Look(ctx context.Context) (*observe.Status, error) {
	v := &view{o: &l.o, others: &l.others, Status: &observe.Status{Rules: []observe.Rule{}}, plan: l.plan, digest: l.digest}
	state, err := l.o.Engines.Read(l.o.Netns, keptOf{l.o.Store, v}, true)
	if err != nil {
		return nil, err
	}
	v.state, v.Present, v.Name, v.Removal, v.at = state, state.Present, state.Name, state.Removal, time.Now()
	v.settings = collect.ReadLight(ctx, collect.Options{Netns: l.o.Netns, Proc: l.o.Proc})
	v.confirmation()
	v.losses()
	if !state.Present {
		v.doubt()
		return v.Status, ctx.Err()
	}
	v.table()
	v.hosts()
	v.leases()
	l.plan, l.digest = v.plan, v.digest
	v.interfaces()
	l.drops.report(v)
	if err := v.entries(ctx); err != nil {
		v.note("the connection table could not be read: %v", err)
	}
	now := v.counters()
	v.rates(l.before, now)
	l.before = now
	return v.Status, ctx.Err()
}

// view is a reading in progress.
type view struct {
	*observe.Status
	o      *Options
	others *others
	state  *gateway.State
	// at is when the counters were read; the connection table takes longer, and not
	// always the same.
	at time.Time
	// plan is the one of digest, the last that planOf was asked for.
	plan     *gateway.Plan
	digest   string
	settings *snapshot.Snapshot
	host     []gateway.Interface
}

func (v *view) note(format string, args ...any) {
	v.Notes = append(v.Notes, fmt.Sprintf(format, args...))
}

// counters are what rates are made of.
type counters struct {
	at     time.Time
	plan   string
	rules  map[gateway.Ref]uint64
	each   map[gateway.Ref]uint64
	drops  map[gateway.Ref]uint64
	others map[string]uint64
	// noEntry and failed are the tracker's own, which no writing of the table resets.
	noEntry, failed *uint64
}

func (v *view) counters() counters {
	c := counters{at: v.at, plan: v.Plan, rules: map[gateway.Ref]uint64{}, each: map[gateway.Ref]uint64{}, drops: map[gateway.Ref]uint64{}, others: map[string]uint64{},
		noEntry: v.Drops.NoEntry, failed: v.Drops.InsertFailed}
	for _, r := range v.Rules {
		if r.New != nil {
			c.rules[r.Rule] = *r.New
		}
		if r.ByPrograms != nil {
			c.each[r.Rule] = r.ByPrograms.Packets
		}
		if r.Dropped != nil {
			c.drops[r.Rule] = *r.Dropped
		}
	}
	for _, n := range slices.Concat(v.Drops.Counters, v.Counters) {
		c.others[n.What] = n.Packets
	}
	return c
}

// perSecond is nil where one of them is not known, or they are not counts of the same.
func perSecond(before, now *uint64, seconds float64) *float64 {
	if before == nil || now == nil || *now < *before {
		return nil
	}
	rate := float64(*now-*before) / seconds
	return &rate
}

// known is nil for what is not.
func known[K comparable](counts map[K]uint64, key K) *uint64 {
	if n, ok := counts[key]; ok {
		return &n
	}
	return nil
}

// rates compares with the previous reading, if the table was not written anew since.
func (v *view) rates(before, now counters) {
	seconds := now.at.Sub(before.at).Seconds()
	if before.at.IsZero() || seconds <= 0 {
		return
	}
	v.Drops.NoEntryPerSecond = perSecond(before.noEntry, now.noEntry, seconds)
	v.Drops.InsertFailedPerSecond = perSecond(before.failed, now.failed, seconds)
	if before.plan != now.plan {
		return
	}
	for i := range v.Rules {
		r := &v.Rules[i]
		r.NewPerSecond = perSecond(known(before.rules, r.Rule), r.New, seconds)
		if by := r.ByPrograms; by != nil {
			by.PacketsPerSecond = perSecond(known(before.each, r.Rule), &by.Packets, seconds)
		}
		r.DroppedPerSecond = perSecond(known(before.drops, r.Rule), r.Dropped, seconds)
	}
	for _, list := range [][]observe.Counter{v.Drops.Counters, v.Counters} {
		for i := range list {
			list[i].PacketsPerSecond = perSecond(known(before.others, list[i].What), &list[i].Packets, seconds)
		}
	}
}

// Budget is that of repeated readings: a twentieth of one CPU, and at most that many
// entries of the connection table.
func Budget(interval time.Duration, most int64) *watch.Budget {
	return &watch.Budget{Interval: interval, Share: 0.05, Least: 4096, First: most, Most: most}
}

// Within is Look with as much of the connection table as the budget allows, or all of it.
func (l *Looker) Within(ctx context.Context, b *watch.Budget, all bool) (*observe.Status, error) {
	l.o.MaxEntries = b.Entries()
	if all {
		l.o.MaxEntries = 0
	}
	began := time.Now()
	s, err := l.Look(ctx)
	if err == nil && s.Flows.Sampled >= min(b.Least, b.Most) { // fewer are no measure of the cost
		b.Spent(began, time.Since(began), s.Flows.Sampled)
	}
	return s, err
}
