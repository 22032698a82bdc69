package run

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/lab/build"
)

// stages runs all of them in their order; those that are apart and follow each other
// at the same time.
func (c *conductor) stages(ctx context.Context) error {
	all := c.sc.Stages
	for i := 0; i < len(all); {
		n := apartFrom(all[i:])
		if n > 0 {
			if err := c.runApart(ctx, all[i:i+n]); err != nil {
				return err
			}
			i += n
			continue
		}
		if err := c.stage(ctx, &all[i]); err != nil {
			return fmt.Errorf("stage %s: %w", all[i].Name, c.whyEnded(ctx, err))
		}
		i++
	}
	return nil
}

// apartFrom is how many of the first stages are apart.
func apartFrom(stages []lab.Stage) (n int) {
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
func (c *conductor) runApart(ctx context.Context, stages []lab.Stage) error {
	if err := c.setHost(ctx, &stages[0]); err != nil { // back to what the host had
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
			if err := child.alone(ctx, &stages[i], &building); err != nil {
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

// children are conductors of the same run, one for each of n stages, which tell of
// their progress one at a time.
func (c *conductor) children(n int) []*conductor {
	var tell sync.Mutex
	all := make([]*conductor, n)
	for i := range all {
		all[i] = &conductor{Options: c.Options, sc: c.sc, hostMax: c.hostMax, emptyBytes: c.emptyBytes,
			host: c.host, applied: c.applied, report: &lab.Report{}}
		all[i].Progress = func(text string) {
			tell.Lock()
			defer tell.Unlock()
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
	_, err = c.lab.StartServer(ctx, c.Server)
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
