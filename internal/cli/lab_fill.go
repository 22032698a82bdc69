package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/lab/fill"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/tune/apply"
	"github.com/natkit/natkit/internal/units"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
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
		if a.Share, err = parseShare(f.share); err == nil && a.Share == 0 {
			err = errors.New("must be more than 0")
		}
		if err != nil {
			err = usagef("--share %q: %w", f.share, err)
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

// place is the network namespace that is filled: a lab's node, or any other.
type place struct {
	target
	lab       string
	thisNetns bool

	ns    *netns.Handle
	where string
	// ofLab: no real connection is in it. initial: it is the host's own.
	ofLab, initial bool
	attached       *attachedLab
}

func (p *place) addFlags(cmd *cobra.Command) {
	p.target.addFlags(cmd)
	cmd.Flags().StringVar(&p.lab, "lab", "", "`NAME` of the lab, where several are up")
	cmd.Flags().BoolVar(&p.thisNetns, "this-netns", false, "in the network namespace that natkit runs in, also where it is the host's own")
}

// open finds the namespace. close lets go of it.
func (p *place) open(env *Env, cmd *cobra.Command, args []string) (err error) {
	other := cmd.Flags().Changed("netns") || cmd.Flags().Changed("pid")
	switch {
	case p.lab != "" && len(args) == 0:
		return usagef("--lab %s: which node of it? give its name", p.lab)
	case len(args) > 0 && (other || p.thisNetns), other && p.thisNetns:
		return usagef("expected one network namespace: NODE, --netns, --pid or --this-netns")
	case len(args) > 0:
		return p.openNode(env, args[0])
	}
	if p.ns, err = p.target.open(cmd); err != nil {
		return err
	}
	switch {
	case p.ns == nil:
		p.where = "this network namespace"
		p.ns, err = netns.Current()
	case p.netns != "":
		p.where = "network namespace " + p.netns
	default:
		p.where = fmt.Sprintf("the network namespace of pid %d", p.pid)
	}
	if err != nil {
		return err
	}
	// From inside: the kernel may have to be asked about the namespace of the thread.
	err = p.ns.Do(func() error {
		p.initial = apply.IsInitialNetns(p.ns.Inode(), "/proc")
		return nil
	})
	if err != nil {
		p.close()
	}
	return err
}

// mayFill refuses the host's own namespace where nobody asked for it.
func (p *place) mayFill() error {
	if p.initial && !p.thisNetns {
		return usagef("%s is the host's own, where a fill takes the places of real connections: name another (NODE, --netns, --pid), or say --this-netns", p.where)
	}
	return nil
}

func (p *place) openNode(env *Env, node string) (err error) {
	if p.attached, err = attachLab(env, p.lab); err != nil {
		return err
	}
	n, err := p.attached.node(node)
	if err != nil {
		p.close()
		return err
	}
	p.ns, p.ofLab, p.where = n.Netns, true, fmt.Sprintf("%s of lab %s", node, p.attached.name)
	return nil
}

func (p *place) close() {
	if p.attached != nil {
		_ = p.attached.Close() // only lets go of it
		return
	}
	_ = p.ns.Close()
}

// plan is how many entries the table is to hold; 0 where the person at the
// terminal does not want it.
func (f *labFill) plan(ctx context.Context, mix *lab.Mix, amount lab.Amount) (limit, target int64, err error) {
	usage, err := dump.Count(f.ns)
	if err != nil {
		return 0, 0, fmt.Errorf("fill the connection table of %s: %w", f.where, err)
	}
	if limit, err = fill.Max(); err != nil {
		return 0, 0, err
	}
	if target, err = amount.Target(limit); err != nil {
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

// risks are why the person must agree. In a lab there are none.
func (f *labFill) risks(mix *lab.Mix, used, limit, target int64) (risks []string) {
	if f.ofLab {
		return nil
	}
	left := limit - target
	if limit > 0 && float64(left) < fewPlaces*float64(limit) && (used > 0 || f.initial) {
		risks = append(risks, fmt.Sprintf("%s tracks %s now; the fill leaves %s of %s places, and once these are taken the kernel drops every packet that needs a new entry",
			f.where, units.Plural(used, "connection", "connections"), units.Count(left), units.Count(limit)))
	}
	if foreign := mix.Foreign(); len(foreign) > 0 {
		risks = append(risks, fmt.Sprintf("mix %s has addresses that somebody may really have (%s): packets of such connections would meet its entries, and be translated by them", mix.Name, foreign[0]))
	}
	return risks
}

// removeLeft removes the fills that no running natkit keeps up.
func (f *labFill) removeLeft(cmd *cobra.Command, args []string) error {
	var inode uint64
	if len(args) > 0 || cmd.Flags().Changed("netns") || cmd.Flags().Changed("pid") || f.thisNetns || f.lab != "" {
		if err := f.place.open(f.env, cmd, args); err != nil {
			return err
		}
		defer f.place.close()
		inode = f.ns.Inode()
	}
	removed, held, err := fill.Clean(cmd.Context(), f.env.Getenv(runDirEnv), inode)
	if err != nil && len(removed)+len(held) == 0 && !f.json { // "no fill was left" would not be true
		return err
	}
	return errors.Join(err, describeRemoved(removed, held).print(f.env, f.json))
}

// Names of the JSON forms of lab fill: a fill, with --list, and with --remove.
const (
	fillSchema       = "natkit.fill/1"
	fillListSchema   = "natkit.fill-list/1"
	fillRemoveSchema = "natkit.fill-remove/1"
)

// fillDocument is a fill, and all that is needed to make it again: mix, seed, how
// full, and what the table held before.
type fillDocument struct {
	Schema  string `json:"schema"`
	Version string `json:"natkit_version"`
	Where   string `json:"where"`
	// Netns is the namespace's inode.
	Netns   uint64     `json:"netns"`
	Started time.Time  `json:"started_at"`
	Asked   lab.Amount `json:"asked"`
	Seed    uint64     `json:"seed"`
	// Mark is on the entries (CTA_MARK).
	Mark   uint32     `json:"mark"`
	Kept   bool       `json:"kept"`
	Max    int64      `json:"nf_conntrack_max"`
	Before int64      `json:"entries_before"`
	Made   int64      `json:"entries_made"`
	Table  int64      `json:"table_entries"`
	Took   float64    `json:"seconds"`
	Rate   float64    `json:"entries_per_second"`
	Parts  []fillPart `json:"parts"`
	Mix    *lab.Mix   `json:"mix"`
}

type fillPart struct {
	Name    string `json:"name"`
	Kind    string `json:"kind"`
	Entries int64  `json:"entries"`
}

func describeFill(env *Env, f *fill.Fill, mix *lab.Mix, asked lab.Amount, limit int64) fillDocument {
	d := fillDocument{
		Schema: fillSchema, Version: env.Version, Where: f.Where, Netns: f.Netns, Started: f.Started,
		Asked: asked, Seed: f.Seed, Mark: f.Mark, Kept: f.Keep, Max: limit, Before: f.Before,
		Made: f.Made, Table: f.Table.Entries, Took: f.Took.Seconds(), Mix: mix,
	}
	if d.Took > 0 {
		d.Rate = float64(d.Made) / d.Took
	}
	for i, n := range f.Counts() {
		d.Parts = append(d.Parts, fillPart{mix.Parts[i].Name, mix.Parts[i].Kind(), n})
	}
	return d
}

func (d fillDocument) print(env *Env, asJSON bool) error {
	if asJSON {
		return report.JSON(env.Stdout, d)
	}
	// In one piece: a reader of the first line only, as head, is no failure.
	var text bytes.Buffer
	fmt.Fprintf(&text, "%s: %s made in %s (%s/s)\n", d.Where, units.Plural(d.Made, "entry", "entries"), units.Seconds(d.Took), units.Rate(d.Rate))
	fmt.Fprintf(&text, "mix %s, seed %d, mark %#x; the table holds %s of %s\n\n", d.Mix.Name, d.Seed, d.Mark, units.Count(d.Table), limitText(d.Max))
	t := &report.Table{Columns: []report.Column{{Head: "part"}, {Head: "entries", Right: true}, {Head: "kind"}}}
	for _, p := range d.Parts {
		t.Row(p.Name, units.Count(p.Entries), p.Kind)
	}
	if err := t.Write(&text, env.style()); err != nil {
		return err
	}
	return env.say("%s", text.Bytes())
}

func limitText(limit int64) string {
	if limit == 0 {
		return "no limit"
	}
	return units.Count(limit)
}

// fillList is what --list prints.
type fillList struct {
	Schema string     `json:"schema"`
	Mixes  []*lab.Mix `json:"mixes"`
}

func listMixes(env *Env, asJSON bool) error {
	if asJSON {
		return report.JSON(env.Stdout, fillList{fillListSchema, lab.Mixes()})
	}
	t := &report.Table{Columns: []report.Column{{Head: "mix"}, {Head: "what it is", Wrap: true}}}
	for _, m := range lab.Mixes() {
		t.Row(m.Name, m.Title)
	}
	return t.Write(env.Stdout, env.style())
}

func showMix(env *Env, name string) error {
	mix, err := lab.FindMix(name)
	if err != nil {
		return usageError{err}
	}
	_, err = env.Stdout.Write(mix.Source())
	return err
}

// fillRemoval is what --remove prints.
type fillRemoval struct {
	Schema  string        `json:"schema"`
	Removed []removedFill `json:"removed"`
	// Held are those that a running natkit keeps up.
	Held []fill.Record `json:"held"`
}

type removedFill struct {
	fill.Record
	Deleted int64 `json:"entries_deleted"`
	// Gone: the namespace had ended, and its table with it.
	Gone bool `json:"netns_gone"`
}

func describeRemoved(removed []fill.Removed, held []fill.Record) fillRemoval {
	d := fillRemoval{Schema: fillRemoveSchema, Removed: []removedFill{}, Held: append([]fill.Record{}, held...)}
	for _, r := range removed {
		d.Removed = append(d.Removed, removedFill{r.Record, r.Entries, r.Gone})
	}
	return d
}

func (d fillRemoval) print(env *Env, asJSON bool) error {
	if asJSON {
		return report.JSON(env.Stdout, d)
	}
	for _, r := range d.Removed {
		switch {
		case r.Gone:
			fmt.Fprintf(env.Stdout, "%s: it is gone, and mix %s with it\n", r.Where, r.Mix)
		default:
			fmt.Fprintf(env.Stdout, "%s: removed %s of mix %s (of %s to be made)\n", r.Where, units.Plural(r.Deleted, "entry", "entries"), r.Mix, units.Count(r.Entries))
		}
	}
	for _, r := range d.Held {
		fmt.Fprintf(env.Stdout, "%s: left alone mix %s, which a running natkit (pid %d) keeps up\n", r.Where, r.Mix, r.PID)
	}
	if len(d.Removed)+len(d.Held) == 0 {
		_, err := fmt.Fprintln(env.Stdout, "no fill was left")
		return err
	}
	return nil
}
