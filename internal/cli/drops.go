package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	bpf "github.com/natkit/natkit/internal/bpf/drops"
	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/spf13/cobra"
)

// dropsSchema and dropEventSchema name the JSON forms of drops and of one drop.
const (
	dropsSchema     = "natkit.drops/1"
	dropEventSchema = "natkit.drop-event/1"
)

// One flow and one stack are looked at in so many drops, unless all are asked for.
const (
	usualFlowSample  = 64
	usualStackSample = 1024
)

// dropsVerb is the verb drops.
type dropsVerb struct {
	env                   *Env
	target                target
	duration, every       time.Duration
	limit                 int
	flows, stacks, events bool
	iface                 string
	all, asJSON, asCSV    bool
	names                 *namespaceNames
	shown                 int // events
}

func newDrops(env *Env) *cobra.Command {
	d := &dropsVerb{env: env}
	cmd := &cobra.Command{
		Use:   "drops [flags] [FILTER…]",
		Short: "tell where and why the kernel drops packets: function, reason, flow, stack",
		Long: `Count every packet that the kernel drops, by the function that drops it, the
reason, the protocol and the network namespace, until Ctrl-C or for a time: in
all network namespaces, unless --netns or --pid chooses one. What a socket had
queued already is in none.

A full connection table, a rule and an address translation that fails all drop in
nf_hook_slow. Which it was is told by the return values of conntrack's and NAT's
functions, where the kernel has fexit programs, and else by what conntrack's own
counters grew by in the same time; the output says which.

Frees that are no drops, such as what a closed socket had not read, are left out.
Counting costs 20 to 25 ns a drop, noting its flow 50 ns more, its stack more than
1 µs: so one flow in ` + fmt.Sprint(usualFlowSample) + ` drops and one stack in ` + fmt.Sprint(usualStackSample) + ` are looked at (and the first of each
place), all of them with --flows and --stacks. A FILTER costs some 15 ns a drop.

It needs CAP_BPF and CAP_PERFMON (CAP_SYS_ADMIN before Linux 5.8), CAP_SYSLOG for
the names of functions, and Linux 5.4 with BTF; reasons are those of the running
kernel (since 5.17).

` + frame.FilterUsage,
		Example: `  sudo natkit drops                           # all, until Ctrl-C
  sudo natkit drops --for 10 --flows
  sudo natkit drops --netns gateway tcp port 443
  sudo natkit drops --events udp and net 198.18.0.0/15
  sudo natkit drops --for 30 --json --stacks`,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: completeFilter,
		RunE:              func(cmd *cobra.Command, words []string) error { return d.run(cmd, words) },
	}
	d.addFlags(cmd)
	return cmd
}

func (d *dropsVerb) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.Var((*seconds)(&d.duration), "for", "end after this time: seconds or 500ms, 2m, … (default until Ctrl-C)")
	f.Var((*seconds)(&d.every), "every", "show what came in each interval of this time (default 2s on a terminal, else never)")
	f.IntVar(&d.limit, "limit", 20, "show at most `N` lines in each table, 0 for all; with --events, end after N drops if given")
	f.BoolVar(&d.flows, "flows", false, "look at the flow of every drop")
	f.BoolVar(&d.stacks, "stacks", false, "look at the kernel's stack at every drop, and show more of them")
	f.BoolVar(&d.events, "events", false, "show every drop as a line of its own (Linux 5.8)")
	f.StringVar(&d.iface, "iface", "", "only packets that were last on the interface `NAME`")
	f.BoolVar(&d.all, "all", false, "frees that are no drops too")
	d.target.addFlags(cmd)
	addJSON(cmd, &d.asJSON, dropsSchema)
	addCSV(cmd, &d.asCSV, "place")
	cmd.MarkFlagsMutuallyExclusive("every", "events")
	cmd.MarkFlagsMutuallyExclusive("every", "json")
	cmd.MarkFlagsMutuallyExclusive("every", "csv")
	cmd.MarkFlagsMutuallyExclusive("events", "csv")
	completeFlags(cmd, map[string]cobra.CompletionFunc{"iface": completeInterface, "for": cobra.NoFileCompletions,
		"every": cobra.NoFileCompletions, "limit": cobra.NoFileCompletions})
}

