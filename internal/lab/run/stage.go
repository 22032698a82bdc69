package run

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/doctor"
	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/lab/build"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/apply"
)

// stage prepares one stage and runs it; where it stands after a remedy, again
// for each round of the treatment.
func (c *conductor) stage(ctx context.Context, st *lab.Stage) error {
	if err := c.prepare(ctx, st); err != nil {
		return err
	}
	if st.Apply == lab.ApplyRemedy {
		return c.treat(ctx, st)
	}
	r, err := c.measure(ctx, st, 0)
	if r != nil {
		c.report.AddRound(*r)
	}
	return err
}

// prepare sets up the lab for the stage.
func (c *conductor) prepare(ctx context.Context, st *lab.Stage) error {
	c.Progress("preparing " + st.Name)
	if err := c.undisturbed(); err != nil {
		return err
	}
	if err := c.setHost(ctx, st); err != nil {
		return err
	}
	if err := c.lab.Furnish(ctx, st); err != nil {
		return err
	}
	if !st.KeepEntries {
		if err := c.lab.ClearLoad(ctx); err != nil {
			return err
		}
	}
	return c.fill(ctx, st.Fill)
}

// fill fills the table by the maximum that the host had at the beginning, whatever a
// remedy has made of it since.
func (c *conductor) fill(ctx context.Context, f *lab.Fill) error {
	if f == nil {
		return c.lab.SetFill(ctx, nil, 0)
	}
	before, err := c.sample(ctx, f.Node)
	if err != nil {
		return err
	}
	// What a namespace that ended before had is given back only now and then.
	c.emptyBytes = min(c.emptyBytes, slabBytes(before))
	limit := c.hostMax
	if n, given := c.host[snapshot.ConntrackMax]; given {
		limit, _ = strconv.ParseInt(n, 10, 64) // checked with the scenario
	}
	c.Progress("filling the table of " + f.Node)
	return c.lab.SetFill(ctx, f, limit)
}

// sample takes one snapshot of a node, without its table.
func (c *conductor) sample(ctx context.Context, node string) (*snapshot.Snapshot, error) {
	return collect.Read(ctx, collect.Options{Netns: c.node(node), MaxEntries: 1})
}

func (c *conductor) node(name string) *netns.Handle { return c.lab.Node(name).Netns }

// measure runs the stage's load, with doctor beside it where the stage says so;
// sample bounds how many entries doctor reads (0: as many as at any host). A stage that held
// connections and was interrupted has a report beside its error.
func (c *conductor) measure(ctx context.Context, st *lab.Stage, sample int) (*lab.StageReport, error) {
	watched := c.watched(st)
	tracer := c.startTrace(ctx, st)
	before, err := dump.Stats(c.node(watched))
	tcpBefore, tcpErr := c.readTCP()
	if err = cmp.Or(err, tcpErr); err != nil {
		tracer.Stop()
		return nil, fmt.Errorf("read the counters of %s: %w", watched, err)
	}
	loads := c.newLoads(st)
	doctored := c.startDoctor(ctx, st, loads, sample)
	r := &lab.StageReport{Name: st.Name, About: st.About, Carriers: c.lab.Carriers()}
	others := collect.WatchOthers()
	err = c.captured(st, func() error { return loads.run(ctx, r) })
	r.OtherCPU = others()
	findings, doctorErr := doctored()
	after, statsErr := dump.Stats(c.node(watched))
	tcpAfter, tcpErr := c.readTCP()
	trace := tracer.Stop()
	if statsErr != nil {
		statsErr = fmt.Errorf("read the connection tracker of %s: %w", watched, statsErr)
	}
	unread := cmp.Or(statsErr, tcpErr)
	failed := cmp.Or(err, doctorErr, ctx.Err(), unread, c.undisturbed())
	if failed != nil && (r.Held() == nil || ctx.Err() == nil || unread != nil) {
		return nil, failed
	}
	r.Counters = growth(before, after)
	c.addTCP(st, r, tcpBefore, tcpAfter)
	addFindings(r, findings)
	addTrace(r, trace)
	return r, cmp.Or(failed, c.readTable(watched, r))
}

// index is the stage's place in the scenario; a stage is a copy where doctor was
// added to it, so it is found by name.
func (c *conductor) index(st *lab.Stage) int {
	return slices.IndexFunc(c.sc.Stages, func(s lab.Stage) bool { return s.Name == st.Name })
}

// watched is the node whose connection table the stage is about.
func (c *conductor) watched(st *lab.Stage) string {
	ofDoctor := func(r lab.NAT) bool { return st.Doctor != nil && r.Node == st.Doctor.Node }
	switch {
	case st.Gateway != nil:
		return st.Gateway.Node
	case len(st.NAT) > 0 && !slices.ContainsFunc(st.NAT, ofDoctor):
		return st.NAT[0].Node // doctor may run at a host behind it
	case st.Doctor != nil:
		return st.Doctor.Node
	}
	for _, n := range c.sc.Topology.Nodes {
		if n.Forward {
			return n.Name
		}
	}
	return c.sc.Topology.Server.Node
}

// readTable adds what the table holds at the end of the stage.
func (c *conductor) readTable(node string, r *lab.StageReport) error {
	usage, err := dump.Count(c.node(node))
	if err != nil {
		return fmt.Errorf("count the connections of %s: %w", node, err)
	}
	if r.TableMax, err = build.ConntrackMax(); err != nil {
		return err
	}
	r.TableEntries = usage.Entries
	return nil
}

// growth returns the growth of the tracker's counters during the stage.
func growth(before, after []map[string]uint64) map[string]uint64 {
	now, then := &snapshot.ConntrackStat{PerCPU: after}, &snapshot.ConntrackStat{PerCPU: before}
	counters := map[string]uint64{}
	for _, name := range lab.Counters {
		if d, ok := now.Delta(then, name); ok {
			counters[name] = d
		}
	}
	return counters
}

const (
	// recheck is how long doctor runs beside the load after a remedy, where the
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
		return errors.New("no doctor ran before: there is no remedy to apply")
	}
	measured, sample := *st, 0
	if st.Doctor == nil {
		measured.Doctor = &lab.Doctor{Node: c.watched(st), For: recheck}
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
	defer func() {
		if result != nil {
			c.report.Stages = append(c.report.Stages, *result)
		}
	}()
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
