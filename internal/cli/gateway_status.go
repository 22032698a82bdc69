//go:build linux

package cli

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/engine"
	"github.com/natkit/natkit/internal/gateway/host"
	gatewaylook "github.com/natkit/natkit/internal/gateway/look"
	"github.com/natkit/natkit/internal/gateway/observe"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/report"
	"github.com/spf13/cobra"
)

// gatewayStatusSchema names the JSON form.
const gatewayStatusSchema = "natkit.gateway-status/1"

// gatewayStatus is the verb gateway status.
type gatewayStatus struct {
	env      *Env
	target   target
	watch    bool
	interval time.Duration
	all      bool
	top      int
	// topGiven: --top holds whatever the screen has room for.
	topGiven bool
	// enter is the command that runs others in the namespace.
	enter string
}

func newGatewayStatus(env *Env) *cobra.Command {
	s := &gatewayStatus{env: env, interval: 2 * time.Second, top: 40}
	cmd := &cobra.Command{
		Use:   "status",
		Short: "see what each rule does: connections, packets, ports left, drops",
		Long: `For each rule of the file: connections since it was written ("new", the kernel's own
counters of first packets), current connections ("flows") with their packets and bytes,
and how many ports are left, for the address, protocol and destination with the fewest.
Also: drops, whether the table was changed, what waits for confirmation, missing
interfaces and addresses, other programs' rules that translate the same packets first.

Of a large connection table it reads some 130,000 entries and scales up the result
("~"); --all reads them all. With --watch it samples every --interval, and counts by
eBPF the first packets that a rule translated and the kernel then dropped (CAP_BPF,
CAP_PERFMON, Linux 5.4); with --json each sample is one line.

Needs CAP_NET_ADMIN. Exit codes: 0 ok, 1 error, 2 usage, 3 (not with --watch) the table
or natkit's policy routing was changed, the table was removed or is not natkit's, or the
host does not forward.`,
		Example: `  sudo natkit gateway status
  sudo natkit gateway status --watch --interval 5
  sudo natkit gateway status --netns gateway --json`,
	}
	f := cmd.Flags()
	s.target.runs(cmd, func(ctx context.Context, ns *netns.Handle, _ []string) error {
		s.topGiven = f.Changed("top")
		return s.run(ctx, ns)
	})
	f.BoolVar(&s.watch, "watch", false, "sample every --interval, until Ctrl-C")
	f.Var(period(&s.interval, minWatch, maxWindow), "interval", "time between two samples: seconds or 500ms, 2m, …")
	requires(cmd, "interval", "watch")
	f.BoolVar(&s.all, "all", false, "read the whole connection table, however large")
	f.Var(natural(&s.top), "top", "show the `N` rules with most connections, 0 for all; fewer on a small screen, all in JSON unless it is given")
	env.addJSON(cmd, gatewayStatusSchema)
	return cmd
}

func (s *gatewayStatus) run(ctx context.Context, ns *netns.Handle) error {
	o, err := s.options(ns)
	if err != nil {
		return err
	}
	s.enter = o.Enter
	l := gatewaylook.New(o)
	if s.watch {
		l.CountDrops()
		defer l.Close()
		budget := gatewaylook.Budget(s.interval, collect.DefaultMaxEntries)
		return s.watchOn(ctx, func(ctx context.Context) (*observe.Status, error) { return l.Within(ctx, budget, s.all) })
	}
	progress := s.env.progress()
	progress.Update("reading the connection table")
	now, err := l.Look(ctx)
	progress.Clear()
	if err != nil {
		return err
	}
	if err := s.env.print(s.document(now, time.Now(), s.top)); err != nil {
		return err
	}
	if now.Integrity == gateway.RulesChanged || now.Foreign || now.Removed != "" || len(now.NotForwarding) > 0 {
		return errFindings
	}
	return nil
}

func (s *gatewayStatus) options(ns *netns.Handle) (gatewaylook.Options, error) {
	j, err := s.env.journal()
	if err != nil {
		return gatewaylook.Options{}, err
	}
	o := gatewaylook.Options{Netns: ns, Journal: j, Store: engine.StoreBeside(j.Dir()), Top: 20, Enter: netns.Way(ns)}
	if !s.all {
		o.MaxEntries = collect.DefaultMaxEntries
	}
	return o, nil
}

