package cli

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/natkit/natkit/internal/gateway"
	gwapply "github.com/natkit/natkit/internal/gateway/apply"
	"github.com/natkit/natkit/internal/gateway/engine"
	"github.com/natkit/natkit/internal/gateway/host"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/report"
)

const gatewayCheckSchema = "natkit.gateway-check/1"

func newGatewayCheck(env *Env) *cobra.Command {
	var where target
	var offline bool
	cmd := &cobra.Command{
		Use:   "check FILE",
		Short: "find mistakes in a gateway file, on this host or offline",
		Long: `Read a gateway file and report, with line and column, which rules overlap, can never
match, give more than they have, or would cut your own session; and what this host
lacks for them or has that conflicts: addresses, interfaces, flowtables, rules of
Docker and others. Nothing is changed.

FILE is a file in the language of docs/gateway.md, or - for the standard input. With
--offline the host is not read: for a file that is meant for another host, or to check
it without root. Other programs' rules can be read by root only (CAP_NET_ADMIN);
without, the rest is checked, and the result is INCOMPLETE.

Findings have two severities: 'natkit gateway apply' refuses a file with a refused one;
for a warning it applies what can be applied.

Exit codes: 0 no findings, 1 the file cannot be read, 2 it does not parse, 3 findings,
4 no findings, but INCOMPLETE.`,
		Example: `  natkit gateway check gateway.yaml
  natkit gateway check --offline - < gateway.yaml
  sudo natkit gateway check gateway.yaml --netns gw --json`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeYAML,
		RunE: func(cmd *cobra.Command, args []string) error {
			return where.with(cmd, func(ns *netns.Handle) error { return checkGateway(cmd.Context(), env, ns, args[0], offline) })
		},
	}
	where.addFlags(cmd)
	cmd.Flags().BoolVar(&offline, "offline", false, "check the file alone, without reading this host")
	cmd.MarkFlagsMutuallyExclusive("offline", "netns", "pid")
	env.addJSON(cmd, gatewayCheckSchema)
	return cmd
}

func checkGateway(ctx context.Context, env *Env, ns *netns.Handle, name string, offline bool) error {
	file, err := readGateway(ctx, env, name)
	if err != nil {
		return err
	}
	var facts gateway.Facts
	if !offline {
		facts, err = host.Read(ctx, ns, host.Options{PID: os.Getpid(), Targets: file.Config.Targets()})
		if err != nil {
			return fmt.Errorf("read this host: %w; --offline checks the file alone", err)
		}
		engine.Standard.Facts(ns, &file.Config, &facts)
	}
	findings, err := gwapply.UnlessEnded(ctx, func() ([]gateway.Finding, error) { return engine.Standard.Check(file, facts), nil })
	if err != nil {
		return err
	}
	doc := report.GatewayCheck{Schema: gatewayCheckSchema, File: file.Name, Rules: len(file.Config.NAT) + len(file.Config.IPv6),
		Offline: offline, Unknown: list(facts.Unknown), Findings: list(findings)}
	for _, found := range findings {
		if found.Severity == gateway.Refuse {
			doc.Refused++
		} else {
			doc.Warned++
		}
	}
	switch err := env.print(doc); {
	case err != nil:
		return err
	case len(findings) > 0:
		return errFindings
	case len(doc.Unknown) > 0:
		return errIncomplete
	}
	return nil
}

// readGateway reads and parses a gateway file, or the standard input for "-".
func readGateway(ctx context.Context, env *Env, name string) (*gateway.File, error) {
	name, text, err := gatewayText(ctx, env, name)
	if err != nil {
		return nil, err
	}
	return gwapply.UnlessEnded(ctx, func() (*gateway.File, error) { return gateway.Parse(name, text) })
}

// gatewayText reads a gateway file, or the standard input for "-", and names it.
func gatewayText(ctx context.Context, env *Env, name string) (string, []byte, error) {
	text, err := env.input(ctx, name, gateway.MaxSource, "a gateway file into it, such as 'natkit gateway check - <gateway.yaml'")
	if name == "-" {
		name = "stdin"
	}
	if err != nil {
		return name, nil, fmt.Errorf("read gateway file: %w", err)
	}
	return name, text, nil
}
