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

// One flow and one stack are recorded in this many drops, unless all are asked for.
const (
	usualFlowSample  = 64
	usualStackSample = 1024
)

// dropsVerb is the verb drops.
type dropsVerb struct {
	env                   *Env
	target                target
	opt                   bpf.Options
	duration, every       time.Duration
	limit                 int
	flows, stacks, events bool
	names                 namespaceNames
	shown                 int // events
}

func newDrops(env *Env) *cobra.Command {
	d := &dropsVerb{env: env, limit: 20}
	cmd := &cobra.Command{
		Use:   "drops [flags] [FILTER…]",
		Short: "show where and why the kernel drops packets: function, reason, flow, stack",
		Long: `Count every packet that the kernel drops, by function, reason, protocol and network
namespace, until Ctrl-C or --for expires: in all network namespaces, unless --netns
or --pid selects one. Packets that were dropped from a socket's queue belong to none.

A full connection table, a rule and a failed address translation all drop in
nf_hook_slow. The return values of conntrack's and NAT's functions show which it was
where the kernel has fexit programs, elsewhere the deltas of conntrack's own counters.

Frees that are no drops, such as unread data of a closed socket, are left out.
Counting costs 20 to 25 ns per drop, recording its flow 50 ns more, its stack more than
1 µs: so one flow in ` + fmt.Sprint(usualFlowSample) + ` drops and one stack in ` + fmt.Sprint(usualStackSample) + ` are recorded (and the first of
each place), all of them with --flows and --stacks. A FILTER costs about 15 ns per drop.

Requires CAP_BPF and CAP_PERFMON (CAP_SYS_ADMIN before Linux 5.8), CAP_SYSLOG for
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

// Bounds of --for and --every.
const (
	minDrops = 100 * time.Millisecond
	maxDrops = 24 * time.Hour
)

func (d *dropsVerb) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.Var(periodBetween(&d.duration, minDrops, maxDrops), "for", "end after this time: seconds or 500ms, 2m, … (default until Ctrl-C)")
	f.Var(periodBetween(&d.every, minDrops, maxDrops), "every", "show the drops of each interval of this time (default 2s on a terminal, else never)")
	f.Var(natural(&d.limit), "limit", "show at most `N` lines in each table, 0 for all; with --events, end after N drops if given")
	f.BoolVar(&d.flows, "flows", false, "record the flow of every drop")
	f.BoolVar(&d.stacks, "stacks", false, "record the kernel's stack at every drop, and show more of them")
	f.BoolVar(&d.events, "events", false, "show every drop as a line of its own (Linux 5.8)")
	addInterface(cmd, &d.opt.Interface, "only packets that were last on the interface `NAME`")
	f.BoolVar(&d.opt.Harmless, "all", false, "frees that are no drops too")
	d.target.addFlags(cmd)
	d.env.addJSON(cmd, report.DropsSchema)
	d.env.addCSV(cmd, "place")
	for _, other := range []string{"events", "json", "csv"} {
		cmd.MarkFlagsMutuallyExclusive("every", other)
	}
	cmd.MarkFlagsMutuallyExclusive("events", "csv")
}

func (d *dropsVerb) run(cmd *cobra.Command, words []string) (err error) {
	if d.opt.Filter, err = parseFilter(words); err != nil {
		return err
	}
	if d.every == 0 && d.env.StdoutTerminal && !d.events && !d.env.asJSON && !d.env.asCSV {
		d.every = 2 * time.Second
	}
	d.opt.FlowSample, d.opt.StackSample = usualFlowSample, usualStackSample
	if d.flows {
		d.opt.FlowSample = 1
	}
	if d.stacks {
		d.opt.StackSample = 1
	}
	if err := bpf.CheckPrivilege(); err != nil {
		return fmt.Errorf("drops %w", err)
	}
	if d.opt.Netns, err = d.target.open(cmd); err != nil {
		return err
	}
	defer d.opt.Netns.Close()
	d.names.numeric = d.env.numeric
	if d.events && !cmd.Flags().Changed("limit") {
		d.limit = 0
	}
	return d.trace(cmd.Context())
}

// trace runs until the time expires, and then shows the sums.
func (d *dropsVerb) trace(ctx context.Context) (err error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	if d.events {
		d.opt.Events = func(e bpf.Event) { d.event(e, stop) }
	}
	// Starting takes a moment; an interrupt then leaves nothing to count, which is a
	// result like any other.
	tracer, err := bpf.Start(context.WithoutCancel(ctx), d.opt)
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
	before := &snapshot.Drops{}
	if err := during(ctx, d.duration, d.every, func() error {
		now, err := tracer.Read()
		if err != nil {
			return err
		}
		since := now.Since(before)
		before = now
		return report.DropSites(d.env.Stdout, d.env.style(), d.view(), time.Now(), since)
	}); err != nil {
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

// during calls fn every so often (0: never), until the time expires (0: never) or ctx ends.
func during(ctx context.Context, limit, every time.Duration, fn func() error) error {
	if limit > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(ctx, limit)
		defer stop()
	}
	var ticks <-chan time.Time
	if every > 0 {
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		ticks = ticker.C
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticks:
			if err := fn(); err != nil {
				return err
			}
		}
	}
}

func (d *dropsVerb) view() report.DropsView {
	return report.DropsView{Netns: d.names.name, Rows: d.limit, Stacks: d.stacks}
}

// summary is what comes last. With events as lines of JSON it is one of them.
func (d *dropsVerb) summary(drops *snapshot.Drops, notes []string) error {
	doc := report.DropsDocument{Schema: report.DropsSchema, Version: d.env.Version, Notes: notes, Drops: drops, View: d.view()}
	if d.events && d.env.asJSON {
		return report.JSONLine(d.env.Stdout, doc)
	}
	if d.env.asCSV && drops.Lost > 0 {
		d.env.note("%d drops did not fit into natkit's tables and are in no line", drops.Lost)
	}
	return d.env.print(doc)
}

// event shows one drop. What cannot be written ends the run, as the limit does.
func (d *dropsVerb) event(e bpf.Event, stop context.CancelCauseFunc) {
	if d.limit > 0 && d.shown >= d.limit {
		return
	}
	d.shown++
	write := report.DropEvent
	if d.env.asJSON {
		write = report.DropEventJSON
	}
	if err := write(d.env.Stdout, d.view(), e); err != nil {
		stop(err)
	} else if d.shown == d.limit {
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

// ownNamespace is the name of the namespace that natkit runs in, where it has no other.
const ownNamespace = "this one"

// namesAge is how long a list of namespaces is good: listing costs milliseconds.
const namesAge = time.Second

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

// name is empty for a namespace that has none, and for inode 0. The kernel gives the
// lowest free number to a new namespace: what a number meant a while ago says nothing.
func (n *namespaceNames) name(inode uint64) string {
	if n.numeric || inode == 0 {
		return ""
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.list()
	return n.names[inode]
}
