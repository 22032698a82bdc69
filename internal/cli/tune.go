package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/ruleset/edit"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/suggest"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/apply"
	"github.com/natkit/natkit/internal/tune/journal"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// tuneHost is where the host lies; tests put a folder in its place.
type tuneHost struct{ procRoot, root string }

// tuner is what the sub-commands of tune share.
type tuner struct {
	env  *Env
	host tuneHost
}

func newTune(env *Env) *cobra.Command { return tuneCommand(env, tuneHost{"/proc", "/"}) }

const tuneHelp = `Change values of this host so that they can be taken back.

Every change is written to a journal (/var/lib/natkit/journal, or
$NATKIT_STATE_DIR/journal) before it is made, read back after it is made, and
undone by one command, as long as the value is still the one that natkit wrote.

With --confirm the change undoes itself unless 'natkit tune confirm' comes in
time: if it cuts you off, wait. A small process named nk-guard keeps that
promise; it outlives natkit and your login. If that process is killed too, the
next 'natkit tune list' or 'natkit lab clean' undoes what is overdue. A reboot
undoes every change that is not persisted.`

func tuneCommand(env *Env, host tuneHost) *cobra.Command {
	t := &tuner{env: env, host: host}
	cmd := &cobra.Command{
		Use:   "tune",
		Short: "change values of this host, with undo: apply, list, confirm, undo",
		Long:  tuneHelp,
		Example: `  natkit tune apply net.netfilter.nf_conntrack_max=524288
  sudo natkit tune apply --yes --confirm 60s --persist net.netfilter.nf_conntrack_max=524288
  sudo natkit tune confirm
  sudo natkit tune list
  sudo natkit tune undo --last`,
	}
	cmd.AddCommand(t.applyCommand(), t.listCommand(), t.confirmCommand(), t.undoCommand())
	return cmd
}

// options open the journal; nothing is created before something is changed.
func (t *tuner) options() (apply.Options, error) {
	j, err := t.env.journal()
	return apply.Options{Journal: j, ProcRoot: t.host.procRoot, Root: t.host.root}, err
}

func (t *tuner) listCommand() *cobra.Command {
	var all, asJSON, asCSV bool
	cmd := &cobra.Command{
		Use:   "list [ID]",
		Short: "list what natkit changed, what waits for confirmation, and what is undone",
		Long: `List the journal, oldest first: all that can be undone, and the last 10 that were
undone; with --all the last 50 of those; with ID that one, with all of its changes. What nobody else will undo any more (its
process was killed, its time to confirm ended without its guard, the machine was
rebooted) is undone first, and said so.

  pending      waits for 'natkit tune confirm'
  applied      in force, can be undone
  persisted    of an earlier boot, its files under /etc are in force
  held         a running natkit (a lab) undoes it when it ends
  undone, left taken back; left: a value was changed by someone else since
  void         undone by a reboot`,
		Example:           "  sudo natkit tune list\n  sudo natkit tune list t0007\n  sudo natkit tune list --json",
		Args:              oneID,
		ValidArgsFunction: t.completeIDs(func(journal.Status) bool { return true }),
		RunE: func(_ *cobra.Command, args []string) error {
			opt, err := t.options()
			if err != nil {
				return err
			}
			text := printTransactions
			if asCSV {
				text = printCSV
			}
			return t.list(opt, all, args, asJSON, text)
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "also what was undone before the last 10")
	addJSON(cmd, &asJSON, tuneSchema)
	addCSV(cmd, &asCSV, "change")
	return cmd
}

// oneID takes the id of a transaction, or nothing.
func oneID(cmd *cobra.Command, args []string) error {
	if len(args) == 1 && !journal.IsID(args[0]) {
		var flags []string
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) { flags = append(flags, "--"+f.Name) })
		return usagef("%q is not an id such as t0001%s; 'natkit tune list' shows them", args[0], suggest.Hint("--"+args[0], flags))
	}
	return cobra.MaximumNArgs(1)(cmd, args)
}

