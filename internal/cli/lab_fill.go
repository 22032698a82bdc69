//go:build linux

package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/lab/build"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/tune/apply"
	"github.com/natkit/natkit/internal/units"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// Names of the JSON forms of lab fill: a fill, with --list, and with --remove.
const (
	fillSchema       = "natkit.fill/1"
	fillListSchema   = "natkit.fill-list/1"
	fillRemoveSchema = "natkit.fill-remove/1"
)

// labFill is the verb lab fill.
type labFill struct {
	env *Env
	fillPlace
	amount    lab.Amount
	mix       string
	seed      uint64
	time      time.Duration
	keep, yes bool

	list, remove bool
	show         string
}

func newLabFill(env *Env) *cobra.Command {
	f := &labFill{env: env, fillPlace: fillPlace{place: place{target: new(target)}}}
	cmd := &cobra.Command{
		Use:   "fill [NODE]",
		Short: "fill a connection table with a described mix of entries, and remove exactly these",
		Long: `Fill the connection table of a network namespace: of NODE in a lab that is up, or of
any other, to test monitoring, alerts and 'natkit doctor'. The entries are made by
ctnetlink; no packet is sent. The same mix, seed and number give the same entries.

The entries are removed when it is interrupted (Ctrl-C) or after --for. With --keep they
stay until they time out, or until 'natkit lab fill --remove' or 'natkit lab clean';
no other entry is touched.

A fill takes the places of real connections: where less than a tenth would be left,
natkit warns and asks, or requires --yes. The host's own network namespace is filled
with --this-netns only. docs/lab-fill.md is the language of mixes. Needs CAP_NET_ADMIN,
and CAP_SYS_ADMIN to enter a namespace.`,
		Example: `  sudo natkit lab up table-full
  sudo natkit lab fill gateway --share 95% --mix gateway
  sudo natkit lab fill --netns gw --entries 100000 --mix syn-flood --for 1m
  sudo natkit lab fill --pid 4711 --free 1000 --keep && sudo natkit lab fill --remove
  natkit lab fill --show gateway > mine.yaml`,
		Args:              argsUnless(takes, "netns", "pid", "this-netns", "list", "show"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              f.run,
	}
	f.addFlags(cmd)
	return cmd
}

// fillAmounts are the flags of which a fill needs one; with those of fillModes lab fill
// does something else.
var (
	fillAmounts = []string{"entries", "share", "free"}
	fillModes   = []string{"list", "show", "remove"}
	fillPlaces  = []string{"lab", "netns", "pid", "this-netns"}
)

func (f *labFill) addFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	f.fillPlace.addFlags(cmd)
	flags.VarP(between(&f.amount.Entries, 1, math.MaxInt64), "entries", "n", "fill until the table holds `N` entries in all")
	flags.Var(into(&f.amount.Share, func(text string) (float64, error) {
		share, err := parseShare(text)
		if err == nil && share == 0 {
			err = errors.New("must be more than 0")
		}
		return share, err
	}), "share", "fill until the table holds this `SHARE` of nf_conntrack_max, such as 95%")
	flags.Var(between(&f.amount.Free, 1, math.MaxInt64), "free", "fill until `N` places are left below nf_conntrack_max")
	flags.StringVar(&f.mix, "mix", lab.DefaultMix, "the entries: a `NAME` of --list, or a file (NAME.yaml)")
	flags.Uint64Var(&f.seed, "seed", 1, "makes another choice of the mix's connections")
	flags.Var(period(&f.time, 1, 0), "for", "end after this time: seconds or 500ms, 2m, … (default: when interrupted)")
	flags.BoolVar(&f.keep, "keep", false, "leave the entries and exit")
	addYes(cmd, &f.yes, "")
	flags.BoolVar(&f.remove, "remove", false, "remove the fills that were left, of the given network namespace or of all")
	flags.BoolVar(&f.list, "list", false, "list the built-in mixes")
	flags.StringVar(&f.show, "show", "", "print the mix `NAME` as it is written")
	f.env.addJSON(cmd, fillSchema)
	cmd.MarkFlagsOneRequired(append(fillAmounts, fillModes...)...)
	cmd.MarkFlagsMutuallyExclusive(fillAmounts...)
	cmd.MarkFlagsMutuallyExclusive(fillModes...)
	cmd.MarkFlagsMutuallyExclusive(fillPlaces...)
	cmd.MarkFlagsMutuallyExclusive("keep", "for")
	cmd.MarkFlagsMutuallyExclusive("show", "json")
	for _, mode := range fillModes {
		for _, making := range append([]string{"mix", "seed", "for", "keep", "yes"}, fillAmounts...) {
			cmd.MarkFlagsMutuallyExclusive(mode, making)
		}
		for _, place := range fillPlaces {
			if mode != "remove" {
				cmd.MarkFlagsMutuallyExclusive(mode, place)
			}
		}
	}
	completeFlags(cmd, map[string]cobra.CompletionFunc{
		"mix": offerOrFile(mixNames), "show": offer(mixNames)})
}