// failedLooks is how many samples in a row may fail before --watch ends.
const failedLooks = 5

// watchOn shows one sample after the other until ctx ends. Where the first one fails, the
// others would too.
func (s *gatewayStatus) watchOn(ctx context.Context, look func(context.Context) (*observe.Status, error)) error {
	failed := failedLooks - 1
	next := func() error {
		now, err := look(ctx)
		if ctx.Err() != nil {
			return nil // Ctrl-C ends it
		}
		switch failed++; {
		case err == nil:
			failed = 0
			return s.showNext(now, time.Now())
		case failed < failedLooks:
			fmt.Fprintf(s.env.Stderr, "natkit: %v; the next sample is in %s\n", err, s.interval)
			return nil
		}
		return err
	}
	if err := next(); err != nil {
		return err
	}
	return during(ctx, 0, s.interval, next)
}

// showNext replaces the former sample on a terminal.
func (s *gatewayStatus) showNext(now *observe.Status, at time.Time) error {
	if s.env.asJSON {
		return report.JSONLine(s.env.Stdout, s.document(now, at, s.top))
	}
	top := s.top
	if _, rows := s.env.terminalSize(); rows > 0 && !s.topGiven {
		top = fitting(rows)
	}
	return s.env.redraw(func(w io.Writer, style report.Style) error {
		fmt.Fprintln(w, at.Format(time.TimeOnly))
		return s.document(now, at, top).Text(w, style)
	})
}

// fitting returns the number of rules, of two lines each, that fit on a screen beside the rest.
func fitting(rows int) int {
	const rest, least = 20, 4
	return max(least, (rows-rest)/2)
}

func (s *gatewayStatus) document(now *observe.Status, at time.Time, top int) report.GatewayStatus {
	if s.env.asJSON && s.topGiven && s.top > 0 {
		now.Rules = observe.Busiest(now.Rules, s.top)
	}
	return report.GatewayStatus{Schema: gatewayStatusSchema, Version: s.env.Version, At: at, Source: s.target.name(), Gateway: now,
		Args: s.target.args(), Enter: s.enter, Top: top, Watch: s.watch}
}

// gatewayExplain are the flags of `natkit gateway explain`.
type gatewayExplain struct {
	target
	in, out                 string
	mark, dscp, user, group string
	at                      string
}

func newGatewayExplain(env *Env) *cobra.Command {
	var f gatewayExplain
	cmd := &cobra.Command{
		Use:   "explain [FILE] PACKET…",
		Short: "trace a packet through hooks and chains: its translation and the answer's",
		Long: `Show what happens to a connection's first packet: the connection tracker, natkit's
chains and those of other programs, the route, which rule translates it, the packet
after translation, and the path of the answer. No packet is sent.

PACKET is PROTOCOL SOURCE -> DESTINATION, with the arrow in quotes, as a shell takes >
for itself; it may be left out. Ports follow a colon; an echo request can have its
identifier there. With FILE the gateway is the one that the file would make of this
host; without, the one that is in force. A packet with an address of this host as its
source is from a program here.`,
		Example: `  sudo natkit gateway explain "tcp 192.168.0.2:4000 -> 198.51.100.9:443"
  sudo natkit gateway explain gateway.yaml "udp 198.51.100.9:5000 -> 203.0.113.7:53" --in eth0
  sudo natkit gateway explain icmp 192.168.0.2 198.51.100.9 --json`,
		ValidArgsFunction: completeYAML,
	}
	f.runs(cmd, func(ctx context.Context, ns *netns.Handle, args []string) error {
		file, packet, err := explainArgs(args)
		if err != nil {
			return err
		}
		if err := f.further(&packet, time.Now()); err != nil {
			return err
		}
		return f.run(ctx, env, ns, file, packet)
	})
	cmd.Flags().StringVar(&f.in, "in", "", "input `INTERFACE` of the packet")
	cmd.Flags().StringVar(&f.out, "out", "", "output `INTERFACE` of a forwarded packet, whatever the route")
	cmd.Flags().StringVar(&f.mark, "mark", "", "`MARK` of the packet (skb->mark)")
	cmd.Flags().StringVar(&f.dscp, "dscp", "", "`DSCP` of the packet: a number or a name such as ef")
	cmd.Flags().StringVar(&f.user, "user", "", "number of the `USER` whose program on this host sends it")
	cmd.Flags().StringVar(&f.group, "group", "", "number of that program's `GROUP`")
	cmd.Flags().StringVar(&f.at, "at", "", "`TIME` when it comes: RFC 3339, or 15:04 of today in UTC (default now)")
	env.addJSON(cmd, observe.Schema)
	completeFlags(cmd, map[string]cobra.CompletionFunc{"in": f.completeInterfaces, "out": f.completeInterfaces})
	return cmd
}

