package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/gateway"
	gwapply "github.com/natkit/natkit/internal/gateway/apply"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/apply"
	"github.com/natkit/natkit/internal/tune/journal"
	"github.com/natkit/natkit/internal/units"
	"github.com/spf13/cobra"
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
func gatewayHost(env *Env, ns *netns.Handle) (gwapply.Host, error) {
	j, err := env.journal()
	return gwapply.Host{Netns: ns, Apply: apply.Options{Journal: j}}, err
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
	ready, err := h.Prepare(ctx, gwapply.Wish{
		Name: file, Text: text, Persist: f.persist, Overwrite: f.overwrite, Force: f.force, PID: os.Getpid(), Origin: gwapply.Origin,
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
	doc.Difference = gateway.DiffOf(ready.InForce, ready.Gateway)
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
func (f *gatewayApply) refused(env *Env, file string, ready *gwapply.Ready, err error) error {
	var refused gwapply.Refused
	if errors.As(err, &refused) {
		_ = writeFindings(env.Stderr, report.Style{}, file, ready.Findings)
		return fmt.Errorf("apply %s: refused: %w", file, err)
	}
	return fmt.Errorf("apply %s: %w", file, err)
}

// nothing: the host is as the file wants it.
func (f *gatewayApply) nothing(ctx context.Context, env *Env, h gwapply.Host, doc gatewayDocument, now *gateway.Plan) error {
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
func waitingTransaction(h gwapply.Host) (*journal.Transaction, error) {
	open, err := h.Transactions()
	for _, tx := range slices.Backward(open) {
		if tx.Complete && tx.Unconfirmed() {
			return tx, err
		}
	}
	return nil, err
}

// agree shows the plan and asks, as the flags want.
func (f *gatewayApply) agree(ctx context.Context, env *Env, doc gatewayDocument, ready *gwapply.Ready) (bool, error) {
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

// staleAfter looks for connections whose rule went away, and deletes them where told
// to. Without a former plan of natkit's there are none.
func staleAfter(ctx context.Context, h gwapply.Host, former, now *gateway.Plan, flush bool) (*gatewayStale, error) {
	if former == nil {
		return nil, nil
	}
	found, err := h.Orphans(ctx, former, now)
	if err != nil {
		return nil, err
	}
	s := &gatewayStale{Connections: int64(len(found.Keys)), Cut: found.Cut, ByRule: map[string]int64{}}
	for ref, n := range found.Rules {
		s.ByRule[ref.String()] = n
	}
	if flush {
		deleted, err := h.Flush(ctx, found)
		s.Deleted, s.Offloaded = deleted.Deleted, deleted.Busy
		return s, err
	}
	return s, nil
}

// text says how many there are, and what came of them or, advice, what deletes them now.
func (s *gatewayStale) text(advice string) string {
	if s == nil || s.Connections == 0 {
		return ""
	}
	var rules []string
	for rule, n := range s.ByRule {
		rules = append(rules, fmt.Sprintf("%s (%s)", rule, units.Count(n)))
	}
	slices.Sort(rules)
	text := fmt.Sprintf("%s of rules that went: %s; ", units.Plural(s.Connections, "connection", "connections"), strings.Join(rules, ", "))
	switch {
	case s.Deleted == 0 && s.Offloaded == 0 && s.Cut:
		return text + "they are cut: without any rule of NAT the kernel translates no packet\n"
	case s.Deleted == 0 && s.Offloaded == 0:
		return text + "they keep their translation until they end; " + advice + "\n"
	case s.Offloaded > 0:
		return text + fmt.Sprintf("%s deleted, %s are in the kernel's fast path and end by themselves\n", units.Count(s.Deleted), units.Count(s.Offloaded))
	}
	return text + "deleted\n"
}

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
func lastGateway(h gwapply.Host, args []string, where string) (string, error) {
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
func nothingToUndo(h gwapply.Host) error {
	if state, err := h.State(); err == nil && state.Digest != "" {
		return fmt.Errorf("undo: the journal has nothing to take back here; %s removes %s", netns.CommandIn(h.Netns, state.Removal), state.Name)
	}
	return fmt.Errorf("undo: no gateway that natkit applied is in force here%s", elsewhere(h))
}

// elsewhere says how to undo the gateways that natkit applied in other network namespaces.
func elsewhere(h gwapply.Host) string {
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