func mixNames() (names []string) {
	for _, m := range lab.Mixes() {
		names = append(names, cobra.CompletionWithDesc(m.Name, m.Title))
	}
	return names
}

func (f *labFill) run(cmd *cobra.Command, args []string) error {
	switch {
	case f.list:
		return f.env.print(report.Mixes{Schema: fillListSchema, Mixes: lab.Mixes()})
	case f.show != "":
		mix, err := lab.FindMix(f.show)
		if err != nil {
			return usage(err)
		}
		_, err = f.env.Stdout.Write(mix.Source())
		return err
	case f.remove:
		return f.removeLeft(cmd, args)
	}
	mix, err := f.findMix(cmd.Context())
	if err != nil {
		return err
	}
	if err := f.open(f.env, cmd, args); err != nil {
		return err
	}
	defer f.close()
	if f.initial && !f.thisNetns {
		return usagef("%s is the host's own, where a fill takes the places of real connections: name another (NODE, --netns, --pid), or use --this-netns", f.where)
	}
	return f.fill(cmd.Context(), mix)
}

// findMix takes the name of a built-in mix, or a file.
func (f *labFill) findMix(ctx context.Context) (*lab.Mix, error) {
	name := f.mix
	if !isScenarioFile(name) && !strings.HasSuffix(name, ".json") {
		mix, err := lab.FindMix(name)
		if err != nil {
			return nil, usagef("%w; a file of your own ends in .yaml, .yml or .json", err)
		}
		return mix, nil
	}
	text, err := f.env.read(ctx, "mix", name, lab.MaxSource, "")
	if err != nil {
		return nil, err
	}
	mix, err := lab.ParseMix(name, text)
	return mix, malformed(err)
}

func (f *labFill) fill(ctx context.Context, mix *lab.Mix) error {
	limit, target, err := f.plan(ctx, mix)
	if err != nil || target == 0 { // 0: the user declined
		return err
	}
	// A reader that goes away, as that of a pipe may, must not end natkit with the
	// entries still there: writing to it then fails.
	broken := make(chan os.Signal, 1)
	signal.Notify(broken, unix.SIGPIPE)
	defer signal.Stop(broken)
	progress := f.env.progress()
	filled, err := build.StartFill(ctx, build.FillOptions{
		Netns: f.ns, Where: f.where, Mix: mix, Seed: f.seed, Target: target, Keep: f.keep,
		Dir:      f.env.Getenv(runDirEnv),
		Progress: func(made, of int64) { progress.Update("filling: %s of %s entries", units.Count(made), units.Count(of)) },
	})
	progress.Clear()
	if err != nil {
		return err
	}
	if err := f.report(filled, mix, limit); err != nil { // the user does not know of the fill
		err = fmt.Errorf("report the fill of %s: %w", f.where, err)
		if _, removeErr := filled.Remove(context.WithoutCancel(ctx)); removeErr != nil {
			return fmt.Errorf("%w; and then %w; 'natkit lab fill --remove' tries again", err, removeErr)
		}
		return fmt.Errorf("%w; its entries are removed", err)
	}
	if f.keep {
		return filled.Release()
	}
	return f.stay(ctx, filled)
}

