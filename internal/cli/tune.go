//go:build linux

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/natkit/natkit/internal/capacity"
	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/document"
	gwapply "github.com/natkit/natkit/internal/gateway/apply"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/ruleset/edit"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/apply"
	"github.com/natkit/natkit/internal/tune/journal"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

const tuneSchema = "natkit.tune/1"

// tuneHost is where the host lies; tests put a folder in its place.
type tuneHost struct{ procRoot, root string }

var realHost = tuneHost{"/proc", "/"}

// tuner is what the verbs share that change values and keep a journal of them.
type tuner struct {
	env  *Env
	host tuneHost
}

func newTune(env *Env) *cobra.Command { return tuneCommand(env, realHost) }

func tuneCommand(env *Env, host tuneHost) *cobra.Command {
	t := &tuner{env: env, host: host}
	cmd := &cobra.Command{
		Use:   "tune",
		Short: "change values of this host, with undo: apply, list, confirm, undo",
		Long: `Change values of this host so that they can be taken back.

Every change is written to a journal (/var/lib/natkit/journal, or
$NATKIT_STATE_DIR/journal) before it is made, read back after it is made, and undone by
one command, as long as the value is still the one that natkit wrote. A reboot undoes
every change that is not persisted.

With --confirm the change is rolled back unless you run 'natkit tune confirm' in time: if
it cuts you off, wait. A small process named nk-guard does this; it outlives natkit and
your login.`,
		Example: `  natkit tune apply net.netfilter.nf_conntrack_max=524288
  sudo natkit tune apply --yes --confirm 60s --persist net.netfilter.nf_conntrack_max=524288
  sudo natkit tune confirm
  sudo natkit tune list
  sudo natkit tune undo --last`,
	}
	cmd.AddCommand(t.applyCommand(), t.listCommand(), t.confirmCommand(), t.undoCommand())
	return cmd
}

// appliers are those of the kinds of changes that package tune/apply does not have.
func appliers(opt apply.Options) map[tune.Kind]apply.Applier {
	all := gwapply.Appliers(opt)
	all[tune.NATRule] = edit.Applier{}
	return all
}

func init() { apply.Init(appliers) }

// options open the journal; nothing is created before something is changed.
func (t *tuner) options() (apply.Options, error) {
	j, err := t.env.journal()
	return apply.Options{Journal: j, ProcRoot: t.host.procRoot, Root: t.host.root}, err
}

func (t *tuner) view() (journal.View, error) {
	return journal.NewView(t.host.procRoot, journal.SystemClock{})
}

func (t *tuner) listCommand() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "list [ID]",
		Short: "list what natkit changed, what waits for confirmation, and what is undone",
		Long: `List the journal, oldest first: all that can be undone, and the last 10 that were
undone; with ID that one, with all of its changes. Changes that are abandoned (natkit was
killed, a reboot) or overdue (not confirmed) are undone first, with a note; one whose
guard was killed stays until its deadline.

  pending      waits for 'natkit tune confirm'
  applied      in force, can be undone
  persisted    of an earlier boot, its files under /etc are in force
  held         a running natkit (a lab) undoes it when it ends
  undone, left taken back; left: a value was changed since
  void         undone by a reboot`,
		Example:           "  sudo natkit tune list\n  sudo natkit tune list t0007\n  sudo natkit tune list --json",
		Args:              oneID,
		ValidArgsFunction: t.completeIDs(func(journal.Status) bool { return true }),
		RunE: func(_ *cobra.Command, args []string) error {
			opt, err := t.options()
			if err != nil {
				return err
			}
			return t.list(opt, all, args)
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "also what was undone before the last 10")
	t.env.addJSON(cmd, tuneSchema)
	t.env.addCSV(cmd, "change")
	return cmd
}

// oneID takes the id of a transaction, or nothing.
func oneID(cmd *cobra.Command, args []string) error {
	if len(args) == 1 && !journal.IsID(args[0]) {
		var flags []string
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) { flags = append(flags, "--"+f.Name) })
		return usagef("%q is not an id such as t0001%s; 'natkit tune list' shows them", args[0], document.Hint("--"+args[0], flags))
	}
	return takes(cmd, args)
}

