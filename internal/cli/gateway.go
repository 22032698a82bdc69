package cli

import (
	"fmt"
	"os"
	"os/signal"

	gwapply "github.com/natkit/natkit/internal/gateway/apply"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/tune/apply"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

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

// gatewayHost is where a gateway is made.
func gatewayHost(env *Env, ns *netns.Handle) (gwapply.Host, error) {
	j, err := env.journal()
	return gwapply.Host{Netns: ns, Apply: apply.Options{Journal: j}}, err
}

// completeYAML offers configuration files, for the shell.
func completeYAML(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return []string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt
}

func newGatewayRun(env *Env) *cobra.Command {
	var where target
	var undo bool
	cmd := &cobra.Command{
		Use:   "run FILE",
		Short: "keep a gateway file in force, for a service manager",
		Long: `Apply the file, and again when it or the interfaces' addresses change, until
SIGTERM. The rules then stay in force, so that a restart cuts no connection; 'natkit
gateway undo' removes them, or --undo-on-exit.

Where an address goes, the connections that natkit's rules gave it are removed; no
other connection is touched. A file that does not parse or cannot be applied leaves the
former rules in force, and one line says why; at the start it is an error. Interfaces
that do not exist yet are waited for. SIGHUP reads the file again.

If natkit's table is removed, as by 'nft flush ruleset', it is restored within a second
or two, and every 30 seconds while that goes on; rules in it that were changed are left,
with a line in the log, until the next change or SIGHUP. What 'natkit gateway undo' took
back stays so until then.

It notifies systemd of readiness, status and liveness (sd_notify(3)). Needs
CAP_NET_ADMIN only; its unit is deploy/natkit-gateway.service.`,
		Example:           "  sudo natkit gateway run /etc/natkit/gateway.yaml",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeYAML,
		RunE: func(cmd *cobra.Command, args []string) error {
			return where.with(cmd, func(ns *netns.Handle) error {
				h, err := gatewayHost(env, ns)
				if err != nil {
					return err
				}
				s := gwapply.Service{
					Host: h, File: args[0], Reload: hangups(), UndoOnExit: undo, Getenv: env.Getenv,
					Log: func(line string) { fmt.Fprintf(env.Stderr, "natkit: %s\n", line) },
				}
				return s.Run(cmd.Context())
			})
		},
	}
	where.addFlags(cmd)
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