func (t *tuner) list(opt apply.Options, everything bool, id []string, asJSON bool, text func(*Env, tuneDocument) error) error {
	// Said only after the list, which shows what could not be undone.
	undone, cleanErr := apply.Clean(opt)
	for _, tx := range undone {
		t.env.note("undid %s (%s), which nobody else would have undone", tx.ID, tx.Origin)
	}
	all, damaged, err := opt.Journal.List()
	if err != nil {
		return err
	}
	doc := tuneDocument{one: len(id) > 0}
	switch {
	case doc.one:
		tx, err := opt.Journal.Load(id[0])
		if err != nil {
			return err
		}
		all = []*journal.Transaction{tx}
	case !everything:
		recent := recentOf(all)
		doc.Omitted, all = len(all)-len(recent), recent
	}
	if len(all) > 0 {
		view, err := t.view()
		if err != nil {
			return err
		}
		for _, tx := range all {
			doc.Transactions = append(doc.Transactions, describeTransaction(tx, view))
		}
	}
	for _, d := range damaged {
		doc.Damaged = append(doc.Damaged, d.Error())
	}
	if err := doc.print(t.env, asJSON, text); err != nil {
		return err
	}
	if cleanErr != nil {
		return fmt.Errorf("undo what is overdue, or read the journal: %w", cleanErr)
	}
	return nil
}

// listed is how many transactions that are undone are listed.
const listed = 10

// recentOf are those of which something can be undone, and the last ones that are undone.
func recentOf(all []*journal.Transaction) []*journal.Transaction {
	finished := 0
	for _, tx := range all {
		finished += oneIf(tx.Finished())
	}
	return slices.DeleteFunc(slices.Clone(all), func(tx *journal.Transaction) bool {
		if !tx.Finished() {
			return false
		}
		finished--
		return finished >= listed
	})
}

func (t *tuner) view() (journal.View, error) {
	return journal.NewView(t.host.procRoot, journal.SystemClock{})
}

func (t *tuner) confirmCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "confirm [ID]",
		Short: "keep a change that would be rolled back",
		Long: `Keep a change that was made with --confirm. Without ID, the one that waits. The
files of --persist are written now, not before: until then a reboot undoes all.`,
		Example:           "  sudo natkit tune confirm\n  sudo natkit tune confirm t0007",
		Args:              oneID,
		ValidArgsFunction: t.completeIDs(func(s journal.Status) bool { return s == journal.StatusPending }),
		RunE: func(_ *cobra.Command, args []string) error {
			opt, err := t.options()
			if err != nil {
				return err
			}
			id, err := t.pendingID(opt, args)
			if err != nil {
				return err
			}
			tx, err := apply.Confirm(id, opt)
			if err != nil {
				return err
			}
			return t.printOne(tx, asJSON, "confirmed")
		},
	}
	addJSON(cmd, &asJSON, tuneSchema)
	return cmd
}

// pendingID is the argument, or the only transaction that waits.
func (t *tuner) pendingID(opt apply.Options, args []string) (string, error) {
	if len(args) == 1 {
		return args[0], nil
	}
	ids, damaged, err := t.withStatus(opt, func(s journal.Status) bool { return s == journal.StatusPending })
	switch {
	case err != nil:
		return "", err
	case len(ids) == 0 && damaged != nil:
		return "", fmt.Errorf("confirm: nothing that can be read waits for confirmation: %w", damaged)
	case len(ids) == 0:
		return "", errors.New("confirm: nothing waits for confirmation; 'natkit tune list' shows what became of it")
	case len(ids) > 1:
		return "", usagef("confirm: several wait for confirmation, name one: %s", strings.Join(ids, " "))
	}
	return ids[0], nil
}

// withStatus lists the ids of transactions, oldest first. damaged are the errors about
// those that cannot be read.
func (t *tuner) withStatus(opt apply.Options, want func(journal.Status) bool) (ids []string, damaged, err error) {
	all, unread, err := opt.Journal.List()
	damaged = errors.Join(unread...)
	if err != nil || len(all) == 0 {
		return nil, damaged, err
	}
	view, err := t.view()
	if err != nil {
		return nil, damaged, err
	}
	for _, tx := range all {
		if want(view.Status(tx)) {
			ids = append(ids, tx.ID)
		}
	}
	return ids, damaged, nil
}

func (t *tuner) printOne(tx *journal.Transaction, asJSON bool, said string) error {
	view, err := t.view()
	if err != nil {
		return err
	}
	one := describeTransaction(tx, view)
	one.Said = said
	return tuneDocument{Transactions: []tuneTransaction{one}}.print(t.env, asJSON, printResults)
}