// further adds what a packet's words do not say.
func (f *gatewayExplain) further(p *nat.Packet, now time.Time) (err error) {
	if p.At, err = atTime(f.at, now); err != nil {
		return err
	}
	number := func(flag, text string) uint32 {
		n, bad := nat.ParseNumber(text)
		if bad != nil {
			err = usagef("--%s %q: expected a number from 0 to %d", flag, text, uint32(math.MaxUint32))
		}
		return n
	}
	if f.mark != "" {
		p.Mark = number("mark", f.mark)
	}
	if f.user != "" {
		p.User, p.Owned = number("user", f.user), true
	}
	if f.group != "" {
		p.Group, p.Owned = number("group", f.group), true
	}
	if p.Owned && f.in != "" {
		return usagef("--in is mutually exclusive with --user and --group: what a program on this host sends comes in by no interface")
	}
	if f.dscp != "" {
		point, bad := nat.ParseDSCP(f.dscp)
		if bad != nil {
			return usagef("--%v", bad)
		}
		p.DSCP = point
	}
	return err
}

// atTime reads a time of RFC 3339, or one of today in UTC; now where there is none.
func atTime(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return now.UTC().Truncate(time.Second), nil
	}
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return at.UTC(), nil
	}
	at, err := time.Parse("15:04", text)
	if err != nil {
		return at, usagef("--at %q: expected a time such as 2026-01-31T15:04:00Z, or 15:04 of today in UTC", text)
	}
	year, month, day := now.UTC().Date()
	return time.Date(year, month, day, at.Hour(), at.Minute(), 0, 0, time.UTC), nil
}

// explainArgs separates a file from the packet: a packet begins with a protocol.
func explainArgs(args []string) (file string, packet nat.Packet, err error) {
	first, _, _ := strings.Cut(strings.TrimSpace(args[0]), " ")
	if _, err := nat.ParseProtocol(first); err != nil && (len(args) > 1 || first == args[0]) {
		file, args = args[0], args[1:]
	}
	if len(args) == 0 {
		return "", packet, usagef("the packet is missing: \"tcp 192.168.0.2:4000 -> 198.51.100.9:443\"")
	}
	packet, err = observe.ParsePacket(args)
	if word, _, _ := strings.Cut(args[0], " "); err != nil && file != "" {
		if _, unknown := nat.ParseProtocol(word); unknown != nil {
			return "", packet, usagef("%q is not a protocol, and as a FILE requires a packet after it: %v", file, err)
		}
	}
	if err != nil {
		return "", packet, usagef("%v", err)
	}
	return file, packet, nil
}

func (f *gatewayExplain) run(ctx context.Context, env *Env, ns *netns.Handle, file string, packet nat.Packet) error {
	facts, err := host.Read(ctx, ns, host.Options{})
	if err != nil {
		return err
	}
	plan, err := f.plan(ctx, env, ns, file, &facts)
	if err != nil {
		return err
	}
	if err := f.interfaces(file, plan, facts); err != nil {
		return err
	}
	if len(plan.Uplinks)+len(plan.Zones) > 0 {
		h, err := gatewayHost(env, ns)
		if err == nil {
			facts.Down, err = h.Down()
		}
		if err == nil {
			err = host.Policies(ns, &facts, plan.Zoned())
		}
		if err == nil && file == "" && len(plan.Uplinks) > 0 {
			facts.Steering, err = h.Steering(plan)
		}
		if err != nil {
			return err
		}
	}
	if packet.In, err = f.entrance(ns, packet, plan, &facts); err != nil {
		return err
	}
	if packet.Owned && packet.In != "" {
		return usagef("--user and --group are about programs on this host, and %s is no address of it: what it forwards has no user", packet.Src)
	}
	routes, err := host.OpenRoutes(ns)
	if err != nil {
		return err
	}
	defer routes.Close()
	will, off := facts, []string(nil)
	if file != "" {
		will, off = facts.Forwarding(plan), facts.NotForwarding(plan)
	}
	e, err := engine.Standard.Follow(ns, plan, will, f.routes(routes.Follow, facts, len(off) > 0), packet)
	if err != nil {
		return fmt.Errorf("explain %s: %w", packet, err)
	}
	for _, name := range off {
		if !slices.Contains(will.NotForwarding(plan), name) {
			e.Notes = append(e.Notes, name+" is 0 now: apply turns it on")
		}
	}
	return env.print(report.GatewayPacket{Trace: e})
}

