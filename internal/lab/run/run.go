// Package run conducts a scenario: it has the lab built, drives the load through
// it stage by stage, runs doctor and its remedies, and restores everything.
package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/lab/build"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/tune/apply"
	"github.com/natkit/natkit/internal/tune/journal"
)

// Options specify how to run a scenario.
type Options struct {
	// Dir is where labs keep their lock; empty means build.DefaultDir.
	Dir    string
	Server build.ServerKind
	// Journal remembers what is changed on the host.
	Journal *journal.Journal
	// LowerMax, where not 0, makes a full table by lowering the host's
	// nf_conntrack_max to it, instead of filling the table.
	LowerMax int64
	// Force lowers the maximum even where other namespaces use more than half of it.
	Force bool
	// AllowHost is the consent to stages that change values of the whole host.
	AllowHost bool
	// Bundle, where set, gives what doctor's reading of a stage is written to, as a bundle;
	// nil for none. Stages that are apart ask at the same time.
	Bundle func(stage string) io.Writer
	// Beside, where set, is called with the stage and the namespace that doctor reads; what it returns is called
	// whenever doctor begins to read.
	Beside func(stage string, ns *netns.Handle) func(what string)
	// Capture selects whether packets are captured.
	Capture CaptureOptions
	// Version is natkit's, for the report.
	Version string
	// Progress, where set, often gets what is being done.
	Progress func(string)
	// Clock is time.Now where nil.
	Clock func() time.Time

	// locked: the caller has the lock that lets one lab run at a time.
	locked bool
}

// begin completes the options, and returns an error if something is missing to build labs.
func (o *Options) begin() error {
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	return build.CheckPrivilege()
}

// conductor is a run in progress.
type conductor struct {
	Options
	sc     *lab.Scenario
	lab    *build.Lab
	report *lab.Report
	// hostMax is the host's nf_conntrack_max before anything was changed.
	hostMax int64
	// host are the values of the whole host that the present stage wants.
	host map[string]string
	// applied is what was changed on the host, in this order.
	applied []*apply.Applied
	// emptyBytes is the least that the slabs of entries were seen to hold before
	// the table was filled.
	emptyBytes int64
	// slow: this machine is too slow for several labs at once.
	slow bool
	// found is the newest report of doctor.
	found *diagnose.Report
}

// errLabEnded: the lab's first process was killed, and with it all others in the lab.
var errLabEnded = errors.New("the lab was ended from outside: its first process (natkit-lab-init) is gone")

// errNeedsHost: the scenario needs a consent that was not given.
var errNeedsHost = errors.New("it changes values of the whole host, which hold for every network namespace, for the time of a stage (they are journaled and put back): --allow-host allows it")

// Run runs a scenario from the building of the lab to its removal. The report is
// nil when the lab could not be built or a stage could not be run; that of a run that held connections
// and was interrupted has what was reached, beside the error. Host values
// are put back in any case, and an error says where that failed.
func Run(ctx context.Context, sc *lab.Scenario, o Options) (*lab.Report, error) {
	if err := o.begin(); err != nil {
		return nil, fmt.Errorf("lab %s: %w", sc.Name, err)
	}
	if sc.NeedsHost() && !o.AllowHost {
		return nil, fmt.Errorf("lab %s: %w", sc.Name, errNeedsHost)
	}
	if err := mayHold(sc); err != nil {
		return nil, fmt.Errorf("lab %s: %w", sc.Name, err)
	}
	var left []lab.Stage
	if !o.AllowHost {
		sc, left = sc.WithoutHost()
	}
	if !o.locked {
		lock, err := build.Lock(o.Dir)
		if err != nil {
			return nil, err
		}
		defer lock.Close()
	}
	c := &conductor{Options: o, sc: sc}
	started := o.Clock()
	c.report = &lab.Report{
		Schema:   lab.ReportSchema,
		Scenario: sc.Name,
		Title:    sc.Title,
		Version:  o.Version,
		Started:  started.UTC(),
		CPUs:     runtime.NumCPU(),
		Topology: sc.Lines(),
		Findings: []diagnose.Finding{},
	}
	for _, st := range left {
		c.report.LeftOut = append(c.report.LeftOut, st.Name)
	}
	err := c.conduct(ctx)
	if back := c.restore(); back != nil {
		return nil, notRestored(back, err)
	}
	c.report.Interrupted = ctx.Err() != nil && slices.ContainsFunc(c.report.Stages, func(s lab.StageReport) bool { return s.Held() != nil })
	if err != nil && !c.report.Interrupted {
		return nil, err
	}
	c.judge()
	c.report.Seconds = o.Clock().Sub(started).Seconds()
	return c.report, err
}

