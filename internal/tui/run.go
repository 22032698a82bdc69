package tui

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/watch"
)

// Options specify what to show, and where.
type Options struct {
	// Netns is the namespace to begin with; nil is the one natkit runs in.
	Netns    *netns.Handle
	Interval time.Duration
	Theme    Theme
	// In and Out are the terminal.
	In  io.Reader
	Out io.Writer
	// Save writes a snapshot of a namespace and returns the file's name.
	// Names, where set, reads what the host calls addresses.
	Names func(context.Context, *netns.Handle) *snapshot.Names
	Save  func(ctx context.Context, ns *netns.Handle) (name string, err error)
}

// sampler takes the samples, in the form that the screen shows.
type sampler struct {
	*watch.Sampler
	host string
}

// newSampler closes ns with the Sampler.
func newSampler(o Options, b watch.Budget) *sampler {
	host, _ := os.Hostname() // the screen does without
	s := &sampler{watch.New(o.Netns, b), host}
	s.Names = o.Names
	return s
}

func (s *sampler) take(ctx context.Context, f Filter, interval time.Duration) *Sample {
	return &Sample{Sample: s.Sample(ctx, watch.Filter{Key: f, Match: f.Entry}, interval), Host: s.host, Filter: f}
}

// drawRate is the frames per second that are drawn at most: keys are answered in a tenth of a second, and an idle
// screen wakes the machine no more often.
const drawRate = 10

// Run shows the screen until the user quits or ctx ends, and restores the terminal, also
// after a panic. It returns the names of the saved files, and closes Netns.
func Run(ctx context.Context, o Options) (files []string, err error) {
	ctx, cancel := context.WithCancel(ctx)
	a := &app{ctx: ctx, opt: o, sampler: newSampler(o, watch.Continuous()), model: New(o.Theme, o.Interval)}
	defer func() {
		cancel()
		files = a.saved()
		a.list.close()
		err = errors.Join(err, a.sampler.Close())
	}()
	// Signals end ctx: natkit has one handler of them. Quit waits for the reader of the keys,
	// which tea.WithContext closes while it reads.
	p := tea.NewProgram(a, tea.WithInput(o.In), tea.WithOutput(o.Out), tea.WithFPS(drawRate), tea.WithoutSignalHandler())
	defer context.AfterFunc(ctx, p.Quit)()
	if _, err = p.Run(); err != nil {
		return nil, fmt.Errorf("show the screen: %w", err)
	}
	return nil, nil
}

// Once takes two samples an interval apart, or sooner where ctx ends, and returns the
// second one. It closes Netns.
func Once(ctx context.Context, o Options) (sample *Sample, err error) {
	s := newSampler(o, watch.Unlimited())
	defer func() { err = errors.Join(err, s.Close()) }()
	// What was waited for is still to be seen after an interrupt.
	whole := context.WithoutCancel(ctx)
	s.take(whole, Filter{}, o.Interval)
	wait := time.NewTimer(o.Interval)
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-ctx.Done():
	}
	return s.take(whole, Filter{}, o.Interval), nil
}

// listing is the namespaces that can be chosen. Its handles keep them alive: it is
// closed as soon as the choice is made.
type listing struct {
	handles []*netns.Handle
	spaces  []Space
}

// list finds all network namespaces, those with names first.
func list() (*listing, error) {
	handles, err := netns.All()
	if err != nil {
		return nil, err
	}
	l, own := &listing{handles: handles}, ownInode()
	for _, h := range handles {
		s := Space{Inode: h.Inode(), Name: h.Name(), Entries: -1}
		if s.Inode == own && !named(s) {
			s.Name = "natkit's own"
		}
		if u, err := dump.Count(h); err == nil {
			s.Entries = u.Entries
		}
		l.spaces = append(l.spaces, s)
	}
	return l, nil
}

// ownInode returns the inode of the namespace natkit runs in, mostly the host's; 0 if it
// cannot be determined.
func ownInode() uint64 {
	own, err := netns.Current()
	if err != nil {
		return 0
	}
	defer own.Close()
	return own.Inode()
}

// named distinguishes names of ip-netns(8) from those that netns.All makes of processes.
func named(s Space) bool {
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
