package run

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/doctor"
	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/apply"
)

const (
	// recheck is how long doctor looks while the load runs after a remedy, where the
	// stage does not say.
	recheck = time.Second
	// recheckSample is how many entries it reads then: little, as the load of this
	// stage is to be compared with that of others.
	recheckSample = 8192
)

// treat applies what doctor's report says, and runs the stage with doctor beside
// it, until doctor has nothing more to apply. The last run is the stage's result.
func (c *conductor) treat(ctx context.Context, st *lab.Stage) error {
	if c.found == nil {
		return errors.New("no doctor looked before: there is no remedy to apply")
	}
	measured, sample := *st, 0
	if st.Doctor == nil {
		measured.Doctor = &lab.Doctor{Node: c.watched(st), For: lab.Duration{Duration: recheck}}
		sample = recheckSample
	}
	var result *lab.StageReport
	run := func(ctx context.Context) (r *diagnose.Report, err error) {
		if !st.KeepEntries {
			if err := c.lab.ClearLoad(ctx); err != nil {
				return nil, err
			}
		}
		if result, err = c.measure(ctx, &measured, sample); err != nil {
			return nil, err
		}
		return c.found, nil
	}
	first := c.found
	treatment, err := doctor.Treat(ctx, first, doctor.Options{
		Look:    run,
		Apply:   apply.Options{Journal: c.Journal, Lifeline: true},
		Origin:  c.origin(),
		Agree:   func(tune.Plan) (bool, error) { return true, nil },
		Applied: func(a *apply.Applied) { c.applied = append(c.applied, a) },
	})
	if err != nil {
		return err
	}
	if result == nil { // nothing to apply: the stage shows what that leads to
		if _, err := run(ctx); err != nil {
			return err
		}
	}
	c.report.Stages = append(c.report.Stages, *result)
	return c.describeFix(ctx, st, first, treatment)
}

func (c *conductor) origin() string { return "lab " + c.sc.Name }

// describeFix compares what the remedy predicted with what is seen.
func (c *conductor) describeFix(ctx context.Context, st *lab.Stage, found *diagnose.Report, t *doctor.Treatment) error {
	if len(t.Rounds) == 0 {
		return nil
	}
	fix := &lab.Fix{Changes: t.Changes(), Rounds: len(t.Rounds)}
	fix.Finding, fix.Remedy = cured(found, fix.Changes)
	c.report.Fix = fix
	return c.weigh(ctx, st, fix)
}

// cured is the first finding one of whose automatic remedies made the changes.
func cured(found *diagnose.Report, changes []tune.Change) (id, remedy string) {
	for _, f := range found.Findings {
		for _, m := range f.Remedies {
			if m.Automatic && slices.ContainsFunc(m.Changes, func(c tune.Change) bool {
				return slices.ContainsFunc(changes, func(made tune.Change) bool { return made.Key() == c.Key() })
			}) {
				return f.ID, m.Title
			}
		}
	}
	return "", ""
}

// lowerMax makes the table full the way the sources' host was: by a small
// nf_conntrack_max, for the whole host.
func (c *conductor) lowerMax(ctx context.Context, st *lab.Stage) error {
	if err := c.mayLower(); err != nil {
		return err
	}
	c.Progress(fmt.Sprintf("lowering the host's %s from %d to %d", snapshot.ConntrackMax, c.hostMax, c.LowerMax))
	applied, err := apply.Apply(ctx, tune.Plan{Origin: c.origin(), Changes: []tune.Change{{
		Kind: tune.Sysctl, Target: snapshot.ConntrackMax,
		Before: fmt.Sprint(c.hostMax), After: fmt.Sprint(c.LowerMax),
		Why: "the scenario's fault, asked for with --lower-max",
	}}}, apply.Options{Journal: c.Journal, Lifeline: true})
	if err != nil {
		return err
	}
	c.applied = append(c.applied, applied)
	return nil
}

// wait sleeps, or returns at once when ctx ends.
func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
