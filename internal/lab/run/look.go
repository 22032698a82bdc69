package run

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/doctor"
	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/snapshot"
)

// startDoctor lets doctor look at a node while the loads run, as it would at any
// host. The returned function waits for it, keeps its report, and returns it (nil
// where it does not look in this stage).
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
		l.say("doctor looks at " + st.Doctor.Node + why)
		o := collect.RecordOptions{
			Options: collect.Options{Netns: c.node(st.Doctor.Node), MaxEntries: sample},
			For:     st.Doctor.For.Duration,
		}
		if st.Doctor.Trace {
			o.Trace = doctor.Trace(o.Netns)
		}
		_, r, err := doctor.Look(ctx, o)
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

// addLook tells in a stage's report what doctor found, and what it could not check.
func addLook(r *lab.StageReport, looked *diagnose.Report) {
	if looked == nil {
		return
	}
	r.Found = looked.IDs()
	for _, check := range looked.Checks {
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

// conditionTick is how often the condition is looked at on which doctor begins.
const conditionTick = 10 * time.Millisecond

// Why doctor begins, where it has a condition.
const (
	asWanted = ", as wanted"
	loadOver = ", as the load is over"
)

// await returns when doctor is to begin, and why: after its time, once its condition
// holds, or when the loads are over.
func (c *conductor) await(ctx context.Context, d *lab.Doctor, l *loads) (why string, err error) {
	if err := wait(ctx, d.After.Duration); err != nil || d.When == nil {
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
