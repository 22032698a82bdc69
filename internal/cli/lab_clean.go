package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/natkit/natkit/internal/lab/fill"
	"github.com/natkit/natkit/internal/tune/apply"
	"github.com/natkit/natkit/internal/tune/journal"
)

func newLabClean(env *Env) *cobra.Command {
	return &cobra.Command{
		Use:   "clean",
		Short: "put back what a lab changed on the host and could not put back itself",
		Long: `Reads the journal and undoes every change whose natkit is gone: after a crash of
the machine, or after the guard process was killed too. A value is put back only
where it is still the one that natkit wrote. Changes that were applied to stay
('natkit tune apply', 'natkit doctor --fix') are left alone, unless the time to
confirm them is over.

Removes the entries of every 'natkit lab fill' that no running natkit keeps up,
those left by --keep too.

Namespaces and processes of a lab need no cleaning: they end with natkit.`,
		Example: "  sudo natkit lab clean",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return clean(cmd.Context(), env) },
	}
}

func clean(ctx context.Context, env *Env) error {
	removed, held, fillErr := fill.Clean(ctx, env.Getenv(runDirEnv), 0)
	j, err := env.journal()
	if err != nil {
		return errors.Join(fillErr, err)
	}
	view, err := journal.NewView("/proc", journal.SystemClock{})
	if err != nil {
		return errors.Join(fillErr, err)
	}
	undone, err := apply.Clean(apply.Options{Journal: j})
	doc := tuneDocument{}
	for _, tx := range undone {
		one := describeTransaction(tx, view)
		one.Said = string(one.Status)
		doc.Transactions = append(doc.Transactions, one)
	}
	if len(undone)+len(removed) == 0 && err == nil && fillErr == nil {
		fmt.Fprintln(env.Stdout, "nothing to clean")
	}
	if len(removed)+len(held) > 0 {
		fillErr = errors.Join(fillErr, describeRemoved(removed, held).print(env, false))
	}
	return errors.Join(err, printResults(env, doc), fillErr)
}
