package live

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/tui"
)

// Options say what to show, and where.
type Options struct {
	// Netns is the namespace to begin with; nil is the one natkit runs in.
	Netns    *netns.Handle
	Interval time.Duration
	Theme    tui.Theme
	// In and Out are the terminal.
	In  io.Reader
	Out io.Writer
	// Save writes a snapshot of a namespace and tells where.
	Save func(ctx context.Context, ns *netns.Handle) (name string, err error)
}

// frames per second that are drawn at most: keys are answered in a tenth of a second, and an idle
// screen wakes the machine no more often.
const frames = 10

// Run shows the screen until somebody quits it or ctx ends, and leaves the terminal as
// it was, also after a panic. It returns the names of the files that were saved, and
// closes Netns.
func Run(ctx context.Context, o Options) (files []string, err error) {
	ctx, cancel := context.WithCancel(ctx)
	a := &app{ctx: ctx, opt: o, sampler: newSampler(o.Netns), model: tui.New(o.Theme, o.Interval)}
	defer func() {
		cancel()
		files = a.saved()
		a.list.close()
		err = errors.Join(err, a.sampler.close())
	}()
	// Signals end ctx: natkit has one handler of them.
	_, err = tea.NewProgram(a, tea.WithContext(ctx), tea.WithInput(o.In), tea.WithOutput(o.Out),
		tea.WithFPS(frames), tea.WithoutSignalHandler()).Run()
	switch {
	case ctx.Err() != nil && errors.Is(err, tea.ErrProgramKilled):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("show the screen: %w", err)
	}
	return nil, nil
}

// Once takes two samples an interval apart, or sooner where ctx ends, and returns the
// second one. It closes Netns.
func Once(ctx context.Context, o Options) (sample *tui.Sample, err error) {
	s := newSampler(o.Netns)
	s.tables.budget.always = true
	defer func() { err = errors.Join(err, s.close()) }()
	// What was waited for is still to be seen after an interrupt.
	whole := context.WithoutCancel(ctx)
	s.take(whole, tui.Filter{}, o.Interval)
	wait := time.NewTimer(o.Interval)
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-ctx.Done():
	}
	return s.take(whole, tui.Filter{}, o.Interval), nil
}

// Recording is a sample with the one before, in the form of other verbs.
func Recording(s *tui.Sample) *snapshot.Recording {
	return &snapshot.Recording{Schema: snapshot.RecordingSchema, Snapshots: []*snapshot.Snapshot{s.Before, s.Snapshot},
		Flows: s.Flows, Drops: s.Drops}
}

// Bounds of a reading of the table. A datagram has some 130 entries, and a few are
// always under way: less than the least is not saved by stopping earlier. The most
// know a share to a percent and a rate of new flows to a few.
const (
	leastEntries = 1024
	mostEntries  = 16384
	firstEntries = 2048
)

// tableShare is the part of one CPU that reading the table may take.
const tableShare = 0.005

// budget bounds what reading the table costs, by what the last reading did. Fewer
// entries cost less, but not in proportion: the kernel walks the hash of all
// namespaces, and a stretch that is empty, or of others, costs as well
// (ctnetlink_dump_table). Where the least number of entries costs too much, the table
// is read less often.
type budget struct {
	entries int
	due     time.Time
	// always is for few readings: each is of the most entries, whatever it costs.
	always bool
}

// next is how many entries may be read now; 0 where it is too early.
func (b *budget) next(now time.Time) int {
	switch {
	case b.always:
		return mostEntries
	case now.Before(b.due):
		return 0
	}
	if b.entries == 0 {
		return firstEntries
	}
	return b.entries
}

// longest is the CPU time after which a reading ends in any case.
const longest = 50 * time.Millisecond

// enough reports whether a reading that was to be of so many entries ends: it has them,
// or costs more than was planned, and then the next one comes later.
func (b *budget) enough(read int64, entries int, cost, interval time.Duration) bool {
	switch {
	case read >= int64(entries):
		return true
	case b.always:
		return false
	}
	return cost > longest || cost > 2*allowance(interval) && read >= leastEntries
}

func allowance(interval time.Duration) time.Duration {
	return time.Duration(float64(interval) * tableShare)
}

// spent plans the next reading after one that took so much CPU time.
func (b *budget) spent(now time.Time, interval, cost time.Duration, read int64) {
	// Some room is left, so that an unlucky reading does not skip the next one.
	target := float64(allowance(interval)) * 0.8
	entries := float64(mostEntries)
	if cost > 0 {
		entries = float64(max(read, leastEntries)) * target / float64(cost)
	}
	if b.entries > 0 {
		entries = min(entries, 2*float64(b.entries))
	}
	b.entries = int(min(max(entries, leastEntries), mostEntries))
	b.due = now.Add(time.Duration(float64(cost) / tableShare))
}

// listing is the namespaces that can be chosen. Its handles keep them alive: it is
// closed as soon as the choice is made.
type listing struct {
	handles []*netns.Handle
	spaces  []tui.Space
}

// list finds all network namespaces, those with names first.
func list() (*listing, error) {
	handles, err := netns.All()
	if err != nil {
		return nil, err
	}
	l, own := &listing{handles: handles}, ownInode()
	for _, h := range handles {
		s := tui.Space{Inode: h.Inode(), Name: h.Name(), Entries: -1}
		if s.Inode == own && !named(s) {
			s.Name = "natkit's own"
		}
		if u, err := dump.Count(h); err == nil {
			s.Entries = u.Entries
		}
		l.spaces = append(l.spaces, s)
	}
	slices.SortStableFunc(l.spaces, func(a, b tui.Space) int {
		if named(a) != named(b) {
			if named(a) {
				return -1
			}
			return 1
		}
		return 0
	})
	return l, nil
}

// ownInode is that of the namespace natkit runs in, mostly the host's; 0 where that
// cannot be told.
func ownInode() uint64 {
	own, err := netns.Current()
	if err != nil {
		return 0
	}
	defer own.Close()
	return own.Inode()
}

// named tells names of ip-netns(8) from those that netns.All makes of processes.
func named(s tui.Space) bool {
	return !strings.HasPrefix(s.Name, "pid ") && !strings.HasPrefix(s.Name, "held by ")
}

// take is the handle of a namespace, which the caller then owns; nil where it is not
// in the list.
func (l *listing) take(inode uint64) *netns.Handle {
	for i, h := range l.handles {
		if h.Inode() == inode {
			l.handles = slices.Delete(l.handles, i, i+1)
			return h
		}
	}
	return nil
}

func (l *listing) close() {
	if l != nil {
		netns.CloseAll(l.handles)
		l.handles = nil
	}
}