// report writes in one piece: a reader of the first line only, as head, is no failure.
func (f *labFill) report(filled *build.Fill, mix *lab.Mix, limit int64) error {
	d := report.Fill{
		Schema: fillSchema, Version: f.env.Version, Where: filled.Where, Netns: filled.Netns, Started: filled.Started,
		Asked: f.amount, Seed: filled.Seed, Mark: filled.Mark, Kept: filled.Keep, Max: limit, Before: filled.Before,
		Made: filled.Made, Table: filled.Table.Entries, Took: filled.Took.Seconds(), Mix: mix,
	}
	if d.Took > 0 {
		d.Rate = float64(d.Made) / d.Took
	}
	for i, n := range filled.Counts() {
		d.Parts = append(d.Parts, report.FillPart{Name: mix.Parts[i].Name, Kind: mix.Parts[i].Kind(), Entries: n})
	}
	if f.env.asJSON {
		return f.env.print(d)
	}
	var text bytes.Buffer
	err := d.Text(&text, f.env.style())
	_, wrote := f.env.Stdout.Write(text.Bytes())
	return errors.Join(err, wrote)
}

// stay keeps the fill up, and then removes it.
func (f *labFill) stay(ctx context.Context, filled *build.Fill) error {
	if f.time == 0 && !f.env.asJSON {
		fmt.Fprintln(f.env.notes(), "Ctrl-C removes them")
	}
	_ = during(ctx, f.time, 0, nil)
	removed, err := filled.Remove(context.WithoutCancel(ctx))
	if err != nil {
		return fmt.Errorf("remove the fill of %s: %w; 'natkit lab fill --remove' tries again", f.where, err)
	}
	fmt.Fprintf(f.env.notes(), "removed %s; %s had expired or been evicted\n", units.Plural(removed.Entries, "entry", "entries"), units.Count(filled.Made-removed.Entries))
	return nil
}

// fillPlace is the network namespace that is filled: a lab's node, or any other.
type fillPlace struct {
	place
	thisNetns bool
	// initial: it is the host's own.
	initial bool
}

func (p *fillPlace) addFlags(cmd *cobra.Command) {
	p.target.addFlags(cmd)
	addLab(cmd, &p.lab)
	cmd.Flags().BoolVar(&p.thisNetns, "this-netns", false, "in the network namespace that natkit runs in, also where it is the host's own")
}

// open finds the namespace. close releases it.
func (p *fillPlace) open(env *Env, cmd *cobra.Command, args []string) (err error) {
	if len(args) > 0 {
		p.node = args[0]
	} else if p.lab != "" {
		return usagef("--lab requires NODE")
	}
	if err = p.place.open(cmd, env); err == nil && p.ns == nil {
		p.ns, err = netns.Current()
	}
	if err != nil || p.inLab != nil {
		return err
	}
	// From inside: the kernel may have to be asked about the namespace of the thread.
	return p.ns.Do(func() error {
		p.initial = apply.IsInitialNetns(p.ns.Inode(), "/proc")
		return nil
	})
}

