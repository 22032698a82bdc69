package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/fleet"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/snapshot"
)

// doctorVerb is the verb doctor.
type doctorVerb struct {
	env    *Env
	target target
	window time.Duration
	// from are the recordings of other hosts; of one alone the report is that of a host.
	from []string
	// pages are what a comparison of several is written to.
	pages outFiles[*fleet.Report]
	// of is whose texts of From are read, where there are several.
	of string
	// at is the time in a recording.
	at moment
	// memory is what a bundle may take, in MiB.
	memory uint32
	trace  bool
	all    bool
	fix    bool
	change changeFlags
	watch  watchFlags
	// rules lists the failure modes instead.
	rules  bool
	tables tableFlags
	// table is where findings go instead of stdout; nil where they do not.
	table *findingTable
}

// minWindow is the shortest time between two samples that can be compared.
const minWindow = 100 * time.Millisecond

// bundleInstead is what can be done without Linux.
const bundleInstead = "run 'natkit snapshot' there, copy its file, and use --from FILE"

// confirmMargin is the time left to confirm after doctor diagnosed again.
const confirmMargin = 10 * time.Second

func newDoctor(env *Env) *cobra.Command {
	d := &doctorVerb{env: env, pages: fleetPages()}
	cmd := &cobra.Command{
		Use:   "doctor [FILE…]",
		Short: "find what is wrong with NAT here, and fix it",
		Long: `Sample a network namespace twice, compare, and report what is wrong: the evidence
and its source, the cause, the consequence, and the remedies with their cost and risk.
The last line counts the checks; --verbose lists them. Nothing is changed without --fix.

With --trace it also counts dropped packets, samples the CPUs and captures SYNs between
the two samples: the only way to find drops without a counter and SYNs that TIME_WAIT
rejects by their sequence number. Requires Linux 5.4, CAP_BPF, CAP_PERFMON, CAP_SYSLOG
and CAP_NET_RAW; what is not available is reported, and the rest continues.

On the host, and not in a chosen namespace, the other network namespaces are read as well,
by their counters and one dump of each table, within 2 s: for each with a fault it reports
what is wrong, whose it is and the command that examines it. --all-netns examines all of
them in full.

With --from and several bundles, or a directory of them, it compares nodes: equal findings
are one, with the nodes that have it, what these share and the others do not, in counts,
the nodes in the order of what is wrong, and numbers that stand out. Of the same node the
newest bundle counts. docs/fleet.md is about many nodes.

With --watch it examines the chosen namespace alone, again and again, and prints what
changes: findings that come, change their severity or go, and checks that come to no
result. What flaps is counted, and goes when it is over. Reports take 1 % of a CPU at most,
or come later, and readings of the connection table as much besides.

Exit codes: 0 no findings, or notices alone, 1 error, 2 usage, 3 a finding of severity
warning or critical (with --fix: still), 4 none of these, but INCOMPLETE: data that a
check needs could not be read, as without root or of a truncated file, or a check itself
has a defect.
130: interrupted; the report covers the time until then (--watch: as by what stands then).`,
		Example: `  natkit doctor                          # this host
  natkit doctor --pid $(pgrep -o nginx)  # the namespace of a container's process
  natkit doctor --netns gw --for 10s     # one of 'ip netns list', over ten seconds
  natkit doctor --all-netns              # all network namespaces, containers' too, in full
  natkit doctor --trace                  # also what the kernel drops, and what NAT costs
  natkit doctor --from bundle.tar.gz     # a bundle of 'natkit snapshot', any machine
  natkit doctor --from sosreport.tar.xz  # or what other programs printed there, also in a directory
  natkit doctor --from /var/lib/natkit/record --at 10:15   # what 'natkit record' has of that time
  natkit doctor --from bundles/          # a directory with bundles of many nodes, compared
  natkit doctor --from a.tar.gz b.tar.gz c.tar.gz --html fleet.html
  natkit doctor --fix                    # ask, apply, diagnose again
  natkit doctor --fix --yes --confirm 60s   # rolled back without 'natkit tune confirm'
  natkit doctor --watch --every 30s      # what changes, until Ctrl-C
  natkit doctor --watch --exec 'logger -t natkit "$NATKIT_EVENT $NATKIT_ID: $NATKIT_TITLE"'
  natkit doctor --all-netns -o parquet --to s3://nat/tables   # findings/day=…/node=…/
  natkit doctor --rules                  # the failure modes, and which of them it reports`,
	}
	d.target.runs(cmd, func(ctx context.Context, ns *netns.Handle, args []string) error {
		return d.withTable(ctx, cmd, func() error { return d.runIn(ctx, cmd, ns, args) })
	})
	d.addFlags(cmd)
	return cmd
}

