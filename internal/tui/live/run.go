package live

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	tea "charm.land/bubbletea/v2"

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
