package run

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/natkit/natkit/internal/capacity"
	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/lab/build"
	"github.com/natkit/natkit/internal/load"
	loadrun "github.com/natkit/natkit/internal/load/run"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/apply"
	"github.com/natkit/natkit/internal/units"
)

// setHost sets the host-wide values that the stage has. Where they are
// the same as in the stage before they stay, with what a remedy has made of them; else
// all that was changed is undone first.
func (c *conductor) setHost(ctx context.Context, st *lab.Stage) error {
	if maps.Equal(st.Host, c.host) {
		return nil
	}
	if restored, err := c.undoHost(); err != nil {
		return err
	} else if !restored {
		return errors.New("a value of the host could not be put back; see 'natkit tune list'")
	}
	c.host = nil
	var changes []tune.Change
	for _, name := range slices.Sorted(maps.Keys(st.Host)) {
		before, err := apply.ReadSysctlInt("/proc", name)
		if err != nil {
			return err
		}
		if after := st.Host[name]; after != strconv.FormatInt(before, 10) {
			changes = append(changes, tune.Change{Kind: tune.Sysctl, Target: name, Before: strconv.FormatInt(before, 10), After: after,
				Why: "stage " + st.Name + " of the scenario"})
		}
	}
	if len(changes) > 0 {
		c.Progress(fmt.Sprintf("changing %d values of the host for %s", len(changes), st.Name))
		applied, err := apply.Apply(ctx, tune.Plan{Origin: c.origin(), Changes: changes}, apply.Options{Journal: c.Journal, Lifeline: true})
		if err != nil {
			return err
		}
		c.applied = append(c.applied, applied)
	}
	c.host = maps.Clone(st.Host)
	return nil
}

// undoHost undoes the changes to the host, newest first, and keeps those that could not be
// undone. restored is false if a value was left as it is because another process has
// changed it since.
func (c *conductor) undoHost() (restored bool, err error) {
	var left []*apply.Applied
	restored = true
	for _, a := range slices.Backward(c.applied) {
		tx, undoErr := a.Undo()
		if undoErr != nil && !errors.Is(undoErr, apply.ErrUnsaved) { // the journal is gone, but the value is back
			err = errors.Join(err, undoErr)
			left = append([]*apply.Applied{a}, left...)
		}
		restored = restored && tx != nil && undone(tx)
	}
	c.applied = left
	return restored, err
}

// undisturbed fails if another process changed the host's maximum since the lab began:
// the stages would not show what the scenario describes.
func (c *conductor) undisturbed() error {
	want := c.hostMax
	for _, a := range c.applied {
		for _, change := range a.Changes() {
			if change.Target == snapshot.ConntrackMax {
				want, _ = strconv.ParseInt(change.After, 10, 64)
			}
		}
	}
	now, err := build.ConntrackMax()
	if err == nil && now != want {
		err = fmt.Errorf("%s was %d and is %d now: another process changes it; find out which (another lab, kube-proxy, a configuration agent) and run again", snapshot.ConntrackMax, want, now)
	}
	return err
}

// lowered returns a scenario that makes a table full by a small maximum of the whole host,
// as --lower-max asks for, instead of by a fill.
func (c *conductor) lowered() (*lab.Scenario, error) {
	switch {
	case c.LowerMax >= c.hostMax:
		return nil, fmt.Errorf("lower %s to %d: it is %d already", snapshot.ConntrackMax, c.LowerMax, c.hostMax)
	case c.LowerMax >= c.sc.Load.Requests:
		return nil, fmt.Errorf("lower %s to %d: %d requests do not fill that; a lower limit, or more requests", snapshot.ConntrackMax, c.LowerMax, c.sc.Load.Requests)
	}
	sc := *c.sc
	sc.Stages = slices.Clone(sc.Stages)
	for i := range sc.Stages {
		if st := &sc.Stages[i]; st.Fill != nil {
			st.Fill, st.Host = nil, map[string]string{}
			maps.Copy(st.Host, c.sc.Stages[i].Host)
			st.Host[snapshot.ConntrackMax] = strconv.FormatInt(c.LowerMax, 10)
		}
	}
	return &sc, nil
}

