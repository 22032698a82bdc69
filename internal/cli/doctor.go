package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/doctor"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/apply"
)

type doctorFlags struct {
	target target
	window time.Duration
	from   string
	json   bool
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

Exit code: 0 nothing found, 3 there are findings (with --fix: there still are).

Without root it does what it can, and says what it could not read and why.`,
		Example: `  natkit doctor                          # this host
  natkit doctor --pid $(pgrep -o nginx)  # the namespace of a container's process
  natkit doctor --netns gw --for 10s     # one of 'ip netns list', over ten seconds
  natkit doctor --from bundle.tar.gz     # a bundle of 'natkit snapshot', any machine
  natkit doctor --fix                    # ask, apply, look again
  natkit doctor --fix --yes --confirm 60s   # undone by itself without 'natkit tune confirm'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd, env) },
	}
	f.target.addFlags(cmd)
	addWindow(cmd, &f.window, 5*time.Second)
	cmd.Flags().StringVar(&f.from, "from", "", "diagnose a bundle `FILE` that 'natkit snapshot' wrote; - for standard input")
	addJSON(cmd, &f.json, diagnose.ReportSchema)
	cmd.Flags().BoolVar(&f.fix, "fix", false, "apply the automatic remedies, and look again")
	f.change.addFlags(cmd, "with --fix: ")
	return cmd
}

func (f *doctorFlags) check(cmd *cobra.Command, env *Env) error {
	changed := cmd.Flags().Changed
	switch {
	case f.from != "" && f.fix:
		return usagef("--fix works on a running kernel, not on a bundle (--from)")
	case f.from != "" && (changed("netns") || changed("pid") || changed("for")):
		return usagef("--from takes its namespace and time from the bundle: leave out --netns, --pid and --for")
	case !f.fix && f.change.given(cmd):
		return usagef("--yes, --confirm and --persist go with --fix")
	case f.fix && f.json && !f.change.yes:
		return usagef("--json with --fix needs --yes: there is no one to ask")
	case f.fix && !f.change.yes && !env.StdinTerminal:
		return usagef("--fix asks before it changes anything, and there is no terminal to ask on: add --yes, or leave out --fix to see the remedies")
	}
	if err := checkWindow(f.window, minWindow); err != nil {
		return err
	}
	return f.change.check(cmd)
}

// outcome is the JSON document: the report, and what was done about it.
type outcome struct {
	*diagnose.Report
	Fix *doctor.Treatment `json:"fix,omitempty"`
}

func (f *doctorFlags) run(cmd *cobra.Command, env *Env) error {
	if err := f.check(cmd, env); err != nil {
		return err
	}
	ctx := cmd.Context()
	look, done, err := f.look(cmd, env)
	if err != nil {
		return err
	}
	defer done()
	var first *diagnose.Report
	if f.from != "" {
		first, err = f.readBundle(env)
	} else {
		_, first, err = doctor.Look(ctx, look)
	}
	look.Progress("")
	if err != nil {
		return err
	}
	out := outcome{Report: first}
	if !f.json {
		if err := report.Doctor(env.Stdout, env.style(), first); err != nil {
			return err
		}
	}
	final := first
	if f.fix {
		out.Fix, err = f.treat(ctx, env, look, first)
		if err != nil {
			return err
		}
		final = out.Fix.Last(first)
	}
	if f.json {
		if err := report.JSON(env.Stdout, out); err != nil {
			return err
		}
	}
	if len(final.Findings) > 0 {
		return errFindings
	}
	return nil
}

// look prepares the recording of the chosen namespace; done lets go of it.
func (f *doctorFlags) look(cmd *cobra.Command, env *Env) (o collect.RecordOptions, done func(), err error) {
	ns, err := f.target.open(cmd)
	if err != nil {
		return o, nil, err
	}
	progress := env.progress()
	o = collect.RecordOptions{
		Options: collect.Options{Netns: ns},
		For:     f.window,
		Progress: func(what string) {
			if what == "" {
				progress.Clear()
				return
			}
			progress.Update("%s", what)
		},
	}
	return o, func() {
		if ns != nil {
			ns.Close()
		}
	}, nil
}

func (f *doctorFlags) readBundle(env *Env) (*diagnose.Report, error) {
	r := io.NopCloser(env.Stdin)
	if f.from != "-" {
		file, err := os.Open(f.from)
		if err != nil {
			return nil, fmt.Errorf("read bundle: %w", err)
		}
		r = file
	}
	defer r.Close()
	rec, err := collect.ReadBundle(r)
	if err != nil {
		return nil, fmt.Errorf("read bundle %s: %w", f.from, err)
	}
	found := diagnose.Run(rec, diagnose.Rules())
	return &found, nil
}

func (f *doctorFlags) treat(ctx context.Context, env *Env, look collect.RecordOptions, first *diagnose.Report) (*doctor.Treatment, error) {
	text := env.Stdout
	if f.json {
		text = io.Discard
	}
	if len(first.Findings) > 0 && len(first.Plan(doctor.Origin).Changes) == 0 {
		fmt.Fprintln(text, "\nnatkit does nothing about this by itself: the remedies above are advice")
	}
	journal, err := env.journal()
	if err != nil {
		return nil, err
	}
	opt := apply.Options{Journal: journal}
	f.change.fill(&opt)
	return doctor.Treat(ctx, first, doctor.Options{
		Look: func(ctx context.Context) (*diagnose.Report, error) {
			_, r, err := doctor.Look(ctx, look)
			return r, err
		},
		Apply: opt,
		Agree: func(plan tune.Plan) (bool, error) { return f.agree(env, text, plan, opt) },
		Applied: func(a *apply.Applied) {
			tx := a.Transaction()
			printApplied(text, &tx)
		},
		Round: func(r doctor.Round) {
			look.Progress("")
			fmt.Fprint(text, "\nAfter the change\n\n")
			report.Doctor(text, env.style(), r.After)
		},
	})
}

// agree shows the plan, and asks unless --yes said it already.
func (f *doctorFlags) agree(env *Env, text io.Writer, plan tune.Plan, opt apply.Options) (bool, error) {
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
	return env.askToApply(text)
}