// runIn runs what the flags choose.
func (d *doctorVerb) runIn(ctx context.Context, cmd *cobra.Command, ns *netns.Handle, args []string) error {
	if len(args) > 0 && len(d.from) == 0 {
		return usagef("unexpected argument %q: files are read with --from", args[0])
	}
	if d.rules {
		return d.env.print(report.NewModes())
	}
	if d.trace && !cmd.Flags().Changed("for") {
		d.window = tracedWindow
	}
	if err := d.check(); err != nil {
		return err
	}
	switch {
	case d.watch.on:
		return d.watchFor(ctx, ns)
	case d.all:
		return d.runAll(ctx)
	case len(d.from) > 0:
		return d.runFrom(ctx, sourceNames(d.from, args))
	}
	return d.run(ctx, ns)
}

func (d *doctorVerb) addFlags(cmd *cobra.Command) {
	addWindow(cmd, &d.window, usualWindow, minWindow)
	cmd.Flags().Var(d.addFrom(), "from", "diagnose another host by a bundle `FILE` of 'natkit snapshot', a recording of 'natkit record', or by what other programs printed there: a directory, an archive (sosreport, must-gather) or a file; - for standard input; a directory with bundles, or several files (also as arguments), are nodes to compare")
	addAt(cmd, &d.at, "with --from and a directory of 'natkit record': diagnose the `TIME` 10:15, 2026-11-20T10:15:00, -2h, …")
	cmd.Flags().StringVar(&d.of, "of", "", "with --from and texts of several hosts or network namespaces: those of `HOST[/NETNS]`")
	cmd.Flags().Uint32Var(&d.memory, "max-memory", snapshot.DefaultBudget>>20, "with --from: `MiB` of memory that the bundle may take")
	addTrace(cmd, &d.trace)
	cmd.Flags().Lookup("trace").Usage += "; --for is then 10s by default"
	d.tables.addFlags(d.env, cmd)
	d.env.addJSON(cmd, diagnose.ReportSchema+", of several nodes "+fleet.Schema+", with --rules "+diagnose.ModesSchema+"; with --watch lines, "+diagnose.EventSchema)
	cmd.Flags().BoolVar(&d.rules, "rules", false, "list the failure modes, the findings that report them and the scenarios that make them; diagnose nothing")
	cmd.Flags().BoolVar(&d.fix, "fix", false, "apply the automatic remedies, and diagnose again")
	d.change.addFlags(cmd)
	cmd.Flags().BoolVar(&d.all, "all-netns", false, "examine every network namespace in full; with --json a line for each")
	d.watch.addFlags(cmd)
	for _, other := range []string{"from", "rules", "for", "trace", "fix", "all-netns"} {
		cmd.MarkFlagsMutuallyExclusive("watch", other)
	}
	for _, live := range []string{"netns", "pid", "for", "trace", "fix", "all-netns"} {
		cmd.MarkFlagsMutuallyExclusive("from", live)
		cmd.MarkFlagsMutuallyExclusive("rules", live)
	}
	for _, one := range []string{"netns", "pid", "trace", "fix"} {
		cmd.MarkFlagsMutuallyExclusive("all-netns", one)
	}
	cmd.MarkFlagsMutuallyExclusive("rules", "from")
	requires(cmd, "max-memory", "from")
	requires(cmd, "of", "from")
	d.pages.addTo(cmd.Flags())
	requires(cmd, "html", "from")
	requires(cmd, "at", "from")
	for _, change := range []string{"yes", "confirm", "persist"} {
		requires(cmd, change, "fix")
	}
}