// notRestored must not read as the mere interruption that may have come before:
// after Ctrl-C that would mean that everything is restored.
func notRestored(back, before error) error {
	if before == nil {
		return back
	}
	return fmt.Errorf("%w (after: %v)", back, before)
}

func (c *conductor) conduct(ctx context.Context) (err error) {
	if c.hostMax, err = build.ConntrackMax(); err != nil {
		return err
	}
	if c.LowerMax > 0 { // better refused now than after two stages
		if c.sc, err = c.lowered(); err != nil {
			return err
		}
	}
	if err = c.mayLowerHost(); err != nil {
		return err
	}
	c.Progress("building " + c.sc.Name)
	began := c.Clock()
	if err = c.build(ctx, new(sync.Mutex)); c.lab == nil {
		return err
	}
	ctx, stop := c.untilEnded(ctx)
	defer stop()
	if err != nil {
		return fmt.Errorf("lab %s: %w", c.sc.Name, err)
	}
	c.slow = c.Clock().Sub(began) > slowBuild
	empty, err := c.sample(ctx, c.sc.Topology.Nodes[0].Name)
	if err != nil {
		return err
	}
	c.report.Kernel, c.emptyBytes = empty.Kernel.Release, slabBytes(empty)
	if err := c.stages(ctx); err != nil {
		return err
	}
	c.compareRates()
	return nil
}

// restore puts the host's values back, the newest first, and removes the lab. What was
// changed in the lab's own nodes is there until then.
func (c *conductor) restore() error {
	c.Progress("putting host values back, removing the lab")
	restored, err := c.undoHost()
	if c.lab != nil {
		err = errors.Join(err, c.lab.Close())
	}
	if err != nil {
		return &restoreError{err}
	}
	if c.report.Fix != nil {
		c.report.Fix.Restored = restored
	}
	return nil
}

// restoreError reports what could not be restored.
type restoreError struct{ cause error }

func (e *restoreError) Error() string { return "put everything back: " + e.cause.Error() }

func (e *restoreError) Unwrap() error { return e.cause }

// undone reports whether every value was restored: one that another process has
// changed since is left as it is.
func undone(tx *journal.Transaction) bool {
	return !slices.ContainsFunc(tx.Changes, func(c journal.Change) bool { return c.State != journal.Undone })
}

// tcpOfNodes is how TCP of each node stands.
type tcpOfNodes map[string]*snapshot.TCP

func (c *conductor) readTCP() (tcpOfNodes, error) {
	all := tcpOfNodes{}
	for _, n := range c.lab.Nodes() {
		tcp, err := collect.ReadTCP(n.Netns)
		if err != nil {
			return nil, fmt.Errorf("read the TCP counters of %s: %w", n.Name, err)
		}
		all[n.Name] = tcp
	}
	return all, nil
}

// addTCP adds to a stage's report the TCP counters of each node and the outcome of the
// handshakes of its load.
func (c *conductor) addTCP(st *lab.Stage, r *lab.StageReport, before, after tcpOfNodes) {
	r.TCP = map[string]snapshot.Counters{}
	for name, now := range after {
		r.TCP[name] = now.Counters.Grown(before[name].Counters)
		maps.DeleteFunc(r.TCP[name], func(counter string, _ uint64) bool { return !strings.HasPrefix(counter, "Tcp") })
	}
	server := c.sc.Topology.Server.Node
	if l, ok := c.sc.HTTP(st); ok {
		r.Handshakes = lab.HandshakesOf(r.TCP[l.From], r.TCP[server], after[server], &r.Result)
	}
}
