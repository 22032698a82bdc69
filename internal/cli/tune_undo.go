package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/apply"
	"github.com/natkit/natkit/internal/tune/journal"
)

func (t *tuner) undoCommand() *cobra.Command {
	var last, all, asJSON bool
	cmd := &cobra.Command{
		Use:   "undo ID | --last | --all",
		Short: "take changes back, where the values are still natkit's",
		Long: `Take changes back. A value that someone else has changed since is left as it is,
and said so. What a running natkit holds (a lab) is not touched. After a reboot
only the files of --persist are taken back.`,
		Example:           "  sudo natkit tune undo --last\n  sudo natkit tune undo t0007",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: t.completeIDs(isUndoable),
		RunE: func(cmd *cobra.Command, args []string) error {
			if n := len(args) + oneIf(last) + oneIf(all); n != 1 {
				return usagef("undo: expected one of ID, --last, --all; 'natkit tune list' shows the ids")
			}
			opt, err := t.options()
			if err != nil {
				return err
			}
			ids, err := t.undoIDs(opt, args, last)
			if err != nil {
				return err
			}
			t.sayStall(cmd.Context(), opt, ids)
			return t.undo(opt, ids, asJSON)
		},
	}
	cmd.Flags().BoolVar(&last, "last", false, "the newest one that is in force")
	cmd.Flags().BoolVar(&all, "all", false, "all that are in force, newest first")
	addJSON(cmd, &asJSON, tuneSchema)
	return cmd
}

func oneIf(set bool) int {
	if set {
		return 1
	}
	return 0
}

// isUndoable transactions are in force, and no running natkit holds them.
func isUndoable(s journal.Status) bool {
	switch s {
	case journal.StatusUndone, journal.StatusLeft, journal.StatusHeld, journal.StatusApplying:
		return false
	}
	return true
}

func (t *tuner) undoIDs(opt apply.Options, args []string, last bool) ([]string, error) {
	if len(args) == 1 {
		return args, nil
	}
	ids, err := t.withStatus(opt, isUndoable)
	if err != nil {
		return nil, err
	}
	slices.Reverse(ids)
	if last && len(ids) == 0 {
		return nil, errors.New("undo: nothing is in force")
	}
	if last {
		ids = ids[:1]
	}
	return ids, nil
}

// sayStall says before an undo that it holds up the host's traffic.
func (t *tuner) sayStall(ctx context.Context, opt apply.Options, ids []string) {
	for _, id := range ids {
		tx, err := opt.Journal.Load(id)
		if err != nil { // the undo will say so
			continue
		}
		for _, c := range tx.Changes {
			if !c.Open() || c.Kind != tune.Sysctl || c.Target != snapshot.ConntrackBuckets {
				continue
			}
			if stall := t.facts(ctx).Stall(c.Change); stall != "" {
				t.env.note("undo of %s in %s: %s", c.Target, id, stall)
			}
		}
	}
}

// undo goes on after errors, so that one value that cannot be written does not
// keep the others.
func (t *tuner) undo(opt apply.Options, ids []string, asJSON bool) error {
	view, err := t.view()
	if err != nil {
		return err
	}
	doc := tuneDocument{}
	var errs []error
	for _, id := range ids {
		tx, err := apply.Undo(id, opt)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		one := describeTransaction(tx, view)
		one.Said = string(one.Status)
		doc.Transactions = append(doc.Transactions, one)
	}
	if len(ids) == 0 && !asJSON {
		_, err := fmt.Fprintln(t.env.Stdout, "nothing is in force")
		return err
	}
	return errors.Join(append(errs, doc.print(t.env, asJSON, printResults))...)
}