// completeIDs offers transactions with what they are, for the shell.
func (t *tuner) completeIDs(want func(journal.Status) bool) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		opt, err := t.options()
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		all, _, err := opt.Journal.List()
		view, viewErr := t.view()
		if err != nil || viewErr != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var out []string
		for _, tx := range all {
			if status := view.Status(tx); want(status) {
				out = append(out, cobra.CompletionWithDesc(tx.ID, string(status)+": "+strings.Join(txChanges(tx), ", ")))
			}
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeSysctls offers the connection tracker's values.
func (t *tuner) completeSysctls(_ *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	paths, _ := filepath.Glob(filepath.Join(t.host.procRoot, "sys/net/netfilter/nf_conntrack_*"))
	var out []string
	for _, p := range paths {
		out = append(out, "net.netfilter."+filepath.Base(p)+"=")
	}
	return out, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
}

type applyFlags struct {
	changeFlags
	target
	dryRun, asJSON bool
}

func (t *tuner) applyCommand() *cobra.Command {
	var f applyFlags
	cmd := &cobra.Command{
		Use:   "apply NAME=VALUE...",
		Short: "change kernel values (sysctls) and options of NAT rules, with undo",
		Long: `Show what would change, what it costs and what it risks, and ask. With --yes, do it
without asking; with --dry-run, stop there. Where stdin is not a terminal, one of them
is needed: without, nothing is changed, and the exit code is 2.

NAME is a sysctl's dotted name as sysctl(8) takes it. Values under net.netfilter
that hold for the whole host (nf_conntrack_max, nf_conntrack_buckets) need root,
or CAP_NET_ADMIN in the initial network namespace; nothing is changed where one
of several changes is impossible.

The ports and options of a rule of nftables or iptables-nft that translates
sources are changed in its place: "TARGET=1024-65535 fully-random", where TARGET
is the rule's in nat_rules of 'natkit snapshot --json' ("netns 4026532290 ip nat
POSTROUTING 5f3a9c01"). What is left out is taken off the rule. Such a change needs
CAP_NET_ADMIN in the rule's network namespace, and cannot be persisted.

With --confirm the files of --persist are written at the confirmation only, so
that a reboot before it undoes everything.`,
		Example: `  natkit tune apply --dry-run net.netfilter.nf_conntrack_max=524288
  sudo natkit tune apply --yes net.netfilter.nf_conntrack_max=524288
  sudo natkit tune apply --yes --confirm 60s --persist net.ipv4.ip_local_port_range="1024 65535"
  sudo natkit tune apply --yes --netns gw net.netfilter.nf_conntrack_udp_timeout=60
  sudo natkit tune apply "netns 4026532290 ip nat POSTROUTING 5f3a9c01=fully-random"`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: t.completeSysctls,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.check(cmd); err != nil {
				return err
			}
			ns, err := f.open(cmd)
			if err != nil {
				return err
			}
			defer ns.Close()
			return ns.Do(func() error { return t.apply(cmd.Context(), f, args) })
		},
	}
	f.changeFlags.addFlags(cmd, "")
	f.target.addFlags(cmd)
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "only show what would be changed")
	cmd.MarkFlagsMutuallyExclusive("yes", "dry-run")
	addJSON(cmd, &f.asJSON, tuneSchema)
	return cmd
}

func (t *tuner) apply(ctx context.Context, f applyFlags, args []string) error {
	opt, err := t.options()
	if err != nil {
		return err
	}
	f.fill(&opt)
	doc, err := t.plan(ctx, f, opt, args)
	if err != nil {
		return err
	}
	if len(doc.Plan.Changes) == 0 || f.dryRun || !f.yes && f.asJSON {
		return errors.Join(doc.print(t.env, f.asJSON, printPlan), f.unasked(len(doc.Plan.Changes)))
	}
	if !f.asJSON {
		if err := printPlan(t.env, doc); err != nil {
			return err
		}
	}
	if !f.yes {
		if agreed, err := t.env.askToApply(ctx, t.env.Stdout); err != nil || !agreed {
			return err
		}
	}
	applied, err := apply.Apply(ctx, *doc.Plan, opt)
	if err != nil {
		return err
	}
	tx := applied.Transaction()
	if !f.asJSON {
		return printApplied(t.env.Stdout, t.env.style(), &tx)
	}
	view, err := t.view()
	if err != nil {
		return err
	}
	doc.Applied = true
	doc.Transactions = []tuneTransaction{describeTransaction(&tx, view)}
	return doc.print(t.env, true, nil)
}

