package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/natkit/natkit/internal/gateway/run"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/apply"
	"github.com/natkit/natkit/internal/tune/journal"
)

func gatewayTuner(env *Env) *tuner { return &tuner{env: env, host: tuneHost{"/proc", "/"}} }

func newGatewayConfirm(env *Env) *cobra.Command {
	var where target
	var asJSON bool
	t := gatewayTuner(env)
	cmd := &cobra.Command{
		Use:   "confirm [ID]",
		Short: "keep a gateway that would be rolled back",
		Long: `Keep what 'natkit gateway apply --confirm' made. Without ID, the gateway that
waits, with --netns or --pid that of one network namespace. The files of --persist are
written now, not before.`,
		Example:           "  sudo natkit gateway confirm\n  sudo natkit gateway confirm --netns gw",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: t.completeIDs(func(s journal.Status) bool { return s == journal.StatusPending }),
		RunE: func(cmd *cobra.Command, args []string) error {
			opt, err := t.options()
			if err != nil {
				return err
			}
			inode, err := where.inode(cmd)
			if err != nil {
				return err
			}
			id, err := pendingGateway(t, opt, inode, args)
			if err != nil {
				return err
			}
			tx, err := apply.Confirm(id, opt)
			if err != nil {
				return err
			}
			return printGatewayResult(t, tx, "confirmed", nil, asJSON)
		},
	}
	where.addFlags(cmd)
	addJSON(cmd, &asJSON, gatewayApplySchema)
	return cmd
}

// pendingGateway is the argument, or the only gateway that waits: of the namespace with
// that inode, where it is not 0.
func pendingGateway(t *tuner, opt apply.Options, inode uint64, args []string) (string, error) {
	ids, damaged, err := t.withStatus(opt, func(s journal.Status) bool { return s == journal.StatusPending })
	if err != nil {
		return "", err
	}
	ids = slices.DeleteFunc(ids, func(id string) bool {
		tx, err := opt.Journal.Load(id)
		return err != nil || !slices.ContainsFunc(tx.Changes, isGateway) || inode != 0 && tx.Netns != inode
	})
	switch {
	case len(args) == 1:
		return args[0], nil
	case len(ids) == 0 && damaged != nil:
		return "", fmt.Errorf("confirm: no gateway that can be read waits for confirmation: %w", damaged)
	case len(ids) == 0:
		return "", errors.New("confirm: no gateway waits for confirmation; 'natkit tune list' shows what became of it")
	case len(ids) > 1:
		return "", usagef("confirm: several wait for confirmation, name one: %s", strings.Join(ids, " "))
	}
	return ids[0], nil
}

func isGateway(c journal.Change) bool { return c.Kind == tune.Gateway || c.Kind == tune.GatewayFile }

func newGatewayUndo(env *Env) *cobra.Command {
	var where target
	var flush, asJSON bool
	t := gatewayTuner(env)
	cmd := &cobra.Command{
		Use:   "undo [ID]",
		Short: "take a gateway back, to the plan that was in force before",
		Long: `Take back what 'natkit gateway apply' did last, or the transaction ID: rules,
sysctls, files. What was in force before is in force again, in one transaction. Where
somebody else has changed the rules since, it is refused and nothing is changed. Other
values that somebody has changed are left as they are, and said so.

Connections that are tracked keep their translation, but where no rule of NAT is left
on the host: with the last one the kernel stops translating, and they are cut.

What 'natkit gateway run' applied is taken back as one. A service that runs leaves it
so until its file changes or it is reloaded.`,
		Example:           "  sudo natkit gateway undo\n  sudo natkit gateway undo --netns gw --flush-stale",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: t.completeIDs(isUndoable),
		RunE: func(cmd *cobra.Command, args []string) error {
			ns, err := where.open(cmd)
			if err != nil {
				return err
			}
			defer ns.Close()
			return undoGateway(cmd.Context(), t, ns, args, where.args(), flush, asJSON)
		},
	}
	where.addFlags(cmd)
	addFlushStale(cmd, &flush)
	addJSON(cmd, &asJSON, gatewayApplySchema)
	return cmd
}

