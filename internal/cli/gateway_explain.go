package cli

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/engine"
	"github.com/natkit/natkit/internal/gateway/host"
	"github.com/natkit/natkit/internal/gateway/observe"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/report"
)

// gatewayExplain are the flags of `natkit gateway explain`.
type gatewayExplain struct {
	target
	in, out string
}

func newGatewayExplain(env *Env) *cobra.Command {
	var f gatewayExplain
	cmd := &cobra.Command{
		Use:   "explain [FILE] PACKET",
		Short: "trace a packet through hooks and chains: its translation and the answer's",
		Long: `Show what happens to a connection's first packet: the connection tracker, natkit's
chains and those of other programs, in the order in which the kernel evaluates them,
the route, which rule translates it, the packet after translation, and the path of the
answer. Rules about its addresses that do not apply are listed with the reason. No
packet is sent.

PACKET is PROTOCOL SOURCE -> DESTINATION, with the arrow in quotes, as a shell takes >
for itself; it may be left out. Ports follow a colon. An echo request of icmp or icmpv6
can have its identifier there.

With FILE the gateway is the one that the file would make of this host; without, the
one that is in force. The input interface is the one that leads to the source, unless
--in names another; a packet with an address of this host as its source is from a
program here. --out overrides the route. With a file for another host, --in and --out
may be interfaces that it names and that do not exist here.

Of other programs' rules natkit follows those that translate, also through sets, ranges
and maps, where it understands all their conditions, and reports where it does not.
Where the host does not forward, or a bridge does not send back to the host that the
packet came from, it is shown as dropped.`,
		Example: `  sudo natkit gateway explain "tcp 192.168.0.2:4000 -> 198.51.100.9:443"
  sudo natkit gateway explain gateway.yaml "udp 198.51.100.9:5000 -> 203.0.113.7:53" --in eth0
  sudo natkit gateway explain icmp 192.168.0.2 198.51.100.9 --json`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: completeYAML,
		RunE: func(cmd *cobra.Command, args []string) error {
			file, packet, err := explainArgs(args)
			if err != nil {
				return err
			}
			return f.with(cmd, func(ns *netns.Handle) error { return f.run(cmd.Context(), env, ns, file, packet) })
		},
	}
	f.target.addFlags(cmd)
	cmd.Flags().StringVar(&f.in, "in", "", "input `INTERFACE` of the packet")
	cmd.Flags().StringVar(&f.out, "out", "", "output `INTERFACE` of a forwarded packet, whatever the route")
	env.addJSON(cmd, observe.Schema)
	completeFlags(cmd, map[string]cobra.CompletionFunc{"in": completeInterface, "out": completeInterface})
	return cmd
}

// arrows writes an arrow that is an argument of its own, explain tcp A '->' B, as one that
// is not taken for flags.
func arrows(args []string) []string {
	if len(args) < 2 || args[0] != "gateway" || !slices.Contains(args, "explain") {
		return args
	}
	args = slices.Clone(args)
	for i, a := range args {
		if a == "->" {
			args[i] = "→"
		}
	}
	return args
}

// explainArgs separates a file from the packet: a packet begins with a protocol.
func explainArgs(args []string) (file string, packet observe.Packet, err error) {
	first, _, _ := strings.Cut(strings.TrimSpace(args[0]), " ")
	if _, err := nat.ParseProtocol(first); err != nil && (len(args) > 1 || first == args[0]) {
		file, args = args[0], args[1:]
	}
	if len(args) == 0 {
		return "", packet, usagef("the packet is missing: \"tcp 192.168.0.2:4000 -> 198.51.100.9:443\"")
	}
	if packet, err = observe.ParsePacket(args); err != nil {
		return "", packet, usagef("%v", err)
	}
	return file, packet, nil
}

func (f *gatewayExplain) run(ctx context.Context, env *Env, ns *netns.Handle, file string, packet observe.Packet) error {
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
	if packet.In, err = f.entrance(ns, packet); err != nil {
		return err
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
	e, err := engine.Standard.Follow(plan, will, f.routes(routes.Follow, facts, len(off) > 0), packet)
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
			err = errors.New("explain: no gateway that natkit has the plan of is in force here; give its file: 'natkit gateway explain FILE PACKET'")
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
	if err != nil {
		return nil, fmt.Errorf("explain %s: %w", file, err)
	}
	return p, nil
}

// interfaces refuses --in and --out that are not here, but for those that a file names:
// it may be meant for another host.
func (f *gatewayExplain) interfaces(file string, plan *gateway.Plan, facts gateway.Facts) error {
	for _, flag := range []struct{ name, value string }{{"in", f.in}, {"out", f.out}} {
		if flag.value == "" || isHere(facts, flag.value) || file != "" && slices.Contains(plan.Interfaces(), flag.value) {
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
func (f *gatewayExplain) entrance(ns *netns.Handle, packet observe.Packet) (string, error) {
	if f.in != "" {
		return f.in, nil
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
