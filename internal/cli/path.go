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

A packet is followed from the first function that sees it match, with the headers
it has there, in the chosen namespace and on the chosen interface; from then on
wherever it goes, copies included. Filter by the addresses that it has before NAT.

` + frame.FilterUsage + `

--functions is a profile or a list of names and patterns of functions:
  nat  receive, hooks, connection tracking, NAT, rules, bridge netfilter, send
  rx   from the driver to the socket
  all  every function that gets a packet
While it runs, every packet of the host is checked in each of these functions, which
slows all of them down. --netns and --iface cost less to check than a filter. A
function that the compiler inlined has no line.

Requires kprobes, Linux 5.8 (more functions with CONFIG_FPROBE, 5.18; return values
from 5.17), CAP_BPF, CAP_PERFMON, CAP_SYSLOG, and CAP_SYS_ADMIN for --netns and --pid.
Ends after --count packets, when --for expires, or with Ctrl-C; exits with 1 if no
packet matched.`,
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
	addInterface(cmd, &f.opt.Interface, "packets that have this interface when they are first seen, by its `NAME`")
	flags.StringVar(&f.opt.Functions, "functions", "nat", "watch these functions: a `PROFILE` ("+strings.Join(path.Profiles(), ", ")+") or names, patterns")
	flags.VarP(between(&f.opt.Packets, 1, maxPathPackets), "count", "c", "follow `N` packets, then end")
	flags.Var(periodBetween(&f.duration, minPathTime, maxWindow), "for", "end after this time: seconds or 500ms, 2m, …")
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

// start reports on stderr what is watched, so that whoever sends a packet knows when.
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