func undoGateway(ctx context.Context, t *tuner, ns *netns.Handle, args []string, where string, flush, asJSON bool) error {
	h, err := gatewayHost(t.env, ns)
	if err != nil {
		return err
	}
	id, err := lastGateway(h, args, where)
	if err != nil {
		return err
	}
	t.sayStall(ctx, h.Apply, []string{id})
	former, err := h.InForce()
	if err != nil {
		return err
	}
	tx, err := h.Undo(id)
	if err != nil {
		return err
	}
	now, err := h.InForce()
	if err != nil {
		return err
	}
	if off := forwardingOff(h, tx); off != "" {
		t.env.note("%s", off)
	}
	if service := h.Service(); service != "" && !asJSON {
		t.env.note("%s leaves it so until its file changes or it is reloaded; to end it, 'systemctl stop natkit-gateway'", service)
	}
	stale, err := staleAfter(ctx, h, former, now, flush)
	view, viewErr := t.view()
	if viewErr != nil {
		return viewErr
	}
	return errors.Join(printGatewayResult(t, tx, string(view.Status(tx)), stale, asJSON), err)
}

// lastGateway is the argument, or the newest transaction of the namespace's gateway;
// after a boot the one that left the configuration there. Where that was not confirmed and
// is rolled back already, the one before is only taken back by its name.
func lastGateway(h run.Host, args []string, where string) (string, error) {
	if len(args) == 1 {
		return args[0], nil
	}
	open, err := h.Transactions()
	if err != nil {
		return "", err
	}
	switch expired, err := h.Expired(); {
	case err != nil:
		return "", err
	case expired != nil && len(open) > 0:
		return "", fmt.Errorf("undo: %s; the gateway before it is in force: 'natkit gateway undo%s %s' takes that back, too", rolledBack(expired), where, open[len(open)-1].ID)
	case expired != nil:
		return "", fmt.Errorf("undo: %s; no gateway that natkit applied is in force here", rolledBack(expired))
	case len(open) > 0:
		return open[len(open)-1].ID, nil
	}
	all, damaged, err := h.Apply.Journal.List()
	for _, tx := range slices.Backward(all) {
		if slices.ContainsFunc(tx.Changes, func(c journal.Change) bool { return c.Open() && c.Kind == tune.GatewayFile }) {
			return tx.ID, err
		}
	}
	return "", errors.Join(append(damaged, err, nothingToUndo(h))...)
}

// rolledBack says what became of a gateway that nobody confirmed.
func rolledBack(tx *journal.Transaction) string {
	return fmt.Sprintf("%s was not confirmed by %s and is rolled back already", tx.ID, tx.Confirm.DeadlineAt.Local().Format(time.TimeOnly))
}

// nothingToUndo names what removes a gateway that the journal does not know (any more).
func nothingToUndo(h run.Host) error {
	if state, err := h.State(); err == nil && state.Digest != "" {
		return fmt.Errorf("undo: the journal has nothing to take back here; %s removes %s", netns.CommandIn(h.Netns, state.ByHand), state.Name)
	}
	return fmt.Errorf("undo: no gateway that natkit applied is in force here%s", elsewhere(h))
}

// elsewhere says how to undo the gateways that natkit applied in other network namespaces.
func elsewhere(h run.Host) string {
	all, _, err := h.Apply.Journal.List()
	boot, errBoot := journal.ReadBootID("/proc")
	if err != nil || errBoot != nil {
		return ""
	}
	var names namespaceNames
	var commands []string
	for _, tx := range all {
		i := slices.IndexFunc(tx.Changes, func(c journal.Change) bool { return c.Open() && c.Kind == tune.Gateway })
		if i < 0 || tx.BootID != boot {
			continue
		}
		ns, err := netns.Open(tx.In(tx.Changes[i]))
		if err != nil { // gone, with its rules, or it cannot be found out
			continue
		}
		command := "'natkit tune undo " + tx.ID + "'"
		if flags, known := names.flags(ns.Inode()); known {
			command = "'natkit gateway undo" + flags + "'"
		}
		ns.Close()
		commands = append(commands, command)
	}
	if len(commands) == 0 {
		return ""
	}
	slices.Sort(commands)
	return "; other network namespaces have one: " + strings.Join(slices.Compact(commands), ", ")
}

func printGatewayResult(t *tuner, tx *journal.Transaction, said string, stale *gatewayStale, asJSON bool) error {
	view, err := t.view()
	if err != nil {
		return err
	}
	one := describeTransaction(tx, view)
	one.Said = said
	if asJSON {
		return gatewayDocument{Transactions: []tuneTransaction{one}, Stale: stale}.json(t.env)
	}
	if err := printResults(t.env, tuneDocument{Transactions: []tuneTransaction{one}}); err != nil {
		return err
	}
	err = t.env.say("%s", stale.text("'natkit conntrack delete' deletes connections"))
	return err
}
