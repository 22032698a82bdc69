package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/diff"
	"github.com/natkit/natkit/internal/gateway/run"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/apply"
	"github.com/natkit/natkit/internal/tune/journal"
)

const gatewayApplySchema = "natkit.gateway-apply/1"

// gatewayApply are the flags of `natkit gateway apply`.
type gatewayApply struct {
	changeFlags
	target
	overwrite, force, flush, asJSON bool
}

func newGatewayApply(env *Env) *cobra.Command {
	var f gatewayApply
	cmd := &cobra.Command{
		Use:   "apply FILE",
		Short: "put a gateway file in force, with undo",
		Long: `Check the file against this host, show what would change, and ask. With --yes, do it
without asking; 'natkit gateway plan' stops there. Where stdin is not a terminal, --yes
is needed: without, nothing is changed, and the exit code is 2. FILE may be - for the
standard input.

The rules come into the table "inet natkit" by one transaction: packets meet the old
rules or the new ones. The connection table is sized before ('expect' in the file),
forwarding is turned on after it. All of it is one entry of the journal, and one
undo takes it back: to the plan that was in force before, where there was one.

With --confirm everything is rolled back unless you run 'natkit gateway confirm'
in time, also when natkit or the shell dies or the machine is cut off: if it cuts
you off, wait. A power failure undoes it, too. With --persist the file becomes
/etc/natkit/gateway.yaml, at the confirmation, for 'natkit gateway run' at boot
(natkit-gateway.service).

Connections that are tracked keep the translation that they have. Where no rule
would give it any more, they are counted; --flush-stale deletes them.
Where there were no rules of NAT before, connections that pass untranslated and that
a rule is for are deleted: their next packets are translated.

What 'natkit gateway check' refuses is not applied. Rules that somebody changed by
hand in natkit's table are overwritten with --overwrite only; a table of that name
that natkit did not make is never touched.`,
		Example: `  sudo natkit gateway apply gateway.yaml
  sudo natkit gateway apply gateway.yaml --yes --confirm 60s
  sudo natkit gateway apply gateway.yaml --yes --confirm 60s --persist
  sudo natkit gateway apply gateway.yaml --netns gw`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeYAML,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.check(cmd); err != nil {
				return err
			}
			ns, err := f.open(cmd)
			if err != nil {
				return err
			}
			defer ns.Close()
			return f.run(cmd.Context(), env, ns, args[0])
		},
	}
	f.changeFlags.addFlags(cmd, "")
	f.target.addFlags(cmd)
	cmd.Flags().BoolVar(&f.overwrite, "overwrite", false, "also where somebody changed natkit's rules by hand")
	cmd.Flags().BoolVar(&f.force, "force", false, "also where 'natkit gateway check' refuses, as far as it can be done")
	addFlushStale(cmd, &f.flush)
	addJSON(cmd, &f.asJSON, gatewayApplySchema)
	return cmd
}

func addFlushStale(cmd *cobra.Command, flush *bool) {
	cmd.Flags().BoolVar(flush, "flush-stale", false, "delete the connections whose translation no rule gives any more")
}

// completeYAML offers configuration files, for the shell.
func completeYAML(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return []string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt
}

// gatewayHost is where a gateway is made.
func gatewayHost(env *Env, ns *netns.Handle) (run.Host, error) {
	j, err := env.journal()
	return run.Host{Netns: ns, Apply: apply.Options{Journal: j}}, err
}

func (f *gatewayApply) run(ctx context.Context, env *Env, ns *netns.Handle, file string) error {
	h, err := gatewayHost(env, ns)
	if err != nil {
		return err
	}
	text, err := gatewayText(ctx, env, file)
	file = gatewayName(file)
	if err != nil {
		return err
	}
	ready, err := h.Prepare(ctx, run.Wish{
		Name: file, Text: text, Persist: f.persist, Overwrite: f.overwrite, Force: f.force, PID: os.Getpid(), Origin: run.Origin,
	})
	if err != nil {
		return f.refused(env, file, ready, err)
	}
	doc := gatewayDocument{
		File: file, Digest: ready.Digest, Before: ready.Before, Findings: ready.Findings, Plan: &ready.Plan,
		Already: ready.Already, Notes: ready.Notes, Confirm: f.confirm.Seconds(),
	}
	if len(ready.Plan.Changes) == 0 {
		return f.nothing(ctx, env, h, doc, ready.Gateway)
	}
	if service := h.Service(); service != "" {
		doc.Notes = append(doc.Notes, service+" runs here: it puts its own file in force again when that file or an address changes; change that file instead")
	}
	doc.Difference = diff.Between(ready.InForce, ready.Gateway)
	if agreed, err := f.agree(ctx, env, doc, ready); err != nil || !agreed {
		return err
	}
	applied, err := ready.Apply(ctx, f.confirm)
	if err != nil {
		return err
	}
	tx := applied.Transaction()
	doc.Applied = true
	doc.Stale, err = staleAfter(ctx, h, ready.InForce, ready.Gateway, f.flush)
	return errors.Join(f.applied(env, doc, &tx), err)
}