func (t *tuner) confirmCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "confirm [ID]",
		Short: "keep a change that would be rolled back",
		Long: `Keep a change that was made with --confirm. Without ID, the one that waits. The
files of --persist are written now, not before: until then a reboot undoes all.`,
		Example:           "  sudo natkit tune confirm\n  sudo natkit tune confirm t0007",
		Args:              oneID,
		ValidArgsFunction: t.completeIDs(isPending),
		RunE: func(_ *cobra.Command, args []string) error {
			tx, err := t.confirm(args, "change", func(*journal.Transaction) bool { return true })
			if err != nil {
				return err
			}
			return t.env.print(resultsOf(tuneSchema, "", tx))
		},
	}
	t.env.addJSON(cmd, tuneSchema)
	return cmd
}

// completeIDs offers transactions with what they are, for the shell.
func (t *tuner) completeIDs(want func(journal.Status) bool) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) (out []string, _ cobra.ShellCompDirective) {
		opt, err := t.options()
		if err != nil || len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		_, _, _ = t.choose(opt, func(s journal.Status, tx *journal.Transaction) bool {
			if want(s) {
				out = append(out, cobra.CompletionWithDesc(tx.ID, string(s)+": "+strings.Join(changeLines(tx), ", ")))
			}
			return false
		})
		return out, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeSysctls offers the connection tracker's values.
func (t *tuner) completeSysctls(_ *cobra.Command, _ []string, _ string) (out []string, _ cobra.ShellCompDirective) {
	paths, _ := filepath.Glob(filepath.Join(t.host.procRoot, "sys/net/netfilter/nf_conntrack_*"))
	for _, p := range paths {
		out = append(out, "net.netfilter."+filepath.Base(p)+"=")
	}
	return out, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
}

type applyFlags struct {
	changeFlags
	target
	dryRun bool
}

func (t *tuner) applyCommand() *cobra.Command {
	var f applyFlags
	cmd := &cobra.Command{
		Use:   "apply NAME=VALUE…",
		Short: "change kernel values (sysctls) and options of NAT rules, with undo",
		Long: `Show what would change, its cost and risk, and ask. With --yes, apply it without
asking; with --dry-run, only show it. NAME is a sysctl's dotted name as sysctl(8) takes
it; nothing is changed where one of several changes is impossible.

The ports and options of a rule of nftables or iptables-nft that translates
sources are changed in place: "TARGET=1024-65535 fully-random", where TARGET
is the rule's in nat_rules of 'natkit snapshot --json' ("netns 4026532290 ip nat
POSTROUTING 5f3a9c01"). Options that are left out are removed from the rule.

Needs root or CAP_NET_ADMIN.`,
		Example: `  natkit tune apply --dry-run net.netfilter.nf_conntrack_max=524288
  sudo natkit tune apply --yes net.netfilter.nf_conntrack_max=524288
  sudo natkit tune apply --yes --confirm 60s --persist net.ipv4.ip_local_port_range="1024 65535"
  sudo natkit tune apply --yes --netns gw net.netfilter.nf_conntrack_udp_timeout=60
  sudo natkit tune apply "netns 4026532290 ip nat POSTROUTING 5f3a9c01=fully-random"`,
		ValidArgsFunction: t.completeSysctls,
	}
	f.runs(cmd, func(ctx context.Context, ns *netns.Handle, args []string) error {
		return ns.Do(func() error { return t.apply(ctx, f, args) })
	})
	f.changeFlags.addFlags(cmd)
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "only show what would be changed")
	cmd.MarkFlagsMutuallyExclusive("yes", "dry-run")
	t.env.addJSON(cmd, tuneSchema)
	return cmd
}

