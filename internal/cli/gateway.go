package cli

import "github.com/spf13/cobra"

const gatewayHelp = `Every kind of NAT as one file, the same for every engine: checked, planned,
applied in one transaction, confirmed or rolled back, explained packet by
packet.

natkit keeps its rules in a table of its own, "inet natkit". The rules of others
(Docker, Kubernetes, firewalld, hand-made ones) are left alone.`

func newGateway(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "gateway",
		Short: "every kind of NAT from one file: check, plan, apply, status, undo",
		Long:  gatewayHelp,
		Example: `  natkit gateway check gateway.yaml
  sudo natkit gateway plan gateway.yaml
  sudo natkit gateway apply gateway.yaml --confirm 60s`,
	}
	cmd.AddCommand(newGatewayCheck(env))
	cmd.AddCommand(newGatewayApply(env), newGatewayConfirm(env), newGatewayUndo(env), newGatewayRun(env))
	cmd.AddCommand(newGatewayImport(env))
	cmd.AddCommand(newGatewayStatus(env))
	cmd.AddCommand(newGatewayPlan(env), newGatewayExplain(env))
	return cmd
}
