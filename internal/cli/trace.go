//go:build linux

package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	bpf "github.com/natkit/natkit/internal/bpf/drops"
	"github.com/natkit/natkit/internal/bpf/path"
	bpfprofile "github.com/natkit/natkit/internal/bpf/profile"
	"github.com/natkit/natkit/internal/follow"
	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/names"
	"github.com/natkit/natkit/internal/names/read"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/profile"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/table"
	"github.com/natkit/natkit/internal/table/store"
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
	addresses             addressNames
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
nf_hook_slow; the return values or counters of conntrack and NAT show which it was. What
eBPF programs of a gateway drop has their reasons. Frees that are no drops are left out. Counting costs 20 to 25 ns per drop; one flow in ` + fmt.Sprint(usualFlowSample) + `
drops and one stack in ` + fmt.Sprint(usualStackSample) + ` are recorded, all of them with --flows and --stacks.

Requires CAP_BPF and CAP_PERFMON (CAP_SYS_ADMIN before Linux 5.8), CAP_SYSLOG and Linux
5.4 with BTF; reasons are those of the running kernel (since 5.17).

` + frame.FilterUsage,
		Example: `  sudo natkit drops                           # all, until Ctrl-C
  sudo natkit drops --for 10 --flows
  sudo natkit drops --netns gateway tcp port 443
  sudo natkit drops --events udp and net 198.18.0.0/15
  sudo natkit drops --for 30 --json --stacks`,
		ValidArgsFunction: completeWords(frame.FilterWords...),
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
	f.Var(period(&d.duration, minDrops, maxDrops), "for", "end after this time: seconds or 500ms, 2m, … (default until Ctrl-C)")
	f.Var(period(&d.every, minDrops, maxDrops), "every", "show the drops of each interval of this time (default 2s on a terminal, else never)")
	f.Var(natural(&d.limit), "limit", "show at most `N` lines in each table, 0 for all; with --events, end after N drops if given")
	f.BoolVar(&d.flows, "flows", false, "record the flow of every drop")
	f.BoolVar(&d.stacks, "stacks", false, "record the kernel's stack at every drop, and show more of them")
	f.BoolVar(&d.events, "events", false, "show every drop as a line of its own (Linux 5.8)")
	d.target.addInterface(cmd, &d.opt.Interface, "only packets that were last on the interface `NAME`")
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
	d.addresses = d.env.addressNames(cmd.Context(), d.opt.Netns)
	d.addresses() // which takes too long while events come in
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

func (d *dropsVerb) view() report.DropsView {
	return report.DropsView{Netns: d.names.name, Names: d.addresses(), Rows: d.limit, Stacks: d.stacks}
}

// summary writes the summary at the end. With events as lines of JSON it is one of them.
func (d *dropsVerb) summary(drops *snapshot.Drops, notes []string) error {
	view := d.view()
	doc := report.Named{Names: view.Names, Document: report.DropsDocument{Schema: report.DropsSchema, Version: d.env.Version, Notes: notes, Drops: drops, View: view}}
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

// flowsVerb is the verb flows.
type flowsVerb struct {
	env             *Env
	tables          tableFlags
	target          target
	duration, every time.Duration
	options         follow.Options
}

func newFlows(env *Env) *cobra.Command {
	f := &flowsVerb{env: env}
	cmd := &cobra.Command{
		Use:   "flows",
		Short: "show which services are answered, how fast, and where connections get lost",
		Long: `Follow the first packets of connections and of their answers through the network
namespace, until Ctrl-C or --for expires, by what a NAT does not change: for each service
how many were answered, how long they took here, at the server, and back, how many first
packets came again, and how those that fail do:

  lost-here            came in and did not leave: a filter, a route, or the NAT dropped it
  refused-here, unreachable-here   this host answered by a RST or an ICMP error
  no-answer            left, and nothing came back
  refused, unreachable a RST or an ICMP error came back
  answered-by-another  the answer came from another address
  answer-lost-here     the answer came and did not leave
  answer-untranslated  the answer left by another address than was asked
  client-asks-again    the answer left, and the client asked again
  data-lost-here       it was opened; then data came in again and again and did not leave
  data-unanswered      then data left again and again, and was not acknowledged
  data-missing         then the client gave up waiting for data that is too large for the interface, or
                       that is missing before what came
  reset-here, reset    then this host sent a RST of its own; a RST came in place of an answer
  datagrams-lost-here  of a flow of datagrams a part did not leave

