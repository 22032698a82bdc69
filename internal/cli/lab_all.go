package cli

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/lab/build"
	"github.com/natkit/natkit/internal/lab/run"
	"github.com/natkit/natkit/internal/report"
)

// aloneFlags are those of lab run that are about one scenario.
var aloneFlags = []string{"concurrency", "requests", "timeout", "full", "bridge", "lower-max", "force", "html", "pcap", "pcap-snaplen", "pcap-size"}

// runArgs wants one scenario, or none with --all.
func runArgs(f *labRunFlags) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if !f.all {
			if cmd.Flags().Changed("only") {
				return errors.New("--only goes with --all")
			}
			return cobra.ExactArgs(1)(cmd, args)
		}
		if len(args) > 0 {
			return errors.New("give a scenario or --all, not both; --all --only takes names")
		}
		return nil
	}
}

// chosen are the scenarios that natkit brings along, or those of --only.
func (f *labRunFlags) chosen() ([]*lab.Scenario, error) {
	if len(f.only) == 0 {
		return lab.Scenarios(), nil
	}
	var all []*lab.Scenario
	for _, name := range f.only {
		s, err := lab.Find(strings.TrimSpace(name))
		if err != nil {
			return nil, usageError{err}
		}
		if !slices.Contains(all, s) {
			all = append(all, s)
		}
	}
	return all, nil
}

// runAll runs the scenarios one after the other, and prints the matrix.
func (f *labRunFlags) runAll(ctx context.Context, env *Env) error {
	scenarios, err := f.chosen()
	if err != nil {
		return err
	}
	journal, err := env.journal()
	if err != nil {
		return err
	}
	progress := env.progress()
	a, err := run.All(ctx, scenarios, run.AllOptions{Options: run.Options{
		Server: build.ServerKind(f.server), Journal: journal, AllowHost: f.allowHost,
		Version: env.Version, Progress: progress.Show,
	}})
	progress.Clear()
	if errors.Is(err, context.Canceled) {
		return errors.New("lab run --all: interrupted; the lab is removed and the host is as it was")
	}
	if err != nil {
		return err
	}
	if f.json {
		err = report.JSON(env.Stdout, a)
	} else {
		err = report.Accuracy(env.Stdout, env.style(), a)
	}
	if err == nil && !a.Passed {
		return errFindings
	}
	return err
}

func completeNames(_ *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
	before := ""
	if i := strings.LastIndexByte(typed, ','); i >= 0 {
		before = typed[:i+1]
	}
	var names []string
	for _, s := range lab.Scenarios() {
		names = append(names, cobra.CompletionWithDesc(before+s.Name, s.Title))
	}
	return names, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
}