// unasked is the error of a plan as a document: who reads it cannot be asked.
func (f applyFlags) unasked(changes int) error {
	if changes == 0 || f.dryRun {
		return nil
	}
	return errJSONAsks
}

// plan reads the present values. A value that is there already is no change,
// unless it is to be persisted.
func (t *tuner) plan(ctx context.Context, f applyFlags, opt apply.Options, args []string) (tuneDocument, error) {
	doc := tuneDocument{Plan: &tune.Plan{Origin: "tune", Changes: []tune.Change{}}, Confirm: f.confirm.Seconds()}
	for _, arg := range args {
		change, err := t.wanted(arg)
		if err != nil {
			return doc, err
		}
		if tune.SameValue(change.Before, change.After) {
			change.Why = whyAgain(change, opt)
			if change.Why == "" && (!f.persist || change.Kind == tune.NATRule) {
				doc.Already = append(doc.Already, change.Target+" is "+report.ChangeValue(change, change.Before)+" already")
				continue
			}
		}
		doc.Plan.Changes = append(doc.Plan.Changes, change)
	}
	if len(doc.Plan.Changes) == 0 {
		return doc, nil
	}
	if err := doc.Plan.Validate(); err != nil {
		return doc, usageError{err}
	}
	doc.Plan.Changes = tune.Assess(doc.Plan.Changes, t.facts(ctx))
	if !f.persist {
		return doc, nil
	}
	var err error
	doc.Files, doc.Warnings, err = planFiles(*doc.Plan, opt)
	return doc, err
}

// wanted is the change that an argument asks for, with the present value. A NAT
// rule's Target begins with a word that no sysctl's name has.
func (t *tuner) wanted(arg string) (tune.Change, error) {
	if strings.HasPrefix(arg, "netns ") {
		target, o, err := tune.ParseNATAssignment(arg)
		if err != nil {
			return tune.Change{}, usageError{err}
		}
		now, err := edit.Options(target)
		return tune.Change{Kind: tune.NATRule, Target: target, Before: now.String(), After: o.String()}, err
	}
	name, value, err := tune.ParseAssignment(arg)
	if err != nil {
		return tune.Change{}, usageError{err}
	}
	before, err := apply.ReadSysctl(t.host.procRoot, name)
	return tune.Change{Kind: tune.Sysctl, Target: name, Before: before, After: value}, err
}

// whyAgain says why a value that is there already has to be written down again;
// empty where it has not.
func whyAgain(c tune.Change, opt apply.Options) string {
	holder, err := apply.Temporary(c.Target, c.After, opt)
	if err != nil || holder == nil { // a journal that cannot be read stops what follows, where it counts
		return ""
	}
	return fmt.Sprintf("%s (%s) set it for a while; so it stays", holder.ID, holder.Origin)
}

// planFiles lists the lines that make a plan hold after a boot, and what keeps
// them from it.
func planFiles(plan tune.Plan, opt apply.Options) (files []tune.Change, warnings []string, err error) {
	if files, err = apply.PlanPersist(plan.Changes, opt); err != nil {
		return nil, nil, err
	}
	for _, c := range plan.Changes {
		for _, path := range apply.Overriding(cmp.Or(opt.Root, "/"), c.Target) {
			warnings = append(warnings, fmt.Sprintf("%s sets %s too and is read later at boot: it wins", path, c.Target))
		}
	}
	return files, warnings, nil
}

// facts are what costs and risks depend on; what cannot be read stays unknown.
func (t *tuner) facts(ctx context.Context) tune.Facts {
	now, err := collect.Read(ctx, collect.Options{Proc: t.host.procRoot, MaxEntries: 1})
	if err != nil { // ctx ended, and what follows will notice
		now = &snapshot.Snapshot{}
	}
	return tune.FactsOf(now)
}

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
