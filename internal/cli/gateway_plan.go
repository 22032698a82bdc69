package cli

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/natkit/natkit/internal/gateway"
	gwapply "github.com/natkit/natkit/internal/gateway/apply"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/tune"
)

const gatewayPlanSchema = "natkit.gateway-preview/1"

func newGatewayPlan(env *Env) *cobra.Command {
	var where target
	cmd := &cobra.Command{
		Use:   "plan FILE",
		Short: "show what a gateway file would change here, and what it could hold",
		Long: `Compare a gateway file with what is in force, and change nothing, neither rules nor
files: rules added, removed and changed, and the effect on existing connections;
settings of the host that would change, with the cost and the risk of each; how many
connections each pool of addresses can hold, per destination; missing interfaces and
addresses, and the findings of 'natkit gateway check'.

FILE is a file in the language of docs/gateway.md, or - for the standard input.

Exit codes: 0 ok, 1 error, 2 usage, 3 'natkit gateway apply' would refuse it.`,
		Example: `  sudo natkit gateway plan gateway.yaml
  sudo natkit gateway plan gateway.yaml --netns gw --json`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeYAML,
		RunE: func(cmd *cobra.Command, args []string) error {
			return where.with(cmd, func(ns *netns.Handle) error { return planGateway(cmd.Context(), env, ns, args[0]) })
		},
	}
	where.addFlags(cmd)
	env.addJSON(cmd, gatewayPlanSchema)
	return cmd
}

// gatewayWish is what a file asks for, and of which host.
func gatewayWish(ctx context.Context, env *Env, ns *netns.Handle, name string) (gwapply.Host, gwapply.Wish, error) {
	h, err := gatewayHost(env, ns)
	if err != nil {
		return h, gwapply.Wish{}, err
	}
	name, text, err := gatewayText(ctx, env, name)
	return h, gwapply.Wish{Name: name, Text: text, PID: os.Getpid(), Origin: gwapply.Origin}, err
}

func planGateway(ctx context.Context, env *Env, ns *netns.Handle, name string) error {
	h, w, err := gatewayWish(ctx, env, ns, name)
	if err != nil {
		return err
	}
	v, err := h.Preview(ctx, w)
	refused := errors.As(err, new(gwapply.Refused)) // no plan, but the reasons
	if err != nil && !refused {
		return fmt.Errorf("plan %s: %w", w.Name, err)
	}
	doc := report.GatewayPlan{
		Schema: gatewayPlanSchema, File: w.Name, Before: v.Before, Refused: refused || v.Refused(), Obstacles: list(v.Obstacles), Findings: list(v.Findings),
		Changes: list(v.Plan.Changes), Already: list(v.Already), Notes: list(v.Notes), Unknown: list(v.Facts.Unknown),
		Pools: []gateway.PoolCapacity{}, Missing: []string{}, Waiting: []gateway.Waiting{},
	}
	if !refused {
		doc.Difference, doc.Known = gateway.DiffOf(v.InForce, v.Gateway), v.InForce != nil || v.Before == tune.GatewayNone
		doc.Digest, doc.TimeWaitSeconds = doc.Difference.After, v.TimeWaitSeconds
		doc.Pools = list(gateway.Capacity(v.Gateway, v.Facts, v.TimeWaitSeconds))
		doc.Missing, doc.Waiting = list(gateway.MissingInterfaces(v.Gateway, v.Facts)), list(v.Gateway.Waiting)
		if s := v.Sizing; s != nil {
			doc.Table = &report.GatewayTable{Entries: s.Entries, Max: v.Table.Max, MaxAfter: s.Max, Buckets: s.Buckets, FullBytes: s.FullBytes}
		}
	}
	if err := env.print(doc); err != nil {
		return err
	}
	if doc.Refused {
		return errFindings
	}
	return nil
}