// plan is the file's, or the one in force.
func (f *gatewayExplain) plan(ctx context.Context, env *Env, ns *netns.Handle, file string, facts *gateway.Facts) (*gateway.Plan, error) {
	h, err := gatewayHost(env, ns)
	if err != nil {
		return nil, err
	}
	if file == "" {
		p, err := h.InForce()
		if err == nil && p == nil {
			err = fmt.Errorf("explain: no gateway that natkit has the plan of is in force here; give its file: 'natkit gateway explain%s FILE PACKET'", f.args())
		}
		if err == nil {
			p.Out, err = h.Out(p)
		}
		if err == nil {
			p.Leases, err = h.Engines.Leases(h.Netns, p)
		}
		return p, err
	}
	read, err := readGateway(ctx, env, file)
	if err != nil {
		return nil, err
	}
	if read.Config.Flowtable {
		facts.Flowtable = gateway.Support{OK: true} // as far as the way goes
	}
	p, err := gateway.Compile(&read.Config, *facts)
	if err == nil {
		p, _, err = engine.Standard.Assign(p, *facts)
	}
	if err != nil {
		return nil, fmt.Errorf("explain %s: %w", file, err)
	}
	return p, nil
}

// interfaces refuses --in and --out that are not here, but for those that a file names:
// it may be meant for another host.
func (f *gatewayExplain) interfaces(file string, plan *gateway.Plan, facts gateway.Facts) error {
	for _, flag := range []struct{ name, value string }{{"in", f.in}, {"out", f.out}} {
		if flag.value == "" || isHere(facts, flag.value) || file != "" && nat.InNames(plan.Interfaces(), flag.value) {
			continue
		}
		if file == "" {
			return fmt.Errorf("--%s %s: there is no such interface here", flag.name, flag.value)
		}
		return fmt.Errorf("--%s %s: there is no such interface here, and %s names none", flag.name, flag.value, file)
	}
	return nil
}

func isHere(facts gateway.Facts, name string) bool {
	return slices.ContainsFunc(facts.Interfaces, func(i gateway.Interface) bool { return i.Name == name })
}

// entrance is the interface by which the packet comes: the one that leads to its
// source; none for a source of the host's own.
func (f *gatewayExplain) entrance(ns *netns.Handle, packet nat.Packet, plan *gateway.Plan, facts *gateway.Facts) (string, error) {
	if f.in != "" {
		return f.in, nil
	}
	var zones []string
	for i := range plan.Zones {
		if _, is := facts.InZone(&plan.Zones[i], packet.Src); is {
			zones = append(zones, plan.Zones[i].String())
		}
	}
	if len(zones) > 1 {
		return "", usagef("%s is an address of several zones (%s): --in is required", packet.Src, strings.Join(zones, ", "))
	}
	r, err := host.Routed(ns, host.Way{Destination: packet.Src})
	switch {
	case err != nil:
		return "", err
	case r.Local:
		return "", nil
	case r.Unreachable || r.Out == "":
		return "", fmt.Errorf("explain: no route leads to the source %s, so its input interface is not known: name it with --in", packet.Src)
	}
	return r.Out, nil
}

// routes asks the kernel, for packets of an interface that is not here, or by which the host
// does not forward yet, as if they were of the host itself. --out is for what is not for
// the host itself.
func (f *gatewayExplain) routes(kernel observe.Router, facts gateway.Facts, off bool) observe.Router {
	return func(w observe.Lookup) (observe.Hop, error) {
		if !isHere(facts, w.In) || off {
			w.In, w.Source = "", netip.Addr{}
		}
		h, err := kernel(w)
		if err == nil && f.out != "" && !h.Local {
			h = observe.Hop{Out: f.out}
		}
		return h, err
	}
}