func (t *tuner) apply(ctx context.Context, f applyFlags, args []string) error {
	opt, err := t.options()
	if err != nil {
		return err
	}
	opt.Confirm, opt.Persist = f.confirm, f.persist
	doc, err := t.plan(ctx, f, opt, args)
	if err != nil {
		return err
	}
	if len(doc.Plan.Changes) == 0 || f.dryRun {
		return t.env.print(doc)
	}
	if agreed, err := t.env.agree(ctx, doc, f.yes); err != nil || !agreed {
		return err
	}
	applied, err := apply.Apply(ctx, *doc.Plan, opt)
	if err != nil {
		return err
	}
	tx := applied.Transaction()
	if !t.env.asJSON {
		return t.env.say("%s", appliedText(&tx, "natkit tune undo "+tx.ID, "natkit tune confirm "+tx.ID))
	}
	described, err := t.describe(&tx, "")
	doc.Applied, doc.Transactions = true, []transaction{described}
	return errors.Join(err, t.env.print(doc))
}

// plan reads the present values. A value that is there already is no change,
// unless it is to be persisted.
func (t *tuner) plan(ctx context.Context, f applyFlags, opt apply.Options, args []string) (*changeDocument, error) {
	doc := planOf(&tune.Plan{Origin: "tune", Changes: []tune.Change{}}, f.confirm)
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
		return doc, usage(err)
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
			return tune.Change{}, usage(err)
		}
		now, err := edit.Options(target)
		return tune.Change{Kind: tune.NATRule, Target: target, Before: now.String(), After: o.String()}, err
	}
	name, value, err := tune.ParseAssignment(arg)
	if err != nil {
		return tune.Change{}, usage(err)
	}
	before, err := apply.ReadSysctl(t.host.procRoot, name)
	return tune.Change{Kind: tune.Sysctl, Target: name, Before: before, After: value}, err
}

// whyAgain is why a value that is there already has to be written down again;
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

// facts returns what costs and risks depend on; what cannot be read stays unknown.
func (t *tuner) facts(ctx context.Context) tune.Facts {
	now, err := collect.Read(ctx, collect.Options{Proc: t.host.procRoot, MaxEntries: 1})
	if err != nil { // ctx ended, and what follows will notice
		now = &snapshot.Snapshot{}
	}
	return capacity.TableOf(now)
}

func (t *tuner) undoCommand() *cobra.Command {
	var last, all, force bool
	cmd := &cobra.Command{
		Use:   "undo {ID | --last | --all}",
		Short: "take changes back, where the values are still natkit's",
		Long: `Take changes back. A value that was changed since is left as it is, and listed as
left. What a running natkit holds (a lab) is not touched. After a reboot only the files
of --persist are taken back.

Refused, with nothing changed: a gateway whose rules were changed since, and changes
in a network namespace that is gone or cannot be identified. --force leaves those as
they are, takes the rest back, and does not wait for a running natkit.`,
		Example:           "  sudo natkit tune undo --last\n  sudo natkit tune undo t0007\n  sudo natkit tune undo --force t0007",
		Args:              argsUnless(oneID, "last", "all"),
		ValidArgsFunction: t.completeIDs(isUndoable),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) == 0 && force:
				return usagef("undo: --force requires an ID; 'natkit tune list' shows the ids")
			case len(args) == 0 && !last && !all:
				return usagef("undo: one of ID, --last, --all is required; 'natkit tune list' shows the ids")
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
			t.noteStall(cmd.Context(), opt, ids)
			return errors.Join(t.undo(opt, ids, all, damaged == nil), damaged)
		},
	}
	cmd.Flags().BoolVar(&last, "last", false, "the newest one that is in force")
	cmd.Flags().BoolVar(&all, "all", false, "all that are in force, newest first")
	cmd.Flags().BoolVar(&force, "force", false, "also what a running natkit holds; leave what cannot be taken back")
	cmd.MarkFlagsMutuallyExclusive("last", "all")
	t.env.addJSON(cmd, tuneSchema)
	return cmd
}

// noteStall warns before an undo that holds up the host's traffic.
func (t *tuner) noteStall(ctx context.Context, opt apply.Options, ids []string) {
	for _, id := range ids {
		tx, err := opt.Journal.Load(id)
		if err != nil { // the undo reports it
			continue
		}
		for _, c := range tx.Changes {
			if !c.Open() || c.Kind != tune.Sysctl || c.Target != snapshot.ConntrackBuckets {
				continue
			}
			if stall := tune.Stall(t.facts(ctx), c.Change); stall != "" {
				t.env.note("undo of %s in %s: %s", c.Target, id, stall)
			}
		}
	}
}
