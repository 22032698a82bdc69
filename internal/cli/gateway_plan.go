package cli

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/natkit/natkit/internal/capacity"
	"github.com/natkit/natkit/internal/gateway"
	gwapply "github.com/natkit/natkit/internal/gateway/apply"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/tune"
)

const gatewayPlanSchema = "natkit.gateway-preview/1"

// gatewayPlan are the flags of `natkit gateway plan`.
type gatewayPlan struct {
	target
	asJSON bool
}

func newGatewayPlan(env *Env) *cobra.Command {
	var f gatewayPlan
	cmd := &cobra.Command{
		Use:   "plan FILE",
		Short: "say what a gateway file would change here, and what it could hold",
		Long: `Compare a gateway file with what is in force, and change nothing, neither rules nor
files: which rules come, go and change, and what that does to connections that there
are; which settings of the host would be changed, with the cost and the risk of each;
how many connections each pool of addresses can hold, per destination; what is
missing, and what 'natkit gateway check' finds.

FILE is a file in the language of docs/gateway.md, or - for the standard input.

It exits with 3 where 'natkit gateway apply' would refuse to do it.`,
		Example: `  sudo natkit gateway plan gateway.yaml
  sudo natkit gateway plan gateway.yaml --netns gw --json`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeYAML,
		RunE: func(cmd *cobra.Command, args []string) error {
			ns, err := f.open(cmd)
			if err != nil {
				return err
			}
			defer ns.Close()
			return f.run(cmd.Context(), env, ns, args[0])
		},
	}
	f.target.addFlags(cmd)
	addJSON(cmd, &f.asJSON, gatewayPlanSchema)
	return cmd
}

// gatewayPlanDocument is what plan reports.
type gatewayPlanDocument struct {
	Schema string `json:"schema"`
	File   string `json:"file"`
	// Digest is of the plan that the file becomes, Before what is in force ("none", a
	// digest). Known is false where natkit does not have the plan of that.
	Digest string `json:"digest"`
	Before string `json:"before"`
	Known  bool   `json:"before_known"`
	// Refused: apply would not do it.
	Refused    bool              `json:"refused"`
	Obstacles  []string          `json:"obstacles"`
	Findings   []gateway.Finding `json:"findings"`
	Difference gateway.Diff      `json:"difference"`
	Changes    []tune.Change     `json:"changes"`
	Already    []string          `json:"already"`
	Notes      []string          `json:"notes"`

	Pools           []gateway.PoolCapacity `json:"pools"`
	TimeWaitSeconds float64                `json:"time_wait_seconds"`
	Table           *gatewayTableDocument  `json:"connection_table,omitempty"`
	Missing         []string               `json:"missing_interfaces"`
	Waiting         []gateway.Waiting      `json:"waiting"`
	// Unknown could not be read of the host.
	Unknown []string `json:"unknown"`
}

// gatewayTableDocument is what the connection table needs for what the file expects.
type gatewayTableDocument struct {
	Entries   int64 `json:"entries"`
	Max       int64 `json:"max"`
	MaxAfter  int64 `json:"max_after"`
	Buckets   int64 `json:"buckets_after"`
	FullBytes int64 `json:"full_bytes_after"`
}

func (f *gatewayPlan) run(ctx context.Context, env *Env, ns *netns.Handle, name string) error {
	h, err := gatewayHost(env, ns)
	if err != nil {
		return err
	}
	text, err := gatewayText(ctx, env, name)
	if err != nil {
		return err
	}
	name = gatewayName(name)
	v, err := h.Preview(ctx, gwapply.Wish{Name: name, Text: text, PID: os.Getpid(), Origin: gwapply.Origin})
	if refused := (gwapply.Refused{}); errors.As(err, &refused) {
		return f.refused(env, name, v)
	}
	if err != nil {
		return fmt.Errorf("plan %s: %w", name, err)
	}
	if err := f.print(env, name, v); err != nil {
		return err
	}
	if v.Refused() {
		return errFindings
	}
	return nil
}

// refused: there is no plan, but for the reasons.
func (f *gatewayPlan) refused(env *Env, name string, v *gwapply.Preview) error {
	var err error
	if f.asJSON {
		err = report.JSON(env.Stdout, gatewayPlanDocument{Schema: gatewayPlanSchema, File: name, Refused: true, Findings: v.Findings,
			Obstacles: []string{}, Changes: []tune.Change{}, Already: []string{}, Notes: []string{}, Pools: []gateway.PoolCapacity{}, Missing: []string{}, Waiting: []gateway.Waiting{}, Unknown: list(v.Facts.Unknown)})
	} else {
		err = writeFindings(env.Stdout, env.style(), name, v.Findings)
	}
	return errors.Join(err, errFindings)
}

// gatewayText reads a gateway file, or the standard input for "-".
func gatewayText(ctx context.Context, env *Env, name string) ([]byte, error) {
	text, err := env.input(ctx, name, gateway.MaxSource, "a gateway file into it, such as 'natkit gateway check - <gateway.yaml'")
	if err != nil {
		return nil, fmt.Errorf("read gateway file: %w", err)
	}
	return text, nil
}

// gatewayName is how a file is called in messages.
func gatewayName(name string) string {
	if name == "-" {
		return "stdin"
	}
	return name
}

// difference is that of what is in force; known is false where natkit does not have its
// plan.
func difference(v *gwapply.Preview) (d gateway.Diff, known bool) {
	return gateway.DiffOf(v.InForce, v.Gateway), v.InForce != nil || v.Before == tune.GatewayNone
}

func (f *gatewayPlan) print(env *Env, name string, v *gwapply.Preview) error {
	d, known := difference(v)
	pools := gateway.Capacity(v.Gateway, v.Facts, v.TimeWaitSeconds)
	missing := gateway.MissingInterfaces(v.Gateway, v.Facts)
	if f.asJSON {
		return report.JSON(env.Stdout, gatewayPlanDocument{
			Schema: gatewayPlanSchema, File: name, Digest: d.After, Before: v.Before, Known: known,
			Refused: v.Refused(), Obstacles: list(v.Obstacles), Findings: list(v.Findings), Difference: d, Changes: list(v.Plan.Changes),
			Already: list(v.Already), Notes: list(v.Notes), Pools: list(pools), TimeWaitSeconds: v.TimeWaitSeconds,
			Table: tableDocument(v.Sizing, v.Table), Missing: list(missing), Waiting: list(v.Gateway.Waiting), Unknown: list(v.Facts.Unknown)})
	}
	if err := writeFindings(env.Stdout, env.style(), name, v.Findings); err != nil {
		return err
	}
	return report.WriteGatewayPlan(env.Stdout, env.style(), &report.GatewayPlan{
		Known: known, Difference: d, Planned: plannedGateway(gatewayDocument{Plan: &v.Plan, Already: v.Already, Notes: v.Notes}),
		Pools: pools, TimeWaitSeconds: v.TimeWaitSeconds, Sizing: v.Sizing, Table: v.Table,
		Missing: missing, Waiting: v.Gateway.Waiting, Obstacles: v.Obstacles})
}

func tableDocument(s *capacity.Sizing, now tune.Facts) *gatewayTableDocument {
	if s == nil {
		return nil
	}
	return &gatewayTableDocument{Entries: s.Entries, Max: now.Max, MaxAfter: s.Max, Buckets: s.Buckets, FullBytes: s.FullBytes}
}

// list is never null in a document.
func list[T any](all []T) []T {
	if all == nil {
		return []T{}
	}
	return all
}