// Bounds of --for and --every.
const (
	minDrops = 100 * time.Millisecond
	maxDrops = 24 * time.Hour
)

func (d *dropsVerb) check(cmd *cobra.Command) error {
	for name, value := range map[string]time.Duration{"for": d.duration, "every": d.every} {
		if cmd.Flags().Changed(name) && (value < minDrops || value > maxDrops) {
			return usagef("--%s %s: must be from %s to %s", name, value, minDrops, maxDrops)
		}
	}
	switch {
	case d.limit < 0:
		return usagef("--limit %d: must not be negative", d.limit)
	}
	if d.every == 0 && d.env.StdoutTerminal && !d.events && !d.asJSON && !d.asCSV {
		d.every = 2 * time.Second
	}
	return checkInterface(cmd, d.iface)
}

func (d *dropsVerb) run(cmd *cobra.Command, words []string) error {
	if err := d.check(cmd); err != nil {
		return err
	}
	opt := bpf.Options{Interface: d.iface, FlowSample: usualFlowSample, StackSample: usualStackSample, Harmless: d.all}
	if len(words) > 0 {
		expr, err := frame.ParseFilter(words)
		if err != nil {
			return usageError{err}
		}
		opt.Filter = expr
	}
	if d.flows {
		opt.FlowSample = 1
	}
	if d.stacks {
		opt.StackSample = 1
	}
	if err := bpf.CheckPrivilege(); err != nil {
		return fmt.Errorf("drops %w", err)
	}
	ns, err := d.target.open(cmd)
	if err != nil {
		return err
	}
	defer ns.Close()
	opt.Netns = ns
	d.names = &namespaceNames{numeric: d.env.numeric}
	return d.trace(cmd, opt)
}

// trace runs until its time has come, and then tells all.
func (d *dropsVerb) trace(cmd *cobra.Command, opt bpf.Options) (err error) {
	ctx, stop := context.WithCancelCause(cmd.Context())
	defer stop(nil)
	if d.events {
		limit := 0
		if cmd.Flags().Changed("limit") {
			limit = d.limit
		}
		opt.Events = func(e bpf.Event) { d.event(e, limit, stop) }
	}
	// It takes a moment, and an interruption then leaves nothing to count, which is told
	// like any other result.
	tracer, err := bpf.Start(context.WithoutCancel(ctx), opt)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, tracer.Close()) }()
	for _, note := range tracer.Notes() {
		d.env.note("%s", note)
	}
	if d.env.StderrTerminal {
		d.env.note("counting drops; Ctrl-C ends it")
	}
	if err := d.watch(ctx, tracer); err != nil {
		return err
	}
	drops, err := tracer.Read()
	if err != nil {
		return err
	}
	// Events that are under way come before the summary.
	if err := tracer.Close(); err != nil {
		return err
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return d.summary(drops, tracer.Notes())
}

// watch waits, and shows a table in each interval.
func (d *dropsVerb) watch(ctx context.Context, tracer *bpf.Tracer) error {
	var end, tick <-chan time.Time
	if d.duration > 0 {
		timer := time.NewTimer(d.duration)
		defer timer.Stop()
		end = timer.C
	}
	if d.every > 0 {
		ticker := time.NewTicker(d.every)
		defer ticker.Stop()
		tick = ticker.C
	}
	before := &snapshot.Drops{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-end:
			return nil
		case <-tick:
			now, err := tracer.Read()
			if err != nil {
				return err
			}
			if err := d.interval(now.Since(before)); err != nil {
				return err
			}
			before = now
		}
	}
}

func (d *dropsVerb) interval(drops *snapshot.Drops) error {
	if drops.Packets == 0 {
		return nil
	}
	d.names.refresh()
	fmt.Fprintln(d.env.Stdout, time.Now().Format(time.TimeOnly))
	return report.DropSites(d.env.Stdout, d.env.style(), d.view(), drops)
}

