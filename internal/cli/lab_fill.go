package cli

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/lab/fill"
	"github.com/natkit/natkit/internal/units"
)

// labFill is what the command line of lab fill says.
type labFill struct {
	env *Env
	place
	entries, free int64
	share         string
	mix           string
	seed          uint64
	time          seconds
	keep, yes     bool
	json          bool

	list, remove bool
	show         string
}

func newLabFill(env *Env) *cobra.Command {
	f := &labFill{env: env}
	cmd := &cobra.Command{
		Use:   "fill [NODE]",
		Short: "fill a connection table with a described mix of entries, and remove exactly these",
		Long: `Fills the connection table of a network namespace: of NODE in a lab that is up, or
of any other, so that monitoring, alerts and 'natkit doctor' can be seen to react.
The entries are made by ctnetlink; no packet is sent. The same mix, seed and number
give the same entries.

It fills until the table holds --entries, a --share of nf_conntrack_max, or leaves
--free places; prints what there is; and removes its entries when it is interrupted
(Ctrl-C) or after --for. With --keep they stay until they time out, or until
'natkit lab fill --remove' or 'natkit lab clean'; these also remove what a natkit
that was killed has left. No entry that is not its own is touched: each fill has a
mark (conntrack's, not the packets') that no other entry has.

Every network namespace has a table of its own, and nf_conntrack_max holds for each.
In one with real connections a fill takes their places: once the table is full, the
kernel drops every packet that would need a new entry. natkit says so and asks, or
needs --yes, where less than a tenth would be left. The host's own network namespace
is filled with --this-netns only.

For a new connection to a full table the kernel evicts entries that are not assured,
and those of closing TCP connections: of such a mix the table does not stay full. The
mix established is of the kind that it never evicts.

--list and --show print the mixes; docs/lab-fill.md tells how to write one. Needs
CAP_NET_ADMIN, and CAP_SYS_ADMIN to enter a namespace.`,
		Example: `  sudo natkit lab up table-full
  sudo natkit lab fill gateway --share 95% --mix gateway
  sudo natkit lab fill --netns gw --entries 100000 --mix syn-flood --for 1m
  sudo natkit lab fill --pid 4711 --free 1000 --keep && sudo natkit lab fill --remove
  natkit lab fill --show gateway > mine.yaml`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	f.flags(cmd)
	return cmd
}

func (f *labFill) flags(cmd *cobra.Command) {
	flags := cmd.Flags()
	f.place.addFlags(cmd)
	flags.Int64VarP(&f.entries, "entries", "n", 0, "until the table holds so many entries in all")
	flags.StringVar(&f.share, "share", "", "until the table holds this `SHARE` of nf_conntrack_max, such as 95%")
	flags.Int64Var(&f.free, "free", 0, "until so many places are left below nf_conntrack_max")
	flags.StringVar(&f.mix, "mix", lab.DefaultMix, "what the entries are: a `NAME` of --list, or a file (NAME.yaml)")
	flags.Uint64Var(&f.seed, "seed", 1, "makes another choice of the mix's connections")
	flags.Var(&f.time, "for", "end after this time: seconds or 500ms, 2m, … (default: when interrupted)")
	flags.BoolVar(&f.keep, "keep", false, "leave the entries and end")
	addYes(cmd, &f.yes, "")
	flags.BoolVar(&f.remove, "remove", false, "remove the fills that were left, of the network namespace given or of all")
	flags.BoolVar(&f.list, "list", false, "list the mixes that natkit brings along")
	flags.StringVar(&f.show, "show", "", "print the mix `NAME` as it is written")
	addJSON(cmd, &f.json, fillSchema)
	f.exclude(cmd)
	_ = cmd.RegisterFlagCompletionFunc("mix", completeMixes(cobra.ShellCompDirectiveDefault))
	_ = cmd.RegisterFlagCompletionFunc("show", completeMixes(cobra.ShellCompDirectiveNoFileComp))
}

func completeMixes(otherwise cobra.ShellCompDirective) cobra.CompletionFunc {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		var names []string
		for _, m := range lab.Mixes() {
			names = append(names, cobra.CompletionWithDesc(m.Name, m.Title))
		}
		return names, otherwise
	}
}

// fillAmounts are the flags of which a fill needs exactly one; with those of fillModes
// lab fill does something else.
var (
	fillAmounts = []string{"entries", "share", "free"}
	fillModes   = []string{"list", "show", "remove"}
)

// exclude tells which flags do not go together.
func (f *labFill) exclude(cmd *cobra.Command) {
	cmd.MarkFlagsMutuallyExclusive(fillAmounts...)
	cmd.MarkFlagsMutuallyExclusive(fillModes...)
	cmd.MarkFlagsMutuallyExclusive("keep", "for")
	cmd.MarkFlagsMutuallyExclusive("show", "json")
	for _, mode := range fillModes {
		for _, making := range append([]string{"mix", "seed", "for", "keep", "yes"}, fillAmounts...) {
			cmd.MarkFlagsMutuallyExclusive(mode, making)
		}
	}
}

