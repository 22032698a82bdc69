package cli

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/natkit/natkit/internal/suggest"
	"github.com/natkit/natkit/internal/tune/apply"
	"github.com/natkit/natkit/internal/tune/journal"
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