Datagrams of a tunnel of this host are one-way: no failure, as no answer is meant to come.

It reads SYN, SYN-ACK, RST, segments with data, UDP, ICMP and other protocols at the interfaces
by eBPF programs or, on kernels without, by a packet socket: about 2,500 a second of handshakes
and datagrams, and as many segments;
beyond, one in 2, 4, … connections of TCP and segments is followed, and UDP no longer.
'natkit doctor --trace' does the same, and says why.

Requires CAP_NET_RAW, and CAP_SYS_ADMIN for --netns and --pid. It works on any kernel.`,
		Example: `  sudo natkit flows                            # all, until Ctrl-C
  sudo natkit flows --for 10s --service 203.0.113.1:443
  sudo natkit flows --client 198.51.100.7
  sudo natkit flows --netns gateway --for 30s --json
  sudo natkit flows --for 60s -o parquet --to /var/lib/tables   # flows/day=…/node=…/`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	flags := cmd.Flags()
	flags.Var(period(&f.duration, minDrops, maxWindow), "for", "end after this time: seconds or 500ms, 2m, … (default until Ctrl-C)")
	flags.Var(period(&f.every, minDrops, maxWindow), "every", "show what was seen so far after each interval of this time (default 2s on a terminal, else never)")
	flags.Var(into(&f.options.Service, follow.ParseEnd), "service", "only connections to `ADDRESS[:PORT]`, as clients name it")
	flags.Var(into(&f.options.Client, follow.ParseEnd), "client", "only connections of `ADDRESS[:PORT]`")
	f.target.addFlags(cmd)
	f.env.addJSON(cmd, report.FlowsSchema)
	f.tables.addFlags(env, cmd)
	cmd.MarkFlagsMutuallyExclusive("every", "json")
	return cmd
}

func (f *flowsVerb) run(cmd *cobra.Command) (err error) {
	asTable, err := f.tables.chosen(cmd)
	if err != nil {
		return err
	}
	var tables *followedTable
	if asTable {
		if tables, err = f.table(cmd); err != nil {
			return err
		}
		defer tables.Abort()
	}
	if f.every == 0 && f.env.StdoutTerminal && !f.env.asJSON && !asTable {
		f.every = 2 * time.Second
	}
	if f.options.Netns, err = f.target.open(cmd); err != nil {
		return err
	}
	defer f.options.Netns.Close()
	tap, err := follow.Start(cmd.Context(), f.options)
	if err != nil {
		return err
	}
	if f.env.StderrTerminal {
		f.env.note("following connections; Ctrl-C ends it")
	}
	names := f.env.addressNames(cmd.Context(), f.options.Netns)
	err = during(cmd.Context(), f.duration, f.every, func() error {
		now, err := tap.Read()
		if err != nil {
			return err
		}
		style := f.env.style()
		style.Names = names()
		return report.FlowsSoFar(f.env.Stdout, style, now)
	})
	followed, stopErr := tap.Stop()
	if err = errors.Join(err, stopErr); err != nil {
		return err
	}
	if asTable {
		return tables.write(followed)
	}
	doc := report.FlowsDocument{Schema: report.FlowsSchema, Version: f.env.Version, Followed: followed}
	return f.env.print(report.Named{Document: doc, Names: names()})
}

// followedTable is where the rows of followed connections go.
type followedTable struct {
	*store.Store
	flags *tableFlags
	rows  table.EntryRows
}

// table opens it before anything is followed. An interrupt ends the following, and not the writing.
func (f *flowsVerb) table(cmd *cobra.Command) (*followedTable, error) {
	node, err := f.tables.named("", false)
	if err != nil {
		return nil, err
	}
	t := &followedTable{flags: &f.tables, rows: table.EntryRows{Head: table.Head{Node: node}}}
	if err := f.target.with(cmd, func(ns *netns.Handle) error { return describe(ns, &t.rows) }); err != nil {
		return nil, err
	}
	t.Store, err = f.tables.open(context.WithoutCancel(cmd.Context()), node)
	return t, err
}

