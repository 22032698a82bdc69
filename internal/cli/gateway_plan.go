//go:build linux

package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"

	"github.com/natkit/natkit/internal/gateway"
	gwapply "github.com/natkit/natkit/internal/gateway/apply"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/apply"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// gatewayHost returns the host on which a gateway is made.
func gatewayHost(env *Env, ns *netns.Handle) (gwapply.Host, error) {
	j, err := env.journal()
	return gwapply.Host{Netns: ns, Apply: apply.Options{Journal: j}}, err
}

func newGatewayRun(env *Env) *cobra.Command {
	var where target
	var undo bool
	cmd := &cobra.Command{
		Use:   "run FILE",
		Short: "keep a gateway file in force, for a service manager",
		Long: `Apply the file, and again when it or the interfaces' addresses change, until
SIGTERM. The rules then stay in force, so that a restart cuts no connection; 'natkit
gateway undo' removes them, or --undo-on-exit. SIGHUP reads the file again.

Where an address goes, the connections that natkit's rules gave it are removed. A file
that cannot be applied leaves the former rules in force, and one line says why; at the
start it is an error. If natkit's table is removed, as by 'nft flush ruleset', it is
restored.

It notifies systemd of readiness, status and liveness (sd_notify(3)). Needs
CAP_NET_ADMIN, and CAP_NET_RAW where connections are divided among several WANs; its
unit is deploy/natkit-gateway.service.`,
		Example:           "  sudo natkit gateway run /etc/natkit/gateway.yaml",
		ValidArgsFunction: completeYAML,
	}
	where.runs(cmd, func(ctx context.Context, ns *netns.Handle, args []string) error {
		h, err := gatewayHost(env, ns)
		if err != nil {
			return err
		}
		s := gwapply.Service{
			Host: h, File: args[0], Reload: hangups(), UndoOnExit: undo, Getenv: env.Getenv,
			Log: func(line string) { fmt.Fprintf(env.Stderr, "natkit: %s\n", line) },
		}
		return s.Run(ctx)
	})
	cmd.Flags().BoolVar(&undo, "undo-on-exit", false, "undo everything on exit")
	return cmd
}

// hangups takes SIGHUP from the handler that would end natkit. In between it is
// ignored, as it would end the process otherwise.
func hangups() <-chan os.Signal {
	c := make(chan os.Signal, 1)
	signal.Ignore(unix.SIGHUP)
	signal.Notify(c, unix.SIGHUP)
	return c
}

const gatewayPlanSchema = "natkit.gateway-preview/1"

func newGatewayPlan(env *Env) *cobra.Command {
	var where target
	cmd := &cobra.Command{
		Use:   "plan FILE",
		Short: "show what a gateway file would change here, and what it could hold",
		Long: `Compare a gateway file with what is in force, and change nothing: rules added, removed
and changed, and the effect on existing connections; settings of the host that would
change, with the cost and the risk of each; how many connections each pool of addresses
can hold; missing interfaces and addresses, and the findings of 'natkit gateway check'.
FILE may be - for the standard input.

Exit codes: 0 ok, 1 error, 2 usage, 3 'natkit gateway apply' would refuse it.`,
		Example: `  sudo natkit gateway plan gateway.yaml
  sudo natkit gateway plan gateway.yaml --netns gw --json`,
		ValidArgsFunction: completeYAML,
	}
	where.runs(cmd, func(ctx context.Context, ns *netns.Handle, args []string) error {
		return planGateway(ctx, env, ns, args[0])
	})
	env.addJSON(cmd, gatewayPlanSchema)
	return cmd
}

// gatewayWish returns the gateway that a file describes, and its host.
func gatewayWish(ctx context.Context, env *Env, ns *netns.Handle, name string) (gwapply.Host, gwapply.Wish, error) {
	h, err := gatewayHost(env, ns)
	if err != nil {
		return h, gwapply.Wish{}, err
	}
	name, text, err := gatewayText(ctx, env, name)
	return h, gwapply.Wish{Name: name, Text: text, PID: os.Getpid(), Origin: gwapply.Origin}, err
}

// planDocument returns the changes that a file would make; without a plan, the reasons.
func planDocument(name string, r *gwapply.Ready) report.GatewayPlan {
	doc := report.GatewayPlan{
		Schema: gatewayPlanSchema, File: name, Before: r.Before, Findings: list(r.Findings), Changes: list(r.Plan.Changes),
		Already: list(r.Already), Notes: list(r.Notes), Unknown: list(r.Facts.Unknown),
		Obstacles: []string{}, Pools: []gateway.PoolCapacity{}, Missing: []string{}, Waiting: []gateway.Waiting{}, Off: []gateway.Off{}, Carriers: []gateway.Carrier{}, Bypassed: []gateway.Bypassed{},
	}
	if r.Gateway != nil {
		doc.Difference, doc.Known = gateway.DiffOf(r.InForce, r.Gateway), r.InForce != nil || r.Before == tune.GatewayNone
		doc.Digest = doc.Difference.After
		doc.Carriers, doc.Bypassed = list(r.Carriers), list(r.Gateway.Bypassed(&r.Facts))
		doc.Missing, doc.Waiting = list(gateway.MissingInterfaces(r.Gateway, r.Facts)), list(r.Gateway.Waiting)
		doc.Off = list(r.Gateway.Off)
	}
	return doc
}

func planGateway(ctx context.Context, env *Env, ns *netns.Handle, name string) error {
	h, w, err := gatewayWish(ctx, env, ns, name)
	if err != nil {
		return err
	}
	doc, err := previewDocument(ctx, h, w)
	if err != nil {
		return err
	}
	if err := env.print(doc); err != nil {
		return err
	}
	if doc.Refused {
		return errFindings
	}
	return nil
}

// previewDocument returns what a file would change here, and what it could hold.
func previewDocument(ctx context.Context, h gwapply.Host, w gwapply.Wish) (report.GatewayPlan, error) {
	v, err := h.Preview(ctx, w)
	refused := errors.As(err, new(gwapply.Refused)) // no plan, but the reasons
	if err != nil && !refused {
		return report.GatewayPlan{}, fmt.Errorf("plan %s: %w", w.Name, err)
	}
	doc := planDocument(w.Name, v.Ready)
	doc.Refused, doc.Obstacles, doc.TimeWaitSeconds = refused || v.Refused(), list(v.Obstacles), v.TimeWaitSeconds
	if !refused {
		doc.Pools = list(gateway.Capacity(v.Gateway, v.Facts, v.TimeWaitSeconds))
	}
	if s := v.Sizing; s != nil {
		doc.Table = &report.GatewayTable{Entries: s.Entries, Max: v.Table.Max, MaxAfter: s.Max, Buckets: s.Buckets, FullBytes: s.FullBytes}
	}
	return doc, nil
}
