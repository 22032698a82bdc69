package run

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/doctor"
	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/load"
	loadrun "github.com/natkit/natkit/internal/load/run"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
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
	if err != nil {
		return err
	}
	c.report.Stages = append(c.report.Stages, *r)
	return nil
}

// prepare makes the lab what the stage says.
func (c *conductor) prepare(ctx context.Context, st *lab.Stage) error {
	c.Progress("preparing " + st.Name)
	if err := c.undisturbed(); err != nil {
		return err
	}
	if err := c.lab.SetNAT(ctx, st.NAT); err != nil {
		return err
	}
	if err := c.lab.ClearLoad(ctx); err != nil {
		return err
	}
	if c.LowerMax > 0 {
		if st.Fill != nil && st.Apply == "" {
			return c.lowerMax(ctx, st)
		}
		return nil
	}
	return c.fill(ctx, st.Fill)
}

// fill brings the table to so many places below the maximum that the host had at
// the beginning, whatever a remedy has made of it since.
func (c *conductor) fill(ctx context.Context, f *lab.Fill) error {
	if f == nil {
		return c.lab.SetFill(ctx, nil, 0)
	}
	before, err := c.look(ctx, f.Node)
	if err != nil {
		return err
	}
	// What a namespace that ended before had is given back only now and then.
	c.emptyBytes = min(c.emptyBytes, slabBytes(before))
	if before.Memory == nil {
		return errors.New("fill the connection table: the memory of the machine is unknown: " + before.PartError("memory"))
	}
	entries, err := lab.FillTarget(c.hostMax, f.Free, int64(before.Memory.AvailableBytes))
	if err != nil {
		return err
	}
	c.Progress(fmt.Sprintf("filling the table of %s with %d entries", f.Node, entries))
	return c.lab.SetFill(ctx, f, entries)
}

// look takes one snapshot of a node, without its table.
func (c *conductor) look(ctx context.Context, node string) (*snapshot.Snapshot, error) {
	return collect.Read(ctx, collect.Options{Netns: c.node(node), MaxEntries: 1})
}

func (c *conductor) node(name string) *netns.Handle { return c.lab.Node(name).Netns }

// measure runs the stage's load, with doctor beside it where the stage says so;
// sample bounds how many entries doctor reads (0: as many as at any host).
func (c *conductor) measure(ctx context.Context, st *lab.Stage, sample int) (*lab.StageReport, error) {
	watched := c.watched(st)
	tracer := c.startTrace(ctx, st)
	before, err := dump.Stats(c.node(watched))
	if err != nil {
		tracer.Stop()
		return nil, fmt.Errorf("read the connection tracker of %s: %w", watched, err)
	}
	looked := c.startDoctor(ctx, st, sample)
	result, err := loadrun.HTTP(ctx, c.loadConfig(st), loadrun.Options{
		Netns:    c.node(c.sc.Load.From),
		Progress: func(p load.Progress) { c.Progress(st.Name + ": " + p.String()) },
	})
	if lookErr := looked(); err == nil {
		err = lookErr
	}
	after, statsErr := dump.Stats(c.node(watched))
	trace := tracer.Stop()
	if err == nil {
		err = ctx.Err()
	}
	if err == nil && statsErr != nil {
		err = fmt.Errorf("read the connection tracker of %s: %w", watched, statsErr)
	}
	if err != nil {
		return nil, err
	}
	if err := c.undisturbed(); err != nil {
		return nil, err
	}
	r := &lab.StageReport{Name: st.Name, About: st.About, Result: *result, Counters: growth(before, after)}
	addTrace(r, trace)
	return r, c.readTable(watched, r)
}

func (c *conductor) loadConfig(st *lab.Stage) load.Config {
	return load.Config{
		URL:         st.URL,
		Sources:     c.sc.StageSources(c.index(st)),
		Concurrency: c.sc.Load.Concurrency,
		Requests:    c.sc.Load.Requests,
		Duration:    st.Limit.Duration,
		Timeout:     c.sc.Load.Timeout.Duration,
		Close:       load.CloseServer,
	}
}

// index is the stage's place in the scenario; a stage is a copy where doctor was
// added to it, so its name tells.
func (c *conductor) index(st *lab.Stage) int {
	return slices.IndexFunc(c.sc.Stages, func(s lab.Stage) bool { return s.Name == st.Name })
}

// watched is the node whose connection table the stage is about.
func (c *conductor) watched(st *lab.Stage) string {
	switch {
	case st.Doctor != nil:
		return st.Doctor.Node
	case len(st.NAT) > 0:
		return st.NAT[0].Node
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
	if r.TableMax, err = hostMax(); err != nil {
		return err
	}
	r.TableEntries = usage.Entries
	return nil
}

// growth is what the tracker did during the stage.
func growth(before, after []map[string]uint64) map[string]uint64 {
	now, then := &snapshot.ConntrackStat{PerCPU: after}, &snapshot.ConntrackStat{PerCPU: before}
	counters := map[string]uint64{}
	for _, name := range []string{"drop", "early_drop", "insert_failed"} {
		if d, ok := now.Delta(then, name); ok {
			counters[name] = d
		}
	}
	return counters
}

// startDoctor lets doctor look at a node while the load runs, as it would at any
// host. The returned function waits for it and keeps its report.
func (c *conductor) startDoctor(ctx context.Context, st *lab.Stage, sample int) func() error {
	if st.Doctor == nil {
		return func() error { return nil }
	}
	type answer struct {
		report *diagnose.Report
		err    error
	}
	answers := make(chan answer, 1)
	go func() {
		if err := wait(ctx, st.Doctor.After.Duration); err != nil {
			answers <- answer{err: err}
			return
		}
		_, r, err := doctor.Look(ctx, collect.RecordOptions{
			Options: collect.Options{Netns: c.node(st.Doctor.Node), MaxEntries: sample},
			For:     st.Doctor.For.Duration,
		})
		answers <- answer{r, err}
	}()
	return func() error {
		a := <-answers
		if a.err != nil {
			return fmt.Errorf("doctor at %s: %w", st.Doctor.Node, a.err)
		}
		c.found = a.report
		if st.Apply == "" {
			c.report.Findings = a.report.Findings
		}
		return nil
	}
}