// mayLowerHost refuses values of the scenario with which other namespaces would lose
// connections.
func (c *conductor) mayLowerHost() error {
	lower := map[string]int64{}
	for _, st := range c.sc.Stages {
		for name, text := range st.Host {
			before, err := apply.ReadSysctlInt("/proc", name)
			if err != nil {
				return err
			}
			if value, err := strconv.ParseInt(text, 10, 64); err == nil && value < before {
				lower[name] = min(value, cmp.Or(lower[name], value))
			}
		}
	}
	if len(lower) == 0 || c.Force {
		return nil
	}
	busiest, entries, err := dump.Busiest()
	if err != nil {
		return fmt.Errorf("lower values of the host: %w; --force skips this check", err)
	}
	return tooLow(lower, busiest, entries)
}

// tooLow judges by what the busiest namespace tracks.
func tooLow(lower map[string]int64, busiest string, entries int64) error {
	limit, lowerMax := lower[snapshot.ConntrackMax]
	buckets, lowerBuckets := lower[snapshot.ConntrackBuckets]
	switch {
	case lowerMax && entries > limit/2:
		return fmt.Errorf("lower %s to %d: network namespace %s tracks %d connections, more than half of it, and would lose new ones; --force does it all the same",
			snapshot.ConntrackMax, limit, busiest, entries)
	case lowerBuckets && capacity.ChainLength(entries, buckets) > capacity.LongChain:
		return fmt.Errorf("lower %s to %d: network namespace %s tracks %d connections, which would be hash chains of %.0f entries, and would lose new ones; --force does it all the same",
			snapshot.ConntrackBuckets, buckets, busiest, entries, capacity.ChainLength(entries, buckets))
	}
	return nil
}

// mayHold refuses a scenario that holds more connections than this machine has memory and files for.
func mayHold(sc *lab.Scenario) error {
	n := sc.Connections()
	if n == 0 {
		return nil
	}
	memory, err := collect.AvailableMemory()
	if err != nil {
		return err
	}
	files, err := collect.AvailableFiles()
	if err != nil {
		return err
	}
	return lab.CheckHold(n, memory, files)
}

// hold opens connections and keeps them open, without a byte, until its time is over, or all stand. None
// that stands may be the fault.
func (l *loads) hold(ctx context.Context, i int, one lab.Load) (o outcome) {
	whole := l.bounded(one.For)
	options := l.options(i, one)
	options.Progress = func(p load.Progress) {
		l.done[i].Store(p.Completed + p.Failed)
		l.say(fmt.Sprintf("%s of %s connections, %s/s", units.Count(p.Completed), units.Count(one.Concurrency), units.Rate(p.PerSecond)))
	}
	var before, held map[string]int64
	if one.UntilAllStand() {
		if before, o.err = collect.ReadSlabs(); o.err != nil {
			return o
		}
		options.Held = func() { held, _ = collect.ReadSlabs() } // what could be read before
	}
	r, err := loadrun.Hold(ctx, one.Holding(whole), options)
	if r == nil {
		o.err = err
		return o
	}
	if one.UntilAllStand() {
		o.report.Held = &lab.HeldReport{HoldResult: r}
		o.report.Held.Weigh(before, held)
	} else if o.err = ctx.Err(); o.err == nil { // also where none stood
		o.err = wait(ctx, whole-time.Duration(r.Seconds*float64(time.Second)))
	}
	o.result = result(r.Seconds, r.Established, r.OpenPerSecond)
	for _, s := range r.Series {
		o.result.Series = append(o.result.Series, s.Second)
	}
	o.result.Unfinished, o.result.ConnectLate = r.Unfinished, r.Late
	o.result.Failed, o.result.Failures = r.Failed+r.Lost, append(o.result.Failures, r.Failures...)
	o.result.SystemCalls, o.result.CPU = r.SystemCalls, r.CPU
	o.result.GeneratorLimit, o.result.CPUContention = r.GeneratorLimit, r.CPUContention
	o.report.Sent = int64(one.Concurrency)
	return o
}
