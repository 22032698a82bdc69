package exporter

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/names/read"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/state"
	"github.com/natkit/natkit/internal/watch"
)

// namespace is a network namespace that is watched.
type namespace struct {
	ns *netns.Handle // nil for the one that natkit runs in

	// examining is held while the namespace is examined, counting while its counters are read; both while it is left.
	examining sync.Mutex
	sampler   *watch.Sampler
	tracker   *diagnose.Tracker
	tableAt   time.Time
	counting  sync.Mutex
	left      bool
	// before is the last snapshot with conntrack's counters, counted what they were then without their wraps.
	before  *snapshot.Snapshot
	counted map[string]uint64

	mu sync.Mutex
	// about is what is known, with parts that are never changed, but replaced.
	about state.Namespace
	// unread are those of an examination and of the counters.
	unreadExamined, unreadCounters []state.Unread
}

func newNamespace(ns, sampled *netns.Handle, b watch.Budget, about state.Namespace) *namespace {
	return &namespace{ns: ns, sampler: watch.NewFull(sampled, b), tracker: diagnose.NewTracker(), about: about}
}

// enter watches a namespace by handles of its own.
func enter(ns *netns.Handle, b watch.Budget, about state.Namespace) (*namespace, error) {
	own, err := ns.Dup()
	if err != nil {
		return nil, err
	}
	sampled, err := ns.Dup()
	if err != nil {
		own.Close()
		return nil, err
	}
	return newNamespace(own, sampled, b, about), nil
}

// open watches a namespace that was found.
func open(f netns.Found, own uint64, b watch.Budget) (*namespace, error) {
	if f.Inode == own {
		return newNamespace(nil, nil, b, state.Namespace{Inode: own}), nil
	}
	h, err := f.Open()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	owner := read.OwnerOf(f)
	name := owner.Name()
	if name == "" {
		name = fmt.Sprintf("inode %d", f.Inode)
	}
	return enter(h, b, state.Namespace{Name: name, Inode: f.Inode, Owner: &owner})
}

// count reads the counters. A part that is older than stale is not known in the history.
func (n *namespace) count(ctx context.Context, l state.Limits, dropped *dropReading, stale time.Duration) {
	n.counting.Lock()
	defer n.counting.Unlock()
	if n.left {
		return
	}
	now := collect.ReadLight(ctx, collect.Options{Netns: n.ns})
	n.mu.Lock()
	defer n.mu.Unlock()
	n.about.Counters = state.CountersOf(now, n.before, n.counted)
	n.about.Drops = dropped.of(n.about.Inode, n.about.Drops, l)
	if now.ConntrackStat != nil {
		n.before, n.counted = now, n.about.Counters.Conntrack
	}
	n.unreadCounters = append(state.UnreadOf(now), dropped.unread()...)
	n.about.History.Add(&n.about, now.TakenAt, stale)
}

// examine samples the table and what else doctor reads, judges it, and returns the CPU time of reading the table.
func (n *namespace) examine(ctx context.Context, o Options) (table time.Duration) {
	n.examining.Lock()
	defer n.examining.Unlock()
	if n.left {
		return 0
	}
	sample := n.sampler.Sample(ctx, watch.Filter{}, o.Every)
	if ctx.Err() != nil { // it is not whole
		return 0
	}
	fresh := sample.TableAt.After(n.tableAt)
	if fresh {
		n.tableAt, table = sample.TableAt, sample.Cost.Table
	}
	var report *diagnose.Report
	var standing []diagnose.Standing
	if sample.Before != nil {
		r := diagnose.Run(sample.Recording(), diagnose.Rules())
		n.tracker.Add(&r)
		standing, _ = n.tracker.Standing()
		report = &r
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if fresh || sample.Table == nil {
		n.about.Table, n.about.Services, n.about.Ports = state.TableOf(sample, o.Limits), state.ServicesOf(sample, o.Limits), state.PortsOf(sample, o.Limits)
	}
	n.about.Stack = state.StackOf(sample.Snapshot)
	if report != nil {
		n.about.Findings = state.FindingsOf(report, standing, n.about.Findings)
	}
	n.unreadExamined = state.UnreadOf(sample.Snapshot)
	return table
}

// state returns what is known, for the time now.
func (n *namespace) state(now time.Time) state.Namespace {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.about.Aged(now)
	s.History = n.about.History.Clone()
	s.Unread = []state.Unread{}
	seen := map[string]bool{}
	for _, u := range append(n.unreadCounters[:len(n.unreadCounters):len(n.unreadCounters)], n.unreadExamined...) {
		if !seen[u.Part] {
			seen[u.Part] = true
			s.Unread = append(s.Unread, u)
		}
	}
	return s
}

// close leaves the namespace.
func (n *namespace) close() error {
	n.examining.Lock()
	defer n.examining.Unlock()
	n.counting.Lock()
	defer n.counting.Unlock()
	n.left = true
	return errors.Join(n.sampler.Close(), n.ns.Close())
}