// watchFlags are those of doctor --watch.
type watchFlags struct {
	on    bool
	every time.Duration
	exec  string
	limit time.Duration
}

// Bounds and defaults of --every and --exec-time.
const (
	usualEvery    = 10 * time.Second
	minEvery      = time.Second
	maxEvery      = 24 * time.Hour
	usualExecTime = 30 * time.Second
	maxExecTime   = time.Hour
)

func (f *watchFlags) addFlags(cmd *cobra.Command) {
	f.every, f.limit = usualEvery, usualExecTime
	cmd.Flags().BoolVar(&f.on, "watch", false, "examine again and again, and print what changes, a line each, until interrupted")
	cmd.Flags().Var(period(&f.every, minEvery, maxEvery), "every", "with --watch: time from one report to the next: seconds or 500ms, 1m, …")
	cmd.Flags().Var(into(&f.exec, notEmpty("a command")), "exec", "with --watch: run `CMD` by /bin/sh for each change, with NATKIT_EVENT, NATKIT_ID, NATKIT_SEVERITY, … and the change as JSON on stdin")
	cmd.Flags().Var(period(&f.limit, minEvery, maxExecTime), "exec-time", "with --exec: time after which the command is killed")
	for _, flag := range []string{"every", "exec"} {
		requires(cmd, flag, "watch")
	}
	requires(cmd, "exec-time", "exec")
}

// The time between the samples: with a trace longer, as its start and end cost as much as some seconds of it, and what
// comes twice a second is to be seen more than ten times.
const (
	usualWindow  = 5 * time.Second
	tracedWindow = 10 * time.Second
)

// check refuses before the samples what would be refused after them.
func (d *doctorVerb) check() error {
	switch {
	case d.fix && d.env.asJSON && !d.change.yes:
		return errJSONAsks
	case d.fix && !d.change.yes && !d.env.StdinTerminal:
		return errNoTerminal
	case d.change.confirm > 0 && d.change.confirm < d.window+confirmMargin:
		return usagef("--confirm %s: must be at least %s longer than --for (%s), as doctor diagnoses again before you can judge",
			d.change.confirm, confirmMargin, d.window)
	}
	return nil
}

// outcome is the JSON document: the report, and what was done about it.
type outcome struct {
	*diagnose.Report
	Fix *treatment `json:"fix,omitempty"`
}

func (d *doctorVerb) run(ctx context.Context, ns *netns.Handle) error {
	collectSeldom()
	look := collect.RecordOptions{Options: collect.Options{Netns: ns}, For: d.window, Progress: d.env.progress().Show}
	if err := needsLinux("diagnose a host", bundleInstead); err != nil {
		return err
	}
	d.addLive(&look)
	first, err := d.diagnose(ctx, look)
	if err != nil {
		return err
	}
	out, final := outcome{Report: first}, first
	next := ""
	switch automatic := len(first.Plan("").Changes) > 0; {
	case automatic && !d.fix:
		next = fmt.Sprintf("To apply the remedy (asks first; 'natkit tune undo' takes it back):\n  %s doctor%s --fix", howCalled(d.env.Getenv), d.target.args())
	case !automatic && d.fix && len(first.Findings) > 0:
		next = "none of these can be fixed automatically; see the advice above"
	}
	if err := d.text(first, next); err != nil {
		return err
	}
	if d.fix && ctx.Err() == nil {
		if out.Fix, err = d.treat(ctx, look, first); err != nil {
			return err
		}
		final = out.Fix.Last(first)
	}
	switch {
	case d.table != nil:
		err = d.table.add(final)
	case d.env.asJSON:
		err = report.JSON(d.env.Stdout, out)
	}
	if err != nil {
		return err
	}
	return verdict(ctx, final)
}

// text writes a report, unless there is a document at the end.
func (d *doctorVerb) text(r *diagnose.Report, next string) error {
	if d.env.asJSON || d.table != nil {
		return nil
	}
	return report.Doctor(d.env.Stdout, d.env.style(), r, d.env.verbose, next)
}

