//go:build linux

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/gateway"
	gwapply "github.com/natkit/natkit/internal/gateway/apply"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/journal"
	"github.com/natkit/natkit/internal/units"
	"github.com/spf13/cobra"
)

const gatewayApplySchema = "natkit.gateway-apply/1"

// gatewayStale counts connections that keep a translation that no rule gives; or, where
// Cut, lose it.
type gatewayStale struct {
	Connections int64            `json:"connections"`
	Cut         bool             `json:"cut"`
	ByRule      map[string]int64 `json:"by_rule"`
	// Deleted is 0 without --flush-stale; Offloaded could not be deleted.
	Deleted   int64 `json:"deleted"`
	Offloaded int64 `json:"offloaded"`
}

// staleAfter counts connections whose rule went away, and deletes them with flush.
// Without a former plan of natkit's there are none.
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

// text returns the number of stale connections, and their outcome or, advice, how to delete them.
func (s *gatewayStale) text(advice string) string {
	if s == nil || s.Connections == 0 {
		return ""
	}
	var rules []string
	for rule, n := range s.ByRule {
		rules = append(rules, fmt.Sprintf("%s: %s", rule, units.Count(n)))
	}
	slices.Sort(rules)
	keep, fate := map[bool]string{true: "keeps it", false: "keep it"}[s.Connections == 1], "deleted"
	switch kept := s.Deleted == 0 && s.Offloaded == 0; {
	case kept && s.Cut:
		fate = "cut, as the kernel translates no packet without a NAT rule"
	case kept:
		fate = keep + " until the end; " + advice
	case s.Offloaded > 0:
		fate = fmt.Sprintf("%s deleted, %s are offloaded to a flowtable and remain until they expire", units.Count(s.Deleted), units.Count(s.Offloaded))
	}
	return fmt.Sprintf("%s with a translation that no rule gives any more (%s): %s\n", units.Plural(s.Connections, "connection", "connections"), strings.Join(rules, ", "), fate)
}

// gatewayApply are the flags of `natkit gateway apply`.
type gatewayApply struct {
	env *Env
	changeFlags
	target
	overwrite, force, flush bool
	// agreed: what changes was shown and agreed to before.
	agreed bool
}

func newGatewayApply(env *Env) *cobra.Command {
	f := gatewayApply{env: env}
	cmd := &cobra.Command{
		Use:   "apply FILE",
		Short: "put a gateway file in force, with undo",
		Long: `Check the file against this host, show what would change, and ask. With --yes, apply
it without asking; 'natkit gateway plan' only shows it. FILE may be - for the standard
input.

The rules are loaded into the table "inet natkit" by one transaction. What
'natkit gateway check' refuses is not applied. One undo restores the plan that was in
force before. With --confirm everything is rolled back unless you run 'natkit gateway
confirm' in time, also when natkit or the shell dies: if it cuts you off, wait. With
--persist the file becomes /etc/natkit/gateway.yaml, at the confirmation, for
'natkit gateway run' at boot.

Tracked connections keep their translation; --flush-stale deletes those of removed rules.

Exit codes: 0 ok, 1 error, 2 usage, or no terminal to ask on, 3 refused: a finding, or
what is in force was changed by hand or is not natkit's.`,
		Example: `  sudo natkit gateway apply gateway.yaml
  sudo natkit gateway apply gateway.yaml --yes --confirm 60s
  sudo natkit gateway apply gateway.yaml --yes --confirm 60s --persist
  sudo natkit gateway apply gateway.yaml --netns gw`,
		ValidArgsFunction: completeYAML,
	}
	f.runs(cmd, f.run)
	f.changeFlags.addFlags(cmd)
	cmd.Flags().BoolVar(&f.overwrite, "overwrite", false, "apply even if natkit's rules were changed by hand")
	cmd.Flags().BoolVar(&f.force, "force", false, "apply even if 'natkit gateway check' refuses, as far as possible")
	addFlushStale(cmd, &f.flush)
	env.addJSON(cmd, gatewayApplySchema)
	return cmd
}

func addFlushStale(cmd *cobra.Command, flush *bool) {
	cmd.Flags().BoolVar(flush, "flush-stale", false, "delete the connections whose rule was removed")
}