// refused shows all that check found, where that is why.
func (f *gatewayApply) refused(env *Env, file string, ready *run.Ready, err error) error {
	var refused run.Refused
	if errors.As(err, &refused) {
		_ = writeFindings(env.Stderr, report.Style{}, file, ready.Findings)
		return fmt.Errorf("apply %s: refused: %w", file, err)
	}
	return fmt.Errorf("apply %s: %w", file, err)
}

// nothing: the host is as the file wants it.
func (f *gatewayApply) nothing(ctx context.Context, env *Env, h run.Host, doc gatewayDocument, now *gateway.Plan) error {
	waits, err := waitingTransaction(h)
	if err != nil {
		return err
	}
	var former *gateway.Plan
	if f.flush {
		if former, err = h.Former(); err != nil {
			return err
		}
		if doc.Stale, err = staleAfter(ctx, h, former, now, f.yes); err != nil {
			return err
		}
	}
	unasked := !f.yes && doc.Stale != nil && doc.Stale.Connections > 0
	switch {
	case f.asJSON && unasked:
		return errors.Join(doc.json(env), errJSONAsks)
	case f.asJSON:
		return doc.json(env)
	}
	_ = env.say("nothing to do: this plan (%s) is in force\n", doc.Digest[:12])
	if waits != nil {
		_ = env.say("%s will be rolled back at %s unless you run 'natkit gateway confirm%s'\n", waits.ID, waits.Confirm.DeadlineAt.Local().Format(time.TimeOnly), f.target.args())
	}
	if err = env.say("%s", doc.Stale.text("--yes deletes them")); err != nil || !unasked {
		return err
	}
	if agreed, err := env.ask(ctx, env.Stdout, "delete?", "nothing was deleted"); err != nil || !agreed {
		return err
	}
	if doc.Stale, err = staleAfter(ctx, h, former, now, true); err == nil {
		err = env.say("%s", doc.Stale.text(""))
	}
	return err
}

// waitingTransaction is the one of the namespace's gateway that waits for
// confirmation; nil where none does.
func waitingTransaction(h run.Host) (*journal.Transaction, error) {
	open, err := h.Transactions()
	for _, tx := range slices.Backward(open) {
		if tx.Complete && tx.Unconfirmed() {
			return tx, err
		}
	}
	return nil, err
}

// agree shows the plan and asks, as the flags want.
func (f *gatewayApply) agree(ctx context.Context, env *Env, doc gatewayDocument, ready *run.Ready) (bool, error) {
	switch {
	case f.asJSON && !f.yes:
		return false, errors.Join(doc.json(env), errJSONAsks)
	case f.asJSON:
		return true, nil
	}
	if err := writeFindings(env.Stdout, env.style(), doc.File, doc.Findings); err != nil {
		return false, err
	}
	err := report.WriteGatewayPlan(env.Stdout, env.style(), &report.GatewayPlan{
		Known: ready.InForce != nil || ready.Before == tune.GatewayNone, Difference: doc.Difference, Planned: plannedGateway(doc),
		Missing: gateway.MissingInterfaces(ready.Gateway, ready.Facts), Waiting: ready.Gateway.Waiting,
	})
	if err != nil {
		return false, err
	}
	if f.yes {
		return true, nil
	}
	return env.askToApply(ctx, env.Stdout)
}

// plannedGateway tells the files that are written at the confirmation, and what stays
// as it is, from the rest.
func plannedGateway(doc gatewayDocument) report.Planned {
	p := report.Planned{Already: doc.Already, Warnings: doc.Notes, FilesWait: doc.Confirm > 0}
	for _, c := range doc.Plan.Changes {
		switch {
		case tune.ConfPath(c.Kind) != "":
			p.Files = append(p.Files, c)
		case c.Before != c.After:
			p.Changes = append(p.Changes, c)
		case c.Kind == tune.Sysctl:
			p.Already = append(p.Already, fmt.Sprintf("%s is %s already: %s", c.Target, c.Before, c.Why))
		}
	}
	return p
}

// applied says what came of it, and how to keep it or take it back.
func (f *gatewayApply) applied(env *Env, doc gatewayDocument, tx *journal.Transaction) error {
	if f.asJSON {
		view, err := journal.NewView("/proc", journal.SystemClock{})
		if err != nil {
			return err
		}
		doc.Transactions = []tuneTransaction{describeTransaction(tx, view)}
		return doc.json(env)
	}
	var b strings.Builder
	for _, c := range tx.Changes {
		if c.Note != "" {
			fmt.Fprintf(&b, "%s: %s\n", c.Target, c.Note)
		}
	}
	where := f.target.args()
	fmt.Fprintf(&b, "in force as %s; 'natkit gateway undo%s' takes it back\n", tx.ID, where)
	if tx.Unconfirmed() {
		fmt.Fprintf(&b, "will be rolled back at %s unless you run 'natkit gateway confirm%s'\n", tx.Confirm.DeadlineAt.Local().Format(time.TimeOnly), where)
	}
	if f.persist {
		b.WriteString("at boot: 'systemctl enable natkit-gateway.service' runs 'natkit gateway run /etc/natkit/gateway.yaml'\n")
	}
	b.WriteString(doc.Stale.text("the same again with --flush-stale deletes them"))
	return env.say("%s", b.String())
}