// plan returns the number of entries the table is to hold; 0 if the user declines.
func (f *labFill) plan(ctx context.Context, mix *lab.Mix) (limit, target int64, err error) {
	usage, err := dump.Count(f.ns)
	if err != nil {
		return 0, 0, fmt.Errorf("fill the connection table of %s: %w", f.where, err)
	}
	if limit, err = build.ConntrackMax(); err != nil {
		return 0, 0, err
	}
	if target, err = f.amount.Target(limit); err != nil {
		return 0, 0, err
	}
	available, err := collect.AvailableMemory()
	if err != nil {
		return 0, 0, err
	}
	if err := lab.CheckFill(target-usage.Entries, available); err != nil {
		return 0, 0, err
	}
	risks := f.risks(mix, usage.Entries, limit, target)
	if len(risks) == 0 || f.yes {
		return limit, target, nil
	}
	for _, risk := range risks {
		fmt.Fprintln(f.env.Stderr, risk)
	}
	if agreed, err := f.env.ask(ctx, f.env.Stderr, "apply?", "nothing was changed"); err != nil || !agreed {
		return 0, 0, err
	}
	return limit, target, nil
}

// fewPlaces is the share of nf_conntrack_max below which what is left for real
// connections may be gone at once.
const fewPlaces = 0.1

// risks are why the user must agree. In a lab there are none.
func (f *labFill) risks(mix *lab.Mix, used, limit, target int64) (risks []string) {
	if f.inLab != nil {
		return nil
	}
	left := limit - target
	if limit > 0 && float64(left) < fewPlaces*float64(limit) && (used > 0 || f.initial) {
		risks = append(risks, fmt.Sprintf("%s tracks %s now; the fill leaves %s of %s places, and once these are taken the kernel drops every packet that needs a new entry",
			f.where, units.Plural(used, "connection", "connections"), units.Count(left), units.Count(limit)))
	}
	if foreign := mix.Foreign(); len(foreign) > 0 {
		risks = append(risks, fmt.Sprintf("mix %s contains addresses that may be in real use (%s): packets of such connections would match its entries, and be translated by them", mix.Name, foreign[0]))
	}
	return risks
}

// fillRemoval is what --remove reports.
type fillRemoval struct {
	Schema  string              `json:"schema"`
	Removed []build.RemovedFill `json:"removed"`
	// Held are those that a running natkit keeps up.
	Held []build.FillRecord `json:"held"`
}

// removeLeft removes the fills that no running natkit keeps up.
func (f *labFill) removeLeft(cmd *cobra.Command, args []string) error {
	var inode uint64
	if len(args) > 0 || f.thisNetns || f.lab != "" || f.target.args() != "" {
		if err := f.open(f.env, cmd, args); err != nil {
			return err
		}
		defer f.close()
		inode = f.ns.Inode()
	}
	doc, err := removeFills(cmd.Context(), f.env, inode)
	if err != nil && len(doc.Removed)+len(doc.Held) == 0 && !f.env.asJSON { // "no fill was left" would not be true
		return err
	}
	return errors.Join(err, f.env.print(doc))
}

// removeFills removes those of the namespace with this inode, of all where it is 0.
func removeFills(ctx context.Context, env *Env, inode uint64) (fillRemoval, error) {
	removed, held, err := build.CleanFills(ctx, env.Getenv(runDirEnv), inode)
	return fillRemoval{fillRemoveSchema, list(removed), list(held)}, err
}

func (d fillRemoval) Text(w io.Writer, style report.Style) error {
	var b strings.Builder
	for _, r := range d.Removed {
		if r.Gone {
			fmt.Fprintf(&b, "%s: it is gone, and mix %s with it\n", r.Where, r.Mix)
		} else {
			fmt.Fprintf(&b, "%s: removed %s of mix %s (of %s to be made)\n", r.Where, units.Plural(r.Deleted, "entry", "entries"), r.Mix, units.Count(r.Entries))
		}
	}
	for _, r := range d.Held {
		fmt.Fprintf(&b, "%s: left alone mix %s, which a running natkit (pid %d) keeps up\n", r.Where, r.Mix, r.PID)
	}
	if b.Len() == 0 {
		b.WriteString("no fill was left\n")
	}
	_, err := io.WriteString(w, style.Fit(b.String()))
	return err
}
