package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/natkit/natkit/internal/bpf/path"
	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/snapshot"
)

// pathSchema names the JSON form of a packet's way.
const pathSchema = "natkit.path/1"

// Bounds of a run: what is followed is kept in memory until it is through.
const (
	maxPathPackets = 10000
	minPathTime    = 100 * time.Millisecond
)

// follower is the verb path.
type follower struct {
	env       *Env
	target    target
	iface     string
	functions string
	count     int
	duration  time.Duration
	asJSON    bool
	names     namespaceNames
}

func newPath(env *Env) *cobra.Command {
	f := &follower{env: env, duration: 30 * time.Second}
	cmd := &cobra.Command{
		Use:   "path [flags] [FILTER…]",
		Short: "follow packets through the kernel's functions, through NAT and into other namespaces",
		Long: `Follow the first packets that match a filter through the kernel: a line for each
function that gets the packet (a struct sk_buff *), indented by what called it,
with the time since the line before; in between what changed, as an address that
NAT rewrote; what netfilter's functions returned; and at the end what became of
it: sent, delivered, or dropped, where and for which reason.

A packet is followed from the first function on that sees it match, with the
headers that it has there, in the namespace and on the interface that are asked
for; then wherever it goes, copies of it too. Before NAT it has other addresses
than behind it: choose what it has where it comes in.

` + frame.FilterUsage + `

--functions is a profile or names and patterns of functions, with commas:
  nat  receive, hooks, connection tracking, NAT, rules, bridge netfilter, send
  rx   from the driver to the socket
  all  every function that gets a packet
While it runs, every packet of the host is looked at in each of these functions,
which slows them all down: with all, much. --netns and --iface cost less to check
than a filter. Where fewer packets come than --count, --for bounds the time.

It needs kprobes, and Linux 5.8. Many functions are watched where the kernel has
CONFIG_FPROBE (Linux 5.18), otherwise the most important ones of a profile, and
what functions returned is shown by fexit (5.17). It needs CAP_BPF, CAP_PERFMON
and CAP_SYSLOG (to see addresses of functions), and CAP_SYS_ADMIN for --netns
and --pid. It ends after --count packets, after --for, or with an interrupt
(Ctrl-C); with 1 where no packet matched. The indentation is told by the stack
pointer; a function that the compiler inlined has no line.`,
		Example: `  sudo natkit path tcp port 80
  sudo natkit path -c 1 --iface eth0 'tcp and dst port 8080 and src host 198.18.0.7'
  sudo natkit path --pid $(docker inspect -f '{{.State.Pid}}' web) icmp
  sudo natkit path --functions 'nf_*,ip_rcv,ip_output' host 203.0.113.9
  sudo natkit path --json udp port 53 | jq .verdict`,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: completeFilter,
		RunE:              func(cmd *cobra.Command, words []string) error { return f.run(cmd, words) },
	}
	f.target.addFlags(cmd)
	flags := cmd.Flags()
	flags.StringVar(&f.iface, "iface", "", "packets that have this interface when they are first seen, by its `NAME`")
	flags.StringVar(&f.functions, "functions", "nat", "watch these functions: a `PROFILE` ("+strings.Join(path.Profiles(), ", ")+") or names, patterns")
	flags.IntVarP(&f.count, "count", "c", 5, "follow `N` packets, then end")
	flags.Var((*seconds)(&f.duration), "for", "end after this time: seconds or 500ms, 2m, …")
	flags.BoolVar(&f.asJSON, "json", false, "print one JSON document (a line, for each packet; schema "+pathSchema+")")
	completeFlags(cmd, map[string]cobra.CompletionFunc{"iface": completeInterface, "for": cobra.NoFileCompletions,
		"count": cobra.NoFileCompletions, "functions": cobra.FixedCompletions(path.Profiles(), cobra.ShellCompDirectiveNoFileComp)})
	return cmd
}

// options checks the command line.
func (f *follower) options(words []string) (path.Options, error) {
	opt := path.Options{Interface: f.iface, Functions: f.functions, Packets: f.count}
	expr, err := frame.ParseFilter(words)
	if err != nil {
		return opt, usageError{err}
	}
	opt.Filter = expr
	if f.count < 1 || f.count > maxPathPackets {
		return opt, usagef("--count %d: must be from 1 to %d", f.count, maxPathPackets)
	}
	if err := path.CheckFunctions(f.functions); err != nil {
		return opt, usagef("--functions: %w", err)
	}
	return opt, checkWindow(f.duration, minPathTime)
}

func (f *follower) run(cmd *cobra.Command, words []string) error {
	opt, err := f.options(words)
	if err != nil {
		return err
	}
	if err := checkInterface(cmd, f.iface); err != nil {
		return err
	}
	f.names.numeric = f.env.numeric
	ns, err := f.target.open(cmd)
	if err != nil {
		return err
	}
	defer ns.Close()
	opt.Netns = ns
	tracer, err := f.start(cmd.Context(), opt)
	if err != nil {
		return err
	}
	return errors.Join(f.follow(cmd.Context(), tracer), tracer.Close())
}

// start says on stderr what is watched, so that whoever sends a packet knows when.
func (f *follower) start(ctx context.Context, opt path.Options) (*path.Tracer, error) {
	if f.functions == "all" {
		f.env.note("--functions all slows down every packet of this host until natkit ends")
	}
	progress := f.env.progress()
	opt.Progress = progress.Show
	tracer, err := path.Start(ctx, opt)
	progress.Clear()
	if err != nil {
		return nil, err
	}
	a := tracer.Attached()
	if a.OneByOne {
		f.env.note("this kernel has no kprobe.multi (CONFIG_FPROBE, Linux 5.18): only the most important functions are watched, and what they return is not shown")
	}
	if a.NoReturns != nil {
		f.env.note("what some or all functions return is not shown: %s", strings.ReplaceAll(a.NoReturns.Error(), "\n", "; "))
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
		f.env.note("%d calls, of any packets, were not looked at, as they interrupted another look: steps may be missing", sum.Missed)
	}
	if err == nil && sum.Packets == 0 {
		return errors.New("no packet was seen that matches: it has the addresses that it comes in with, before NAT; is it this namespace and this interface?")
	}
	return err
}

func (f *follower) print(p *snapshot.PacketPath) error {
	for i := range p.Steps {
		p.Steps[i].NetnsName = f.name(p.Steps[i].Netns)
	}
	p.Verdict.NetnsName = f.name(p.Verdict.Netns)
	var err error
	if f.asJSON {
		err = report.JSONLine(f.env.Stdout, struct {
			Schema string `json:"schema"`
			*snapshot.PacketPath
		}{pathSchema, p})
	} else {
		err = report.Path(f.env.Stdout, f.env.style(), p)
	}
	if err != nil {
		return fmt.Errorf("print a packet: %w", err)
	}
	return nil
}

// name is empty for a packet without a device, which is in no namespace.
func (f *follower) name(inode uint64) string {
	if inode == 0 {
		return ""
	}
	return f.names.name(inode)
}