func (f *gatewayApply) run(ctx context.Context, ns *netns.Handle, args []string) error {
	collectSeldom()
	h, w, err := gatewayWish(ctx, f.env, ns, args[0])
	if err != nil {
		return err
	}
	w.Persist, w.Overwrite, w.Force = f.persist, f.overwrite, f.force
	ready, err := h.Prepare(ctx, w)
	if errors.As(err, new(gwapply.Refused)) {
		_ = report.GatewayFindings(f.env.Stderr, report.Style{}, w.Name, ready.Findings)
		return refusal{fmt.Errorf("apply %s: refused: %w", w.Name, err)}
	}
	if err != nil {
		err = fmt.Errorf("apply %s: %w", w.Name, err)
		if errors.As(err, new(gwapply.Obstacle)) {
			err = refusal{err}
		}
		return err
	}
	plan := planDocument(w.Name, ready)
	doc := changeDocument{
		Schema: gatewayApplySchema, File: w.Name, Digest: ready.Digest, Before: ready.Before, Findings: ready.Findings, Plan: &ready.Plan,
		Already: ready.Already, Notes: plan.Notes, Confirm: f.confirm.Seconds(), Transactions: []transaction{},
	}
	if len(ready.Plan.Changes) == 0 {
		return f.nothing(ctx, h, doc, ready.Gateway)
	}
	if service, there := h.Service(); there {
		plan.Notes = append(plan.Notes, service.String()+" runs here and applies its own file again when that file or an address changes; change that file instead")
	}
	plan.FilesWait = f.confirm > 0
	doc.Notes, doc.Difference, doc.text = plan.Notes, plan.Difference, plan.Text
	if !f.agreed {
		if agreed, err := f.env.agree(ctx, doc, f.yes); err != nil || !agreed {
			return err
		}
	}
	applied, err := ready.Apply(ctx, f.confirm)
	if err != nil {
		return err
	}
	tx := applied.Transaction()
	described, err := gatewayTuner(f.env).describe(&tx, "")
	if err != nil {
		return err
	}
	doc.Applied, doc.Transactions = true, []transaction{described}
	doc.Stale, err = staleAfter(ctx, h, ready.InForce, ready.Gateway, f.flush)
	lines := appliedText(&tx, "natkit gateway undo"+f.args(), "natkit gateway confirm"+f.args())
	if f.persist {
		lines += "at boot: 'systemctl enable natkit-gateway.service' runs 'natkit gateway run /etc/natkit/gateway.yaml'\n"
	}
	doc.text = resultsOf("", lines+doc.Stale.text("repeat the command with --flush-stale to delete stale entries")).text
	return errors.Join(f.env.print(doc), err)
}