// check finds what does not go together.
func (f *labFill) check(cmd *cobra.Command, args []string) error {
	given := func(names ...string) (list []string) {
		for _, name := range names {
			if cmd.Flags().Changed(name) {
				list = append(list, "--"+name)
			}
		}
		return list
	}
	modes, amounts := given(fillModes...), given(fillAmounts...)
	places := given("lab", "netns", "pid", "this-netns")
	switch {
	case len(modes) == 1 && !f.remove && len(args)+len(places) > 0:
		return usagef("%s needs no network namespace", modes[0])
	case len(modes) == 1:
		return nil
	case len(amounts) == 0:
		return usagef("one of --entries, --share and --free is required")
	case cmd.Flags().Changed("for") && f.time <= 0:
		return usagef("--for %s: must be more than 0", time.Duration(f.time))
	}
	return nil
}

func (f *labFill) run(cmd *cobra.Command, args []string) error {
	if err := f.check(cmd, args); err != nil {
		return err
	}
	switch {
	case f.list:
		return listMixes(f.env, f.json)
	case f.show != "":
		return showMix(f.env, f.show)
	case f.remove:
		return f.removeLeft(cmd, args)
	}
	amount, err := f.amount()
	if err != nil {
		return err
	}
	mix, err := findMix(f.mix)
	if err != nil {
		return err
	}
	if err := f.place.open(f.env, cmd, args); err != nil {
		return err
	}
	defer f.place.close()
	if err := f.place.mayFill(); err != nil {
		return err
	}
	return f.fill(cmd.Context(), mix, amount)
}

// amount is how full the table is to be.
func (f *labFill) amount() (a lab.Amount, err error) {
	switch {
	case f.share != "":
		if a.Share, err = parseShare("share", f.share); err == nil && a.Share == 0 {
			err = usagef("--share %q: must be more than 0", f.share)
		}
		return a, err
	case f.free != 0:
		a.Free = f.free
	default:
		a.Entries = f.entries
	}
	if a.Free < 0 || a.Entries <= 0 && a.Free == 0 {
		return a, usagef("--entries and --free must be 1 or more")
	}
	return a, nil
}

// findMix takes the name of a mix that natkit brings along, or a file.
func findMix(name string) (*lab.Mix, error) {
	if !isScenarioFile(name) && !strings.HasSuffix(name, ".json") {
		mix, err := lab.FindMix(name)
		if err != nil {
			return nil, usagef("%w; a file of your own needs a name such as %s.yaml", err, name)
		}
		return mix, nil
	}
	text, err := readFile("mix", name, lab.MaxSource)
	if err != nil {
		return nil, err
	}
	mix, err := lab.ParseMix(name, text)
	return mix, malformed(err)
}

func (f *labFill) fill(ctx context.Context, mix *lab.Mix, amount lab.Amount) error {
	limit, target, err := f.plan(ctx, mix, amount)
	if err != nil {
		return err
	}
	if target == 0 { // the person said no
		return nil
	}
	// A reader that goes away, as that of a pipe may, must not end natkit with the
	// entries still there: writing to it then fails.
	broken := make(chan os.Signal, 1)
	signal.Notify(broken, unix.SIGPIPE)
	defer signal.Stop(broken)
	progress := f.env.progress()
	filled, err := fill.Start(ctx, fill.Options{
		Netns: f.ns, Where: f.where, Mix: mix, Seed: f.seed, Target: target, Keep: f.keep,
		Dir:      f.env.Getenv(runDirEnv),
		Progress: func(made, of int64) { progress.Update("filling: %s of %s entries", units.Count(made), units.Count(of)) },
	})
	progress.Clear()
	if err != nil {
		return err
	}
	doc := describeFill(f.env, filled, mix, amount, limit)
	if err := doc.print(f.env, f.json); err != nil { // nobody knows of the fill
		err = fmt.Errorf("tell of the fill of %s: %w", f.where, err)
		if _, removeErr := filled.Remove(context.WithoutCancel(ctx)); removeErr != nil {
			return fmt.Errorf("%w; and then %w; 'natkit lab fill --remove' tries again", err, removeErr)
		}
		return fmt.Errorf("%w; what was made is removed", err)
	}
	if f.keep {
		return filled.Release()
	}
	return f.stay(ctx, filled)
}

// stay keeps the fill up, and then removes it.
func (f *labFill) stay(ctx context.Context, filled *fill.Fill) error {
	var end <-chan time.Time
	if f.time > 0 {
		end = time.After(time.Duration(f.time))
	} else if !f.json {
		fmt.Fprintln(f.env.notes(), "Ctrl-C removes them")
	}
	select {
	case <-ctx.Done():
	case <-end:
	}
	removed, err := filled.Remove(context.WithoutCancel(ctx))
	if err != nil {
		return fmt.Errorf("remove the fill of %s: %w; 'natkit lab fill --remove' tries again", f.where, err)
	}
	fmt.Fprintf(f.env.notes(), "removed %s; %s before\n", units.Plural(removed.Entries, "entry", "entries"), hadGone(filled.Made-removed.Entries))
	return nil
}

func hadGone(n int64) string {
	if n == 0 {
		return "none had gone"
	}
	return units.Count(n) + " had expired or been evicted"
}