func (d *dropsVerb) view() report.DropsView {
	return report.DropsView{Netns: d.names.name, Rows: d.limit, Stacks: d.stacks}
}

// dropsDocument is the JSON form.
type dropsDocument struct {
	Schema  string `json:"schema"`
	Version string `json:"version"`
	// Notes are what could not be done here.
	Notes []string        `json:"notes,omitempty"`
	Drops *snapshot.Drops `json:"drops"`
}

// eventDocument is one line of JSON.
type eventDocument struct {
	Schema string `json:"schema"`
	bpf.Event
}

// summary is what comes last. With events as lines of JSON it is one of them.
func (d *dropsVerb) summary(drops *snapshot.Drops, notes []string) error {
	if d.asCSV {
		if drops.Lost > 0 {
			d.env.note("%d drops found no place in natkit's tables: they are in no line", drops.Lost)
		}
		return report.CSV(d.env.Stdout, drops.Sites)
	}
	if !d.asJSON {
		d.names.refresh()
		return report.Drops(d.env.Stdout, d.env.style(), d.view(), drops)
	}
	doc := dropsDocument{Schema: dropsSchema, Version: d.env.Version, Notes: notes, Drops: drops}
	if d.events {
		return report.JSONLine(d.env.Stdout, doc)
	}
	return report.JSON(d.env.Stdout, doc)
}

// event shows one drop; what cannot be written, and enough, end the run.
func (d *dropsVerb) event(e bpf.Event, limit int, stop context.CancelCauseFunc) {
	if limit > 0 && d.shown >= limit {
		return
	}
	d.shown++
	var err error
	if d.asJSON {
		err = report.JSONLine(d.env.Stdout, eventDocument{dropEventSchema, e})
	} else {
		err = report.DropEvent(d.env.Stdout, d.view(), e)
	}
	switch {
	case err != nil:
		stop(err)
	case d.shown == limit:
		stop(context.Canceled)
	}
}

// namespaceNames names network namespaces; it may be used by several goroutines.
type namespaceNames struct {
	numeric bool // there are no names
	mu      sync.Mutex
	names   map[uint64]string
	read    time.Time
}

// ownNamespace is the name of the namespace that natkit runs in, where nobody gave it one.
const ownNamespace = "this one"

// namesAge is how long a list of namespaces is good: listing costs milliseconds.
const namesAge = time.Second

// refresh lists them again, unless it was done just now.
func (n *namespaceNames) refresh() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.list()
}

func (n *namespaceNames) list() {
	if time.Since(n.read) < namesAge {
		return
	}
	n.read = time.Now()
	handles, err := netns.All()
	if err != nil {
		return
	}
	defer netns.CloseAll(handles)
	n.names = map[uint64]string{}
	for _, h := range handles {
		n.names[h.Inode()] = h.Name()
	}
	// The names that people gave are better than numbers of processes.
	for _, name := range netns.Names() {
		if h, err := netns.Named(name); err == nil {
			n.names[h.Inode()] = name
			h.Close()
		}
	}
	if own, err := netns.Current(); err == nil {
		if name := n.names[own.Inode()]; name == "" || strings.HasPrefix(name, "pid ") {
			n.names[own.Inode()] = ownNamespace
		}
		own.Close()
	}
}

// flags choose the namespace on a command line; known is false where no flag can.
func (n *namespaceNames) flags(inode uint64) (flags string, known bool) {
	name := n.name(inode)
	if pid, ok := strings.CutPrefix(name, "pid "); ok {
		return " --pid " + pid, true
	}
	if name == ownNamespace {
		return "", true
	}
	return " --netns " + name, slices.Contains(netns.Names(), name)
}

// name is empty for a namespace that has none. The kernel gives the lowest free number
// to a new namespace: what a number meant a while ago says nothing.
func (n *namespaceNames) name(inode uint64) string {
	if n.numeric {
		return ""
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.list()
	return n.names[inode]
}