func (t *followedTable) write(followed *snapshot.Followed) error {
	head := t.rows.Head
	head.Time = table.TimeOf(time.Now())
	if err := addAll(store.Of[table.Flow](t.Store), table.FlowRows(head, followed)); err != nil {
		return err
	}
	return t.flags.commit(t.Store)
}

// addressNames returns what the host calls addresses, as it was some time ago at most; nil with --numeric. It may be used
// by several goroutines.
type addressNames func() *snapshot.Names

func (e *Env) addressNames(ctx context.Context, ns *netns.Handle) addressNames {
	read := e.hostNames(addressesAge)
	if read == nil {
		return func() *snapshot.Names { return nil }
	}
	ctx = context.WithoutCancel(ctx) // the summary comes after an interrupt
	return func() *snapshot.Names { return read(ctx, ns) }
}

// namespaceNames names network namespaces; it may be used by several goroutines.
type namespaceNames struct {
	numeric bool // there are no names
	mu      sync.Mutex
	names   map[uint64]string
	// found are those of which it is not known yet whose they are: that takes longer to find out than their names.
	found map[uint64]netns.Found
	read  time.Time
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
	n.names, n.found = map[uint64]string{}, map[uint64]netns.Found{}
	found, _, _ := netns.Find(n.read.Add(namesAge / 4))
	for _, f := range found {
		n.found[f.Inode] = f
	}
	for _, h := range handles {
		n.names[h.Inode()] = h.Name()
	}
	if own, err := netns.Current(); err == nil {
		if name := n.names[own.Inode()]; name == "" || strings.HasPrefix(name, "pid ") {
			n.names[own.Inode()] = ownNamespace
		}
		own.Close()
	}
}

