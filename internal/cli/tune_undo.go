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
	var last, all, force, asJSON bool
	cmd := &cobra.Command{
		Use:   "undo ID | --last | --all",
		Short: "take changes back, where the values are still natkit's",
		Long: `Take changes back. A value that someone else has changed since is left as it is,
and said so. What a running natkit holds (a lab) is not touched. After a reboot
only the files of --persist are taken back.

Refused, with nothing changed: a gateway whose rules somebody changed, and what is
in a network namespace that cannot be found or told from another one. --force leaves
those as they are, takes the rest back, and does not wait for a natkit that runs.`,
		Example:           "  sudo natkit tune undo --last\n  sudo natkit tune undo t0007\n  sudo natkit tune undo --force t0007",
		Args:              oneID,
		ValidArgsFunction: t.completeIDs(isUndoable),
		RunE: func(cmd *cobra.Command, args []string) error {
			if n := len(args) + oneIf(last) + oneIf(all); n != 1 {
				return usagef("undo: expected one of ID, --last, --all; 'natkit tune list' shows the ids")
			}
			if force && len(args) == 0 {
				return usagef("undo: --force needs an ID; 'natkit tune list' shows the ids")
			}
			opt, err := t.options()
			if err != nil {
				return err
			}
			opt.Force = force
			ids, damaged, err := t.undoIDs(opt, args, last)
			if err != nil {
				return err
			}
			t.sayStall(cmd.Context(), opt, ids)
			return errors.Join(t.undo(opt, ids, all, damaged == nil, asJSON), damaged)
		},
	}
	cmd.Flags().BoolVar(&last, "last", false, "the newest one that is in force")
	cmd.Flags().BoolVar(&all, "all", false, "all that are in force, newest first")
	cmd.Flags().BoolVar(&force, "force", false, "also what a running natkit holds; leave what cannot be taken back")
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

// undoIDs are the transactions to undo, newest first. damaged says that there may be
// others, whose files cannot be read.
func (t *tuner) undoIDs(opt apply.Options, args []string, last bool) (ids []string, damaged, err error) {
	if len(args) == 1 {
		return args, nil, nil
	}
	ids, damaged, err = t.withStatus(opt, isUndoable)
	switch {
	case err != nil || !last:
	case damaged != nil:
		return nil, nil, fmt.Errorf("undo: which one is the last is not known: %w; name one by its ID", damaged)
	case len(ids) == 0:
		return nil, nil, errors.New("undo: nothing is in force")
	default:
		ids = ids[len(ids)-1:]
	}
	slices.Reverse(ids)
	return ids, damaged, err
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
// keep the others. whole says that the journal has no others.
func (t *tuner) undo(opt apply.Options, ids []string, all, whole, asJSON bool) error {
	view, err := t.view()
	if err != nil {
		return err
	}
	doc := tuneDocument{}
	var errs []error
	for _, id := range ids {
		tx, err := apply.Undo(id, opt)
		if errors.Is(err, apply.ErrUndone) && all {
			continue // by its guard, or by another natkit, since the ids were listed
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		one := describeTransaction(tx, view)
		one.Said = string(one.Status)
		doc.Transactions = append(doc.Transactions, one)
	}
	if len(ids) == 0 && whole && !asJSON {
		_, err := fmt.Fprintln(t.env.Stdout, "nothing is in force")
		return err
	}
	return errors.Join(append(errs, doc.print(t.env, asJSON, printResults))...)
}