// verdict is the exit code's error: the samples were cut short, there are findings that need action (notices do
// not), or something could not be checked, which must not be taken for health.
func verdict(ctx context.Context, r *diagnose.Report) error {
	switch {
	case ctx.Err() != nil:
		return errCutShort
	case slices.ContainsFunc(r.Findings, func(f diagnose.Finding) bool { return f.Severity >= diagnose.Warning }):
		return errFindings
	case len(r.Incomplete)+len(r.Lost)+len(r.Defects) > 0:
		return errIncomplete
	}
	return nil
}

// next prints one of several reports, and adds what decides the exit code to sum.
func (d *doctorVerb) next(sum, r *diagnose.Report, first bool) error {
	sum.Findings, sum.Incomplete = append(sum.Findings, r.Findings...), append(sum.Incomplete, r.Incomplete...)
	sum.Lost, sum.Defects = append(sum.Lost, r.Lost...), append(sum.Defects, r.Defects...)
	if d.table != nil {
		return d.table.add(r)
	}
	if d.env.asJSON {
		return report.JSONLine(d.env.Stdout, r)
	}
	if !first {
		fmt.Fprintln(d.env.Stdout)
	}
	if r.Owner != nil {
		fmt.Fprintln(d.env.Stdout, d.env.style().Paint(report.Bold, report.Clean(r.Owner.String())))
	}
	return report.Doctor(d.env.Stdout, d.env.style(), r, d.env.verbose, commandsThere(r))
}

// commandsThere is the last word on a host that is not this one.
func commandsThere(r *diagnose.Report) string {
	advised := func(f diagnose.Finding) bool { return len(f.Remedies) > 0 }
	if !r.Elsewhere || !slices.ContainsFunc(r.Findings, advised) {
		return ""
	}
	return "Commands in the advice are for the host of the recording; they would change this one."
}

// addFrom is the value of --from, which may be repeated.
func (d *doctorVerb) addFrom() *value {
	return &value{kind: repeatable, set: func(text string) error {
		name, err := notEmpty("a file")(text)
		d.from = append(d.from, name)
		return err
	}}
}

// runFrom diagnoses what was recorded: one recording, several network namespaces of a bundle, or those of several nodes.
func (d *doctorVerb) runFrom(ctx context.Context, names []string) error {
	several, err := findNodes(ctx, names)
	if err != nil {
		return err
	}
	if several != nil {
		return d.runFleet(ctx, several)
	}
	if d.pages[0].name != "" {
		return oneRecording(names[0])
	}
	reports, err := d.reports(ctx, names[0])
	if err != nil {
		return err
	}
	if len(reports) == 1 {
		switch {
		case d.table != nil:
			err = d.table.add(reports[0])
		case d.env.asJSON:
			err = report.JSON(d.env.Stdout, reports[0])
		default:
			err = d.text(reports[0], commandsThere(reports[0]))
		}
		if err != nil {
			return err
		}
		return verdict(ctx, reports[0])
	}
	sum := diagnose.Report{}
	for i, r := range reports {
		if err := d.next(&sum, r, i == 0); err != nil {
			return err
		}
	}
	return verdict(ctx, &sum)
}

func (d *doctorVerb) reports(ctx context.Context, name string) (all []*diagnose.Report, err error) {
	err = d.env.eachRecorded(ctx, recorded{name: name, host: d.of, at: d.at, memory: int64(d.memory) << 20}, func(rec *snapshot.Recording) error {
		if d.env.numeric {
			rec.Last().Names, rec.First().Names = nil, nil
		}
		r := diagnose.Run(rec, diagnose.Rules())
		r.Owner = rec.Owner
		all = append(all, &r)
		if d.env.asJSON || d.table != nil {
			d.env.noteCompared(r.Compared)
		}
		return nil
	})
	if damage := (*snapshot.DamageError)(nil); errors.As(err, &damage) && len(all) > 0 {
		last := all[len(all)-1]
		last.Lost, err = append(last.Lost, damage.Error()), nil
	}
	return all, err
}
