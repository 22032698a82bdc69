package doctor

import (
	"context"
	"time"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/watch"
)

// WatchOptions specify a watch.
type WatchOptions struct {
	// Netns is the namespace; nil is the one natkit runs in.
	Netns *netns.Handle
	// Every is the time from one report to the next. It becomes longer where reports cost more than watchShare.
	Every time.Duration
	// Event receives what has changed; its error ends the watch.
	Event func(diagnose.Event) error
	// Slowed, where set, receives how long it is to the next report where that is half as long again as ever before.
	Slowed func(time.Duration)
}

const (
	// watchShare is the part of one CPU that reports may take, beside readings of the connection table.
	watchShare = 0.01
	// watchCredit bounds what reports that cost less leave for those that cost more.
	watchCredit = 200 * time.Millisecond
	// firstWindow is the time to the first report, unless Every is less.
	firstWindow = 5 * time.Second
)

// TableBudget is for readings of the connection table besides: as many entries as doctor reads, where it allows that. The
// first one is of few, as the second one is to be due for the first report.
var TableBudget = watch.Budget{Share: 0.01, Least: 1024, First: 2048, Most: collect.DefaultMaxEntries}

// Watch examines a namespace until ctx ends, and returns what stands then.
func Watch(ctx context.Context, o WatchOptions) (*diagnose.WatchEnd, error) {
	ns := o.Netns
	if ns != nil {
		var err error
		if ns, err = ns.Dup(); err != nil {
			return nil, err
		}
	}
	w := &watching{WatchOptions: o, sampler: watch.NewFull(ns, TableBudget), tracker: diagnose.NewTracker(), began: time.Now()}
	defer w.sampler.Close()
	w.end.Schema, w.end.Kind = diagnose.EventSchema, diagnose.Ended
	pays := watch.NewPayer(watchShare, watchCredit, w.began, watch.CPUTime())
	next := min(o.Every, firstWindow)
	first := w.sampler.Sample(ctx, watch.Filter{}, next)
	pays.Due(time.Now(), watch.CPUTime(), first.Cost.Table)
	for slowest := o.Every; watch.Wait(ctx, next); {
		table, err := w.report(ctx, next)
		if err != nil {
			return nil, err
		}
		next = max(o.Every, pays.Due(time.Now(), watch.CPUTime(), table))
		if next > slowest+slowest/2 && o.Slowed != nil {
			slowest = next
			o.Slowed(next)
		}
	}
	return w.ended(), nil
}

// watching is a watch under way.
type watching struct {
	WatchOptions
	sampler *watch.Sampler
	tracker *diagnose.Tracker
	began   time.Time
	tableAt time.Time
	end     diagnose.WatchEnd
}

// report examines the namespace once more, and returns the CPU time of reading the table.
func (w *watching) report(ctx context.Context, interval time.Duration) (table time.Duration, err error) {
	sample := w.sampler.Sample(ctx, watch.Filter{}, interval)
	if ctx.Err() != nil { // it is not whole
		return 0, nil
	}
	if sample.TableAt.After(w.tableAt) {
		w.tableAt, table = sample.TableAt, sample.Cost.Table
		w.end.TableCPUSeconds += table.Seconds()
	}
	report := diagnose.Run(sample.Recording(), diagnose.Rules())
	w.end.Reports++
	w.end.Netns = report.Netns
	for _, e := range w.tracker.Add(&report) {
		if err := w.Event(e); err != nil {
			return table, err
		}
	}
	return table, nil
}

func (w *watching) ended() *diagnose.WatchEnd {
	w.end.At = time.Now().UTC()
	w.end.Seconds = time.Since(w.began).Seconds()
	w.end.CPUSeconds = watch.CPUTime().Seconds()
	w.end.Findings, w.end.Incomplete = w.tracker.Standing()
	return &w.end
}