// nothing: the host is as the file describes it.
func (f *gatewayApply) nothing(ctx context.Context, h gwapply.Host, doc changeDocument, now *gateway.Plan) error {
	lines := fmt.Sprintf("nothing to do: this plan (%s) is in force\n", doc.Digest[:12])
	waits, err := f.waitingTransaction(h)
	if err != nil {
		return err
	}
	if waits != nil {
		lines += waits.ID + " " + rollback(waits, "natkit gateway confirm"+f.args())
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
	doc.text = resultsOf("", lines+doc.Stale.text("--yes deletes them")).text
	if f.yes || doc.Stale == nil || doc.Stale.Connections == 0 {
		return f.env.print(doc)
	}
	if agreed, err := f.env.agreeTo(ctx, doc, false, "delete?", "nothing was deleted"); err != nil || !agreed {
		return err
	}
	if doc.Stale, err = staleAfter(ctx, h, former, now, true); err != nil {
		return err
	}
	return f.env.say("%s", doc.Stale.text(""))
}

// waitingTransaction is the one of the namespace's gateway that waits for
// confirmation; nil where none does.
func (f *gatewayApply) waitingTransaction(h gwapply.Host) (*journal.Transaction, error) {
	open, err := h.Transactions()
	if err != nil {
		return nil, err
	}
	view, err := gatewayTuner(f.env).view()
	for _, tx := range slices.Backward(open) {
		rules := slices.ContainsFunc(tx.Changes, func(c journal.Change) bool { return c.Kind == tune.Gateway && c.Open() })
		switch {
		case rules && isPending(view.Status(tx)):
			return tx, err
		case rules: // they stay when what they replaced is rolled back
			return nil, err
		}
	}
	return nil, err
}

func gatewayTuner(env *Env) *tuner { return &tuner{env: env, host: realHost} }

func newGatewayConfirm(env *Env) *cobra.Command {
	var where target
	t := gatewayTuner(env)
	cmd := &cobra.Command{
		Use:   "confirm [ID]",
		Short: "keep a gateway that would be rolled back",
		Long: `Keep what 'natkit gateway apply --confirm' made. Without ID, the gateway that
waits, with --netns or --pid that of one network namespace. The files of --persist are
written now, not before.`,
		Example:           "  sudo natkit gateway confirm\n  sudo natkit gateway confirm --netns gw",
		ValidArgsFunction: t.completeIDs(isPending),
	}
	where.runs(cmd, func(_ context.Context, ns *netns.Handle, args []string) error {
		if err := t.isIn(ns, args); err != nil {
			return err
		}
		tx, err := t.confirm(args, "gateway", func(tx *journal.Transaction) bool {
			return slices.ContainsFunc(tx.Changes, isGateway) && (ns == nil || tx.Netns == ns.Inode())
		})
		if err != nil {
			return err
		}
		return env.print(resultsOf(gatewayApplySchema, "", tx))
	})
	env.addJSON(cmd, gatewayApplySchema)
	return cmd
}

// isIn refuses the transaction of an argument where it is of another network namespace than
// the one that flags select; nil for none.
func (t *tuner) isIn(ns *netns.Handle, args []string) error {
	if ns == nil || len(args) == 0 {
		return nil
	}
	opt, err := t.options()
	if err != nil {
		return err
	}
	tx, err := opt.Journal.Load(args[0])
	if err != nil {
		return err
	}
	here, err := netns.IDOf(ns)
	if err != nil {
		return err
	}
	of := tx.Made()
	for _, c := range tx.Changes {
		if c.Kind == tune.Gateway {
			of = tx.In(c)
		}
	}
	if of.Is(here) {
		return nil
	}
	name := ""
	if there, err := netns.Open(of); err == nil { // otherwise the name may be another one's by now
		name = netns.NameOf(of.Inode)
		there.Close()
	}
	return usagef("%s is of another network namespace: %s", tx.ID, cmp.Or(name, strconv.FormatUint(of.Inode, 10)))
}

func isGateway(c journal.Change) bool { return c.Kind == tune.Gateway || c.Kind == tune.GatewayFile }

// gatewayUndo are the flags of `natkit gateway undo`.
type gatewayUndo struct {
	*tuner
	target
	flush bool
}

func newGatewayUndo(env *Env) *cobra.Command {
	u := gatewayUndo{tuner: gatewayTuner(env)}
	cmd := &cobra.Command{
		Use:   "undo [ID]",
		Short: "take a gateway back, to the plan that was in force before",
		Long: `Undo the last 'natkit gateway apply', or the transaction ID: rules, sysctls, files.
The former plan is in force again, in one transaction. If the rules were changed since, the
undo is refused and nothing is changed; other changed values are left as they are.

Tracked connections keep their translation, unless no NAT rule is left on the host:
with the last one the kernel stops translating, and they are cut.

Exit codes: 0 ok, 1 error, 2 usage, 3 refused: the rules were changed since.`,
		Example:           "  sudo natkit gateway undo\n  sudo natkit gateway undo --netns gw --flush-stale",
		ValidArgsFunction: u.completeIDs(isUndoable),
	}
	u.runs(cmd, u.run)
	addFlushStale(cmd, &u.flush)
	env.addJSON(cmd, gatewayApplySchema)
	return cmd
}

func (u *gatewayUndo) run(ctx context.Context, ns *netns.Handle, args []string) error {
	if err := u.isIn(ns, args); err != nil {
		return err
	}
	h, err := gatewayHost(u.env, ns)
	if err != nil {
		return err
	}
	id, err := lastGateway(h, args, u.args())
	if err != nil {
		return err
	}
	u.noteStall(ctx, h.Apply, []string{id})
	former, err := h.InForce()
	if err != nil {
		return err
	}
	tx, err := h.Undo(id)
	if errors.Is(err, gwapply.ErrChanged) {
		return refusal{err}
	}
	if err != nil {
		return err
	}
	now, err := h.InForce()
	if err != nil {
		return err
	}
	if off := forwardingOff(h, tx); off != "" {
		u.env.note("%s", off)
	}
	if service, there := h.Service(); there && !u.env.asJSON {
		u.env.note("%s leaves it so until its file changes or it is reloaded; to end it, %s", service, service.Stop())
	}
	stale, staleErr := staleAfter(ctx, h, former, now, u.flush)
	described, err := u.describe(tx, "")
	if err != nil {
		return err
	}
	doc := resultsOf(gatewayApplySchema, stale.text("'natkit conntrack delete"+u.args()+"' deletes connections"), described)
	doc.Stale = stale
	return errors.Join(u.env.print(doc), staleErr)
}

// forwardingOff warns that an undo turned forwarding off while other programs translate
// here: those that came after natkit found it on, as Docker does, and did not turn it on.
func forwardingOff(h gwapply.Host, tx *journal.Transaction) string {
	var off []string
	for _, c := range tx.Changes {
		forwards := c.Kind == tune.Sysctl && slices.Contains([]string{gwapply.Forward4, gwapply.Forward6}, c.Target)
		if forwards && c.State == journal.Undone && c.Note == "" && c.Before == "0" && c.After != "0" {
			off = append(off, c.Target)
		}
	}
	others, err := h.OthersNAT()
	if err != nil || len(off) == 0 || len(others) == 0 {
		return ""
	}
	return fmt.Sprintf("forwarding is off again, as it was before natkit; there are NAT rules in %s, which may need it: %s",
		report.Clean(strings.Join(others, ", ")), netns.CommandIn(h.Netns, "sysctl -w "+strings.Join(off, "=1 ")+"=1"))
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
	expired, err := h.Expired()
	switch {
	case err != nil:
		return "", err
	case expired != nil:
		rest := "no gateway that natkit applied is in force here"
		if len(open) > 0 {
			rest = fmt.Sprintf("the gateway before it is in force: 'natkit gateway undo%s %s' takes that back, too", where, open[len(open)-1].ID)
		}
		return "", fmt.Errorf("undo: %s was not confirmed by %s and is rolled back already; %s", expired.ID, expired.Confirm.DeadlineAt.Local().Format(time.TimeOnly), rest)
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

// nothingToUndo names what removes a gateway that is not in the journal.
func nothingToUndo(h gwapply.Host) error {
	if state, err := h.State(); err == nil && state.Digest != "" {
		return fmt.Errorf("undo: the journal has nothing to take back here; %s removes %s", netns.CommandIn(h.Netns, state.Removal), state.Name)
	}
	return fmt.Errorf("undo: no gateway that natkit applied is in force here%s", elsewhere(h))
}

// elsewhere returns how to undo the gateways that natkit applied in other network namespaces.
func elsewhere(h gwapply.Host) string {
	all, _, err := h.Apply.Journal.List()
	boot, errBoot := journal.ReadBootID("/proc")
	if err != nil || errBoot != nil {
		return ""
	}
	newest := map[uint64]string{} // by namespace
	for _, tx := range all {
		i := slices.IndexFunc(tx.Changes, func(c journal.Change) bool { return c.Open() && c.Kind == tune.Gateway })
		if i < 0 || tx.BootID != boot {
			continue
		}
		if ns, err := netns.Open(tx.In(tx.Changes[i])); err == nil { // otherwise it is gone, with its rules
			ns.Close()
			newest[tx.Netns] = fmt.Sprintf("%s ('natkit tune undo %s')", cmp.Or(netns.NameOf(tx.Netns), strconv.FormatUint(tx.Netns, 10)), tx.ID)
		}
	}
	if len(newest) == 0 {
		return ""
	}
	return "; other network namespaces have one: " + strings.Join(slices.Sorted(maps.Values(newest)), ", ")
}
