package cli

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/snapshot"
)

// doctorVerb is the verb doctor.
type doctorVerb struct {
	env    *Env
	target target
	window time.Duration
	from   string
	// of is whose texts of From are read, where there are several.
	of string
	// memory is what a bundle may take, in MiB.
	memory uint32
	trace  bool
	all    bool
	fix    bool
	change changeFlags
	// rules lists the failure modes instead.
	rules bool
}

// minWindow is the shortest time between two samples that can be compared.
const minWindow = 100 * time.Millisecond

// bundleInstead is what can be done without Linux.
const bundleInstead = "run 'natkit snapshot' there, copy its file, and use --from FILE"

// confirmMargin is the time left to confirm after doctor diagnosed again.
const confirmMargin = 10 * time.Second

func newDoctor(env *Env) *cobra.Command {
	d := &doctorVerb{env: env}
	cmd := &cobra.Command{
		Use:   "doctor",
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

Exit codes: 0 no findings, or notices alone, 1 error, 2 usage, 3 a finding of severity
warning or critical (with --fix: still), 4 none of these, but INCOMPLETE: data that a
check needs could not be read, as without root.
130: interrupted; the report covers the time until then.`,
		Example: `  natkit doctor                          # this host
  natkit doctor --pid $(pgrep -o nginx)  # the namespace of a container's process
  natkit doctor --netns gw --for 10s     # one of 'ip netns list', over ten seconds
  natkit doctor --all-netns              # all network namespaces, containers' too, in full
  natkit doctor --trace                  # also what the kernel drops, and what NAT costs
  natkit doctor --from bundle.tar.gz     # a bundle of 'natkit snapshot', any machine
  natkit doctor --from sosreport.tar.xz  # or what other programs printed there, also in a directory
  natkit doctor --fix                    # ask, apply, diagnose again
  natkit doctor --fix --yes --confirm 60s   # rolled back without 'natkit tune confirm'
  natkit doctor --rules                  # the failure modes, and which of them it reports`,
	}
	d.target.runs(cmd, func(ctx context.Context, ns *netns.Handle, _ []string) error {
		if d.rules {
			return env.print(report.NewModes())
		}
		if d.trace && !cmd.Flags().Changed("for") {
			d.window = tracedWindow
		}
		if err := d.check(); err != nil {
			return err
		}
		if d.all {
			return d.runAll(ctx)
		}
		return d.run(ctx, ns)
	})
	addWindow(cmd, &d.window, usualWindow, minWindow)
	cmd.Flags().StringVar(&d.from, "from", "", "diagnose another host by a bundle `FILE` of 'natkit snapshot', or by what other programs printed there: a directory, an archive (sosreport, must-gather) or a file; - for standard input")
	cmd.Flags().StringVar(&d.of, "of", "", "with --from and texts of several hosts or network namespaces: those of `HOST[/NETNS]`")
	cmd.Flags().Uint32Var(&d.memory, "max-memory", snapshot.DefaultBudget>>20, "with --from: `MiB` of memory that the bundle may take")
	addTrace(cmd, &d.trace)
	cmd.Flags().Lookup("trace").Usage += "; --for is then 10s by default"
	env.addJSON(cmd, diagnose.ReportSchema+", with --rules "+diagnose.ModesSchema)
	cmd.Flags().BoolVar(&d.rules, "rules", false, "list the failure modes, the findings that report them and the scenarios that make them; diagnose nothing")
	cmd.Flags().BoolVar(&d.fix, "fix", false, "apply the automatic remedies, and diagnose again")
	d.change.addFlags(cmd)
	cmd.Flags().BoolVar(&d.all, "all-netns", false, "examine every network namespace in full; with --json a line for each")
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
	for _, change := range []string{"yes", "confirm", "persist"} {
		requires(cmd, change, "fix")
	}
	return cmd
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
	if d.from == "" {
		if err := needsLinux("diagnose a host", bundleInstead); err != nil {
			return err
		}
		d.addLive(&look)
	}
	first, err := d.first(ctx, look)
	if err != nil {
		return err
	}
	out, final := outcome{Report: first}, first
	next := ""
	switch automatic := len(first.Plan("").Changes) > 0; {
	case automatic && !d.fix && d.from == "":
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
	if d.env.asJSON {
		if err := report.JSON(d.env.Stdout, out); err != nil {
			return err
		}
	}
	return verdict(ctx, final)
}

// text writes a report, unless there is a document at the end.
func (d *doctorVerb) text(r *diagnose.Report, next string) error {
	if d.env.asJSON {
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
	case len(r.Incomplete) > 0:
		return errIncomplete
	}
	return nil
}

// first is the report that the verb begins with, live or of a bundle.
func (d *doctorVerb) first(ctx context.Context, look collect.RecordOptions) (*diagnose.Report, error) {
	if d.from == "" {
		return d.diagnose(ctx, look)
	}
	rec, err := d.env.readRecorded(ctx, recorded{name: d.from, host: d.of, memory: int64(d.memory) << 20})
	if err != nil {
		return nil, err
	}
	found := diagnose.Run(rec, diagnose.Rules())
	return &found, nil
}
