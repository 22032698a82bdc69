package run

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/doctor"
	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
)

// startDoctor runs doctor at a node while the loads run, as at any host. The returned
// function waits for it, keeps its report, and returns it (nil without a doctor in this
// stage).
func (c *conductor) startDoctor(ctx context.Context, st *lab.Stage, l *loads, sample int) func() (*diagnose.Report, error) {
	if st.Doctor == nil {
		return func() (*diagnose.Report, error) { return nil, nil }
	}
	type answer struct {
		report *diagnose.Report
		err    error
	}
	answers := make(chan answer, 1)
	go func() {
		why, err := c.await(ctx, st.Doctor, l)
		if err != nil {
			answers <- answer{err: err}
			return
		}
		l.say("doctor observes " + st.Doctor.Node + why)
		o := collect.RecordOptions{
			Options: collect.Options{Netns: c.node(st.Doctor.Node), MaxEntries: sample},
			For:     st.Doctor.For,
		}
		if st.Doctor.Trace {
			o.Trace = doctor.Trace(o.Netns)
		}
		if st.Doctor.Others {
			o.Others = &collect.SurveyOptions{Find: c.nodes}
		}
		r, err := c.examine(ctx, st.Name, o)
		answers <- answer{r, err}
	}()
	return func() (*diagnose.Report, error) {
		a := <-answers
		if a.err != nil {
			return nil, fmt.Errorf("doctor at %s: %w", st.Doctor.Node, a.err)
		}
		c.found = a.report
		if st.Apply == "" {
			c.keep(a.report.Findings)
		}
		return a.report, nil
	}
}

// nodes finds the network namespaces of the lab, where doctor must see no others.
func (c *conductor) nodes(time.Time) (found []netns.Found, cut bool, missed error) {
	for _, n := range c.sc.Topology.Nodes {
		ns := c.node(n.Name)
		found = append(found, netns.Found{Inode: ns.Inode(), Path: fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ns.Fd())})
	}
	return found, false, nil
}

// examine runs doctor, and keeps what it reads where that is wanted.
func (c *conductor) examine(ctx context.Context, stage string, o collect.RecordOptions) (*diagnose.Report, error) {
	if c.Beside != nil {
		o.Progress = c.Beside(stage, o.Netns)
	}
	if c.Bundle != nil {
		if w := c.Bundle(stage); w != nil {
			rec, err := collect.WriteBundle(ctx, w, o)
			if err != nil {
				return nil, err
			}
			r := diagnose.Run(rec, diagnose.Rules())
			return &r, nil
		}
	}
	_, r, err := doctor.Look(ctx, o)
	return r, err
}

// addFindings adds to a stage's report what doctor found, and what it could not check.
func addFindings(r *lab.StageReport, doctor *diagnose.Report) {
	if doctor == nil {
		return
	}
	r.Found = doctor.IDs()
	for _, check := range doctor.Checks {
		if check.State == diagnose.NotChecked {
			r.Unchecked = append(r.Unchecked, check.ID)
		}
	}
}

// keep adds findings to the report of the run, each ID once, as it was seen last.
func (c *conductor) keep(findings []diagnose.Finding) {
	for _, f := range findings {
		same := func(o diagnose.Finding) bool { return o.ID == f.ID }
		if i := slices.IndexFunc(c.report.Findings, same); i >= 0 {
			c.report.Findings[i] = f
			continue
		}
		c.report.Findings = append(c.report.Findings, f)
	}
}

// conditionTick is the time between checks of the condition on which doctor begins.
const conditionTick = 10 * time.Millisecond

// Why doctor begins, where it has a condition.
const (
	asWanted = ", as wanted"
	loadOver = ", as the load is over"
)

// await returns when doctor is to begin, and why: after its time, once its condition
// holds, or when the loads are over.
func (c *conductor) await(ctx context.Context, d *lab.Doctor, l *loads) (why string, err error) {
	if err := wait(ctx, d.After); err != nil || d.When == nil {
		return "", err
	}
	before, err := dump.Stats(c.node(d.Node))
	if err != nil {
		return "", err
	}
	for {
		if holds, err := c.holds(d, l, before); holds || err != nil {
			return asWanted, err
		}
		select {
		case <-l.over:
			return loadOver, nil
		case <-ctx.Done():
			return "", ctx.Err()
		case <-time.After(conditionTick):
		}
	}
}

func (c *conductor) holds(d *lab.Doctor, l *loads, before []map[string]uint64) (bool, error) {
	if l.requests() < d.When.Requests {
		return false, nil
	}
	if d.When.Entries > 0 {
		usage, err := dump.Count(c.node(d.Node))
		if err != nil || usage.Entries < d.When.Entries {
			return false, err
		}
	}
	if len(d.When.Counters) == 0 {
		return true, nil
	}
	after, err := dump.Stats(c.node(d.Node))
	if err != nil {
		return false, err
	}
	now, then := &snapshot.ConntrackStat{PerCPU: after}, &snapshot.ConntrackStat{PerCPU: before}
	for name, wanted := range d.When.Counters {
		if grown, ok := now.Delta(then, name); !ok || int64(grown) < wanted {
			return false, nil
		}
	}
	return true, nil
}

// Bounds of what a stage's report keeps of a trace.
const (
	mostSites     = 20
	mostFlows     = 10
	mostFunctions = 20
)

// profileHz makes shares of some percent out of stages that take a second. A sample
// costs 7 µs: 0.3 % of a CPU.
const profileHz = 499

// startTrace records what the stage says, in the node that it is about. A stage has
// few enough drops to record the flow of each.
func (c *conductor) startTrace(ctx context.Context, st *lab.Stage) *doctor.Tracer {
	return doctor.StartTrace(ctx, doctor.TraceOptions{
		Netns:      c.node(c.watched(st)),
		Drops:      slices.Contains(st.Trace, lab.TraceDrops),
		Profile:    slices.Contains(st.Trace, lab.TraceProfile),
		FlowSample: 1,
		Hz:         profileHz,
	})
}

// addTrace puts what was recorded, or why it was not, into the stage's report.
func addTrace(r *lab.StageReport, t snapshot.Trace) {
	r.Drops, r.Profile = t.Drops, t.Profile
	if d := r.Drops; d != nil {
		flows := joinPorts(d.Flows)
		d.Flows = flows[:min(len(flows), mostFlows)]
		d.Sites = d.Sites[:min(len(d.Sites), mostSites)]
	}
	if p := r.Profile; p != nil {
		p.Functions = p.Functions[:min(len(p.Functions), mostFunctions)]
	}
	for _, part := range t.Parts {
		if part.Error != "" {
			r.Untraced = append(r.Untraced, diagnose.Unread{What: part.Name, Why: part.Error})
		}
	}
}

// joinPorts sums flows up over the ports that they come from: each connection of a
// load has one of its own.
func joinPorts(flows []snapshot.DropFlow) []snapshot.DropFlow {
	sums := map[snapshot.DropFlow]uint64{}
	for _, f := range flows {
		n := f.Packets
		f.Source, f.Packets = f.SourceAddress(), 0
		sums[f] += n
	}
	joined := make([]snapshot.DropFlow, 0, len(sums))
	for f, n := range sums {
		f.Packets = n
		joined = append(joined, f)
	}
	slices.SortFunc(joined, func(a, b snapshot.DropFlow) int {
		return cmp.Or(cmp.Compare(b.Packets, a.Packets), cmp.Compare(a.Source, b.Source), cmp.Compare(a.Destination, b.Destination), cmp.Compare(a.Function, b.Function))
	})
	return joined
}
