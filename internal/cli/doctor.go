package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/doctor"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/apply"
)

type doctorFlags struct {
	target target
	window time.Duration
	from   string
	// memory is what a bundle may take, in MiB.
	memory uint32
	json   bool
	trace  bool
	fix    bool
	change changeFlags
}

// minWindow is the shortest time in which counters tell something.
const minWindow = 100 * time.Millisecond

func newDoctor(env *Env) *cobra.Command {
	f := &doctorFlags{}
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "find out what is wrong with NAT here, and cure it",
		Long: `Doctor looks twice at a network namespace, compares, and says what is wrong: the
evidence and where it was read, the cause, the consequence, and the remedies with
their cost and risk. It changes nothing unless --fix is given.

With --trace it also counts the packets that the kernel drops between the two looks,
by function and reason, samples the CPUs, and looks at the SYNs that come to the
namespace's listeners: evidence of what it finds, and the only way to find drops that
nothing else tells of, and SYNs that TIME_WAIT rejects by their sequence number. That
takes CAP_BPF and CAP_PERFMON (for eBPF programs on kernel tracepoints and CPU timers),
CAP_SYSLOG (for the names of kernel functions), CAP_NET_RAW (for SYNs), Linux 5.4, and
costs some 30 ns a drop and 0.1 % of a CPU, besides the SYNs. What cannot be had is
said, and the rest goes on.

Exit code: 0 nothing found, 3 there are findings (with --fix: there still are), 4 nothing
found, but the look was INCOMPLETE: data was missing that a check needs, as without root,
or what there is cannot be told apart. What was not asked for, such as --trace, is not
missing. 130: interrupted; what was seen until then is reported.`,
		Example: `  natkit doctor                          # this host
  natkit doctor --pid $(pgrep -o nginx)  # the namespace of a container's process
  natkit doctor --netns gw --for 10s     # one of 'ip netns list', over ten seconds
  natkit doctor --trace                  # also what the kernel drops, and what NAT costs
  natkit doctor --from bundle.tar.gz     # a bundle of 'natkit snapshot', any machine
  natkit doctor --fix                    # ask, apply, look again
  natkit doctor --fix --yes --confirm 60s   # rolled back without 'natkit tune confirm'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd, env) },
	}
	f.target.addFlags(cmd)
	addWindow(cmd, &f.window, 5*time.Second)
	cmd.Flags().StringVar(&f.from, "from", "", "diagnose a bundle `FILE` that 'natkit snapshot' wrote; - for standard input")
	cmd.Flags().Uint32Var(&f.memory, "max-memory", snapshot.DefaultBudget>>20, "with --from: `MiB` of memory that the bundle may take")
	addTrace(cmd, &f.trace)
	addJSON(cmd, &f.json, diagnose.ReportSchema)
	cmd.Flags().BoolVar(&f.fix, "fix", false, "apply the automatic remedies, and look again")
	f.change.addFlags(cmd, "with --fix: ")
	for _, live := range []string{"netns", "pid", "for", "trace", "fix"} {
		cmd.MarkFlagsMutuallyExclusive("from", live)
	}
	return cmd
}

func (f *doctorFlags) check(cmd *cobra.Command, env *Env) error {
	switch {
	case f.from == "" && cmd.Flags().Changed("max-memory"):
		return usagef("--max-memory requires --from")
	case !f.fix && f.change.given(cmd):
		return usagef("--yes, --confirm and --persist go with --fix")
	case f.fix && f.json && !f.change.yes:
		return errJSONAsks
	case f.fix && !f.change.yes && !env.StdinTerminal:
		return errNoTerminal
	}
	if err := checkWindow(f.window, minWindow); err != nil {
		return err
	}
	if f.change.confirm > 0 && f.change.confirm < f.window+confirmMargin {
		return usagef("--confirm %s: must be at least %s longer than --for (%s), as doctor looks again before you can judge",
			f.change.confirm, confirmMargin, f.window)
	}
	return f.change.check(cmd)
}

// confirmMargin is the time left to confirm after doctor looked again.
const confirmMargin = 10 * time.Second

// outcome is the JSON document: the report, and what was done about it.
type outcome struct {
	*diagnose.Report
	Fix *treatment `json:"fix,omitempty"`
}

// treatment is what --fix did; Remaining are the ids of the findings after it.
type treatment struct {
	*doctor.Treatment
	Remaining []string `json:"remaining"`
}

func (f *doctorFlags) run(cmd *cobra.Command, env *Env) error {
	if err := f.check(cmd, env); err != nil {
		return err
	}
	ns, err := f.target.open(cmd)
	if err != nil {
		return err
	}
	defer ns.Close()
	look := collect.RecordOptions{Options: collect.Options{Netns: ns}, For: f.window, Progress: env.progress().Show}
	if f.trace {
		look.Trace = doctor.Trace(ns)
	}
	first, err := f.first(cmd.Context(), env, look)
	if err != nil {
		return err
	}
	out, final := outcome{Report: first}, first
	if !f.json {
		if err := f.print(env, first); err != nil {
			return err
		}
	}
	if f.fix && cmd.Context().Err() == nil {
		done, err := f.treat(cmd.Context(), env, look, first)
		if err != nil {
			return err
		}
		final = done.Last(first)
		out.Fix = &treatment{done, final.IDs()}
	}
	if f.json {
		if err := report.JSON(env.Stdout, out); err != nil {
			return err
		}
	}
	return verdict(cmd.Context(), final)
}

// verdict is the exit code's error: that the look was cut short, findings, or that
// something could not be checked, which must not look like health.
func verdict(ctx context.Context, r *diagnose.Report) error {
	switch {
	case ctx.Err() != nil:
		return errCutShort
	case len(r.Findings) > 0:
		return errFindings
	case len(r.Incomplete) > 0:
		return errIncomplete
	}
	return nil
}

// first is the report that the verb begins with, live or of a bundle.
func (f *doctorFlags) first(ctx context.Context, env *Env, look collect.RecordOptions) (*diagnose.Report, error) {
	if f.from != "" {
		return f.readBundle(env)
	}
	return lookOnce(ctx, env, look)
}

func lookOnce(ctx context.Context, env *Env, look collect.RecordOptions) (*diagnose.Report, error) {
	rec, r, err := doctor.Look(ctx, look)
	look.Progress("")
	env.detailParts(rec)
	if err == nil && ctx.Err() != nil {
		r.CutShort(look.For)
	}
	return r, err
}

// print writes the report, and how to go on from it.
func (f *doctorFlags) print(env *Env, r *diagnose.Report) error {
	if err := report.Doctor(env.Stdout, env.style(), r); err != nil {
		return err
	}
	automatic := len(r.Plan(doctor.Origin).Changes) > 0
	switch {
	case automatic && !f.fix && f.from == "":
		return env.say("\nTo apply the remedy (asks first; 'natkit tune undo' takes it back):\n  %s doctor%s --fix\n",
			howCalled(env.Getenv), f.target.args())
	case !automatic && f.fix && len(r.Findings) > 0:
		return env.say("\nnone of these can be fixed automatically; see the advice above\n")
	}
	return nil
}

func (f *doctorFlags) readBundle(env *Env) (*diagnose.Report, error) {
	rec, err := readBundleFile(env, f.from, int64(f.memory)<<20)
	if err != nil {
		return nil, err
	}
	found := diagnose.Run(rec, diagnose.Rules())
	return &found, nil
}

func (f *doctorFlags) treat(ctx context.Context, env *Env, look collect.RecordOptions, first *diagnose.Report) (*doctor.Treatment, error) {
	text := env.Stdout
	if f.json {
		text = io.Discard
	}
	journal, err := env.journal()
	if err != nil {
		return nil, err
	}
	opt := apply.Options{Journal: journal}
	f.change.fill(&opt)
	return doctor.Treat(ctx, first, doctor.Options{
		Look:  func(ctx context.Context) (*diagnose.Report, error) { return lookOnce(ctx, env, look) },
		Apply: opt,
		Agree: func(plan tune.Plan) (bool, error) { return f.agree(ctx, env, text, plan, opt) },
		Applied: func(a *apply.Applied) {
			tx := a.Transaction()
			printApplied(text, env.style(), &tx)
		},
		Round: func(r doctor.Round) {
			fmt.Fprint(text, "\nAfter the change\n\n")
			report.Doctor(text, env.style(), r.After)
		},
	})
}

// agree shows the plan, and asks unless --yes said it already.
func (f *doctorFlags) agree(ctx context.Context, env *Env, text io.Writer, plan tune.Plan, opt apply.Options) (bool, error) {
	planned := report.Planned{Changes: plan.Changes, FilesWait: f.change.confirm > 0}
	if f.change.persist {
		var err error
		if planned.Files, planned.Warnings, err = planFiles(plan, opt); err != nil {
			return false, err
		}
	}
	fmt.Fprintln(text)
	if err := report.Plan(text, env.style(), planned); err != nil {
		return false, err
	}
	if f.change.yes {
		return true, nil
	}
	return env.askToApply(ctx, text)
}
