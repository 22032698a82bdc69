package run

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/lab/build"
)

// AllOptions specify how to run a series of scenarios.
type AllOptions struct {
	Options
	// Row, where set, gets each scenario when it is over.
	Row func(lab.AccuracyRow)
}

// All runs scenarios one after the other and compares what doctor found with what
// was wrong. A scenario that cannot be run is in the result; an error is returned
// where the series was interrupted, or where host values could not be put back: then
// nothing more is run.
func All(ctx context.Context, scenarios []*lab.Scenario, o AllOptions) (*lab.Accuracy, error) {
	if err := o.begin(); err != nil {
		return nil, fmt.Errorf("run scenarios: %w", err)
	}
	lock, err := build.Lock(o.Dir) // once for all: no other lab comes between
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	o.locked = true
	began := o.Clock()
	a := &lab.Accuracy{Schema: lab.AccuracySchema, Version: o.Version, Started: began.UTC(), CPUs: runtime.NumCPU(), Scenarios: []lab.AccuracyRow{}, Kernel: release()}
	for _, r := range diagnose.Rules() {
		a.Rules = append(a.Rules, r.ID)
	}
	ordered := lab.Matrix(scenarios)
	for i, sc := range ordered {
		row, err := oneOf(ctx, sc, o, fmt.Sprintf("%d/%d %s: ", i+1, len(ordered), sc.Name))
		if err != nil {
			return nil, err
		}
		a.Add(row)
		if o.Row != nil {
			o.Row(row)
		}
	}
	a.Seconds = o.Clock().Sub(began).Seconds()
	return a, nil
}

// release is the kernel's; empty where it cannot be read.
func release() string {
	text, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	return strings.TrimSpace(string(text))
}

func oneOf(ctx context.Context, sc *lab.Scenario, o AllOptions, prefix string) (lab.AccuracyRow, error) {
	if sc.NeedsHost() && !o.AllowHost {
		return lab.RowLeft(sc, "it changes values of the whole host: --allow-host allows it"), nil
	}
	one := o.Options
	one.Progress = func(text string) { o.Progress(prefix + text) }
	began := o.Clock()
	r, err := Run(ctx, sc, one)
	var back *restoreError
	switch {
	case err == nil:
		return lab.RowOf(sc, r), nil
	case ctx.Err() != nil, errors.As(err, &back):
		return lab.AccuracyRow{}, err
	}
	return lab.RowOfError(sc, err, o.Clock().Sub(began).Seconds()), nil
}

// stages runs all of them in their order; those that are apart and follow each other
// at the same time.
func (c *conductor) stages(ctx context.Context) error {
	all := c.sc.Rounds()
	for i := 0; i < len(all); {
		n := apartFrom(all[i:])
		if n > 0 {
			if err := c.runApart(ctx, all[i:i+n]); err != nil {
				return err
			}
			i += n
			continue
		}
		if err := c.stage(ctx, all[i]); err != nil {
			return fmt.Errorf("stage %s: %w", all[i].Name, c.whyEnded(ctx, err))
		}
		i++
	}
	return nil
}

// apartFrom returns the number of leading stages that are apart.
func apartFrom(stages []*lab.Stage) (n int) {
	for n < len(stages) && stages[n].Apart {
		n++
	}
	return n
}

// slowBuild is the time for a lab and its web server from which stages that are apart run
// one after the other: their loads would keep each other late. Usual is half a second,
// an emulated processor takes six.
const slowBuild = 2 * time.Second

// runApart runs stages at the same time, each in a lab of its own. The first that
// fails ends the others.
func (c *conductor) runApart(ctx context.Context, stages []*lab.Stage) error {
	if err := c.setHost(ctx, stages[0]); err != nil { // back to what the host had
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	atOnce := make(chan struct{}, len(stages))
	if c.slow {
		atOnce = make(chan struct{}, 1)
	}
	// One lab is built at a time: many web servers that start at once would be too slow
	// for each other on a small machine.
	var building sync.Mutex
	var wg sync.WaitGroup
	children := c.children(len(stages))
	for i, child := range children {
		atOnce <- struct{}{}
		wg.Go(func() {
			defer func() { <-atOnce }()
			if err := child.alone(ctx, stages[i], &building); err != nil {
				stop(fmt.Errorf("stage %s: %w", stages[i].Name, err))
			}
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	c.adopt(children)
	return nil
}

// children are conductors of the same run, one for each of n stages, which report
// their progress one at a time.
func (c *conductor) children(n int) []*conductor {
	var progress sync.Mutex
	all := make([]*conductor, n)
	for i := range all {
		all[i] = &conductor{Options: c.Options, sc: c.sc, hostMax: c.hostMax, emptyBytes: c.emptyBytes,
			host: c.host, applied: c.applied, report: &lab.Report{}}
		all[i].Progress = func(text string) {
			progress.Lock()
			defer progress.Unlock()
			c.Progress(text)
		}
	}
	return all
}

// adopt takes over what children found, in the order of their stages.
func (c *conductor) adopt(children []*conductor) {
	for _, child := range children {
		c.report.Stages = append(c.report.Stages, child.report.Stages...)
		c.report.Captures = append(c.report.Captures, child.report.Captures...)
		c.keep(child.report.Findings)
		if child.found != nil {
			c.found = child.found
		}
	}
}

// alone builds a lab for one stage, runs it there and takes the lab down.
func (c *conductor) alone(ctx context.Context, st *lab.Stage, building sync.Locker) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	err = c.build(ctx, building)
	if c.lab == nil {
		return err
	}
	defer func() { err = errors.Join(err, c.lab.Close()) }()
	if err != nil {
		return err
	}
	ctx, stop := c.untilEnded(ctx)
	defer stop()
	if err := c.stage(ctx, st); err != nil {
		return c.whyEnded(ctx, err)
	}
	return nil
}

// build makes the lab and starts its web server.
func (c *conductor) build(ctx context.Context, building sync.Locker) (err error) {
	building.Lock()
	defer building.Unlock()
	if c.lab, err = build.Up(ctx, c.sc, build.Options{Dir: c.Dir, Log: c.Progress}); err != nil {
		return err
	}
	server, err := c.lab.StartServer(ctx, c.Server)
	if err == nil {
		c.report.Server = server.Name
	}
	return err
}

// untilEnded ends with the lab.
func (c *conductor) untilEnded(ctx context.Context) (context.Context, func()) {
	ctx, stop := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-c.lab.Done():
			stop(errLabEnded)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { stop(nil) }
}

// whyEnded is errLabEnded where the lab's end was the reason.
func (c *conductor) whyEnded(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), errLabEnded) {
		return errLabEnded
	}
	return err
}