// name is empty for a namespace that has none, and for inode 0. The kernel gives the
// lowest free number to a new namespace: the former meaning of a number is no evidence.
func (n *namespaceNames) name(inode uint64) string {
	if n.numeric || inode == 0 {
		return ""
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.list()
	if f, ok := n.found[inode]; ok {
		delete(n.found, inode) // its name is known from here on
		if name := ownersName(f); name != "" && n.names[inode] != ownNamespace {
			n.names[inode] = name
		}
	}
	return n.names[inode]
}

// ownersName is what the container or the pod of a namespace is called; empty for those of others. Runtimes give
// namespaces names of their own as well, which say nothing (cni-…).
func ownersName(f netns.Found) string {
	o := read.OwnerOf(f)
	if o.Container == "" && o.Pod == "" {
		return ""
	}
	name, _ := names.OfOwner(&o, "")
	return name.String()
}

// Bounds of a run: what is followed is kept in memory until it is through.
const (
	maxPathPackets = 10000
	minPathTime    = 100 * time.Millisecond
)

// follower is the verb path.
type follower struct {
	env      *Env
	target   target
	opt      path.Options
	duration time.Duration
	names    namespaceNames
}

func newPath(env *Env) *cobra.Command {
	f := &follower{env: env, duration: 30 * time.Second, opt: path.Options{Packets: 5}}
	cmd := &cobra.Command{
		Use:   "path [flags] [FILTER…]",
		Short: "follow packets through the kernel's functions, through NAT and into other namespaces",
		Long: `Follow the first packets that match a filter through the kernel: a line for each
function that gets the packet, indented by its caller, with the time since the line
before; in between what changed, such as an address that NAT rewrote; what netfilter's
functions returned; and at the end the verdict: sent, delivered, or dropped, where and
for which reason.

A packet is followed from the first function that sees it match, in the chosen namespace
and on the chosen interface; from then on wherever it goes, copies included. Filter by the
addresses that it has before NAT.

` + frame.FilterUsage + `

--functions is a profile or a list of names and patterns of functions:
  nat  receive, hooks, connection tracking, NAT, rules, bridge netfilter, send
  rx   from the driver to the socket
  all  every function that gets a packet
While it runs, every packet of the host is checked in each of these functions, which
slows all of them down. Exits with 1 if no packet matched.

Requires kprobes, Linux 5.8 (return values from 5.17), CAP_BPF, CAP_PERFMON, CAP_SYSLOG,
and CAP_SYS_ADMIN for --netns and --pid.`,
		Example: `  sudo natkit path tcp port 80
  sudo natkit path -c 1 --iface eth0 'tcp and dst port 8080 and src host 198.18.0.7'
  sudo natkit path --pid $(docker inspect -f '{{.State.Pid}}' web) icmp
  sudo natkit path --functions 'nf_*,ip_rcv,ip_output' host 203.0.113.9
  sudo natkit path --json udp port 53 | jq .verdict`,
		ValidArgsFunction: completeWords(frame.FilterWords...),
		RunE:              func(cmd *cobra.Command, words []string) error { return f.run(cmd, words) },
	}
	f.target.addFlags(cmd)
	flags := cmd.Flags()
	f.target.addInterface(cmd, &f.opt.Interface, "packets that have this interface when they are first seen, by its `NAME`")
	flags.StringVar(&f.opt.Functions, "functions", "nat", "watch these functions: a `PROFILE` ("+strings.Join(path.Profiles(), ", ")+") or names, patterns")
	flags.VarP(between(&f.opt.Packets, 1, maxPathPackets), "count", "c", "follow `N` packets, then end")
	flags.Var(period(&f.duration, minPathTime, maxWindow), "for", "end after this time: seconds or 500ms, 2m, …")
	flags.BoolVar(&f.env.asJSON, "json", false, "print one JSON document (a line, for each packet; schema "+report.PathSchema+")")
	completeFlags(cmd, map[string]cobra.CompletionFunc{"functions": completeWords(path.Profiles()...)})
	return cmd
}

func (f *follower) run(cmd *cobra.Command, words []string) (err error) {
	if f.opt.Filter, err = parseFilter(words); err != nil {
		return err
	}
	if err := path.CheckFunctions(f.opt.Functions); err != nil {
		return usagef("--functions: %w", err)
	}
	f.names.numeric = f.env.numeric
	if f.opt.Netns, err = f.target.open(cmd); err != nil {
		return err
	}
	defer f.opt.Netns.Close()
	tracer, err := f.start(cmd.Context())
	if err != nil {
		return err
	}
	return errors.Join(f.follow(cmd.Context(), tracer), tracer.Close())
}

// start reports on stderr what is watched, so that the user knows when to send a packet.
func (f *follower) start(ctx context.Context) (*path.Tracer, error) {
	if f.opt.Functions == "all" {
		f.env.note("--functions all slows down every packet of this host until natkit ends")
	}
	progress := f.env.progress()
	f.opt.Progress = progress.Show
	tracer, err := path.Start(ctx, f.opt)
	progress.Clear()
	if err != nil {
		return nil, err
	}
	a := tracer.Attached()
	if a.OneByOne {
		f.env.note("this kernel has no kprobe.multi (CONFIG_FPROBE, Linux 5.18): only the most important functions are watched, without return values")
	}
	if a.NoReturns != nil {
		f.env.note("some or all return values are not shown: %s", strings.ReplaceAll(a.NoReturns.Error(), "\n", "; "))
	}
	refused := ""
	if a.Refused > 0 {
		refused = fmt.Sprintf(" (the kernel refuses %d others)", a.Refused)
	}
	f.env.note("watching %d functions%s since %.1f s after the start, for %s at most (Ctrl-C ends it)",
		a.Functions, refused, a.Took.Seconds(), f.duration)
	return tracer, nil
}

func (f *follower) follow(ctx context.Context, tracer *path.Tracer) error {
	ctx, stop := context.WithTimeout(ctx, f.duration)
	defer stop()
	sum, err := tracer.Follow(ctx, f.print)
	if sum.Lost > 0 {
		f.env.note("%d events were lost: steps are missing; a narrower filter or fewer functions lose less", sum.Lost)
	}
	if sum.Missed > 0 {
		f.env.note("%d calls, of any packets, were missed because they interrupted the program: steps may be missing", sum.Missed)
	}
	if err == nil && sum.Packets == 0 {
		return errors.New("no packet matched: check the namespace, the interface, and that the addresses are those before NAT")
	}
	return err
}

func (f *follower) print(p *snapshot.PacketPath) error {
	for i := range p.Steps {
		p.Steps[i].NetnsName = f.names.name(p.Steps[i].Netns)
	}
	p.Verdict.NetnsName = f.names.name(p.Verdict.Netns)
	if f.env.asJSON {
		return report.PathJSON(f.env.Stdout, p)
	}
	return report.Path(f.env.Stdout, f.env.style(), p)
}

// minProfile is enough for some samples.
const minProfile = 100 * time.Millisecond

// profiler is the verb profile.
type profiler struct {
	env      *Env
	opt      bpfprofile.Options
	duration time.Duration
	top      int
	files    outFiles[*profile.Stacks]
}

func newProfile(env *Env) *cobra.Command {
	p := &profiler{env: env, duration: 5 * time.Second, top: 20, opt: bpfprofile.Options{Hz: bpfprofile.DefaultHz}, files: outFiles[*profile.Stacks]{
		{flag: "flame", usage: "write a flame graph to `FILE`.html: one page that needs no network", write: (*profile.Stacks).WriteFlame},
		{flag: "pprof", usage: "write the samples to `FILE`, for 'go tool pprof'", write: (*profile.Stacks).WritePprof, binary: true},
		{flag: "folded", usage: "write one line per stack to `FILE`, - for stdout instead of the report", write: (*profile.Stacks).WriteFolded}}}
	cmd := &cobra.Command{
		Use:   "profile",
		Short: "show what NAT costs: the CPU time of packet receive, conntrack, NAT, rules, …",
		Long: `Sample the CPUs, and show first how much of all CPU time is packet receive, and how
much of that is looking up and inserting connections, setting up and rewriting NAT,
rules, bridge netfilter, routing, and the rest; then the functions with most samples.
The sum of all is exactly the busy time of the whole host, all network namespaces
included.

Requires CAP_BPF and CAP_PERFMON (CAP_SYS_ADMIN before Linux 5.8), CAP_SYSLOG and
Linux 5.4. Ctrl-C ends the sampling and reports what was sampled until then.`,
		Example: `  sudo natkit profile
  sudo natkit profile --for 30s --flame nat.html      # a page to click through
  sudo natkit profile --cpu 0-3,8 --hz 499 --top 40
  sudo natkit profile --pprof cpu.pb.gz && go tool pprof -top cpu.pb.gz
  sudo natkit profile --folded - | grep conntrack
  sudo natkit profile --json`,
		RunE: func(cmd *cobra.Command, _ []string) error { return p.run(cmd.Context()) },
	}
	f := cmd.Flags()
	f.Var(period(&p.duration, minProfile, maxWindow), "for", "sample for this time: seconds or 500ms, 2m, …")
	f.Var(between(&p.opt.Hz, 1, bpfprofile.MaxHz), "hz", "take `N` samples per second of each CPU")
	f.Var(into(&p.opt.CPUs, bpfprofile.ParseCPUs), "cpu", "sample only the CPUs in `LIST`, such as 0-3,8 (default all)")
	f.Var(natural(&p.top), "top", "list the `N` functions with most samples, 0 for all")
	p.files.addTo(f)
	p.env.addJSON(cmd, report.ProfileSchema)
	return cmd
}

func (p *profiler) run(ctx context.Context) error {
	toStdout, err := p.files.check(p.env)
	if err != nil {
		return err
	}
	stacks, err := p.sample(ctx)
	if err != nil {
		return err
	}
	// If a file cannot be written, the report is still worth something.
	if err = p.files.save(p.env, stacks); toStdout {
		return err
	}
	summary := stacks.Summarize()
	if p.top > 0 && len(summary.Functions) > p.top {
		summary.Functions = summary.Functions[:p.top]
	}
	return errors.Join(err, p.env.print(report.ProfileDocument{Schema: report.ProfileSchema, Kernel: stacks.Kernel, Profile: summary}))
}

// sample shows how far it is. It ends early with ctx.
func (p *profiler) sample(ctx context.Context) (*profile.Stacks, error) {
	progress := p.env.progress()
	defer progress.Clear()
	running, err := bpfprofile.Start(p.opt)
	if err != nil {
		return nil, err
	}
	started := time.Now()
	_ = during(ctx, p.duration, time.Second, func() error {
		progress.Update("sampling the CPUs: %.0f of %.0f s (Ctrl-C ends it)", time.Since(started).Seconds(), p.duration.Seconds())
		return nil
	})
	return running.Stop()
}
