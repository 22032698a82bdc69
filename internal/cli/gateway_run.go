package cli

import (
	"fmt"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/gateway/run"
)

func newGatewayRun(env *Env) *cobra.Command {
	var where target
	var undo bool
	cmd := &cobra.Command{
		Use:   "run FILE",
		Short: "keep a gateway file in force, for a service manager",
		Long: `Apply the file, and again when it changes or the interfaces' addresses do, until
SIGTERM. What is in force then stays, so that a restart cuts no connection; 'natkit
gateway undo' takes it back, or --undo-on-exit.

Where an address goes, the connections that natkit's rules gave it are removed; no
other connection is touched. A file that is broken, or that cannot be applied, leaves
the former rules in force, and one line says why; at the start it is an error.
Interfaces that do not exist yet are waited for. SIGHUP reads the file again.

Where somebody removes natkit's table, as 'nft flush ruleset' does, it comes again
within a second or two, and every 30 seconds where that goes on; rules in it that
somebody changed are left, with a line, until the next change or SIGHUP. What 'natkit
gateway undo' took back stays so until then.

It tells systemd when it is ready, what is in force, and that it lives
(sd_notify(3)). Needs CAP_NET_ADMIN only; deploy/natkit-gateway.service is its unit.`,
		Example:           "  sudo natkit gateway run /etc/natkit/gateway.yaml",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeYAML,
		RunE: func(cmd *cobra.Command, args []string) error {
			ns, err := where.open(cmd)
			if err != nil {
				return err
			}
			defer ns.Close()
			h, err := gatewayHost(env, ns)
			if err != nil {
				return err
			}
			s := run.Service{
				Host: h, File: args[0], Reload: hangups(), UndoOnExit: undo, Getenv: env.Getenv,
				Log: func(line string) { fmt.Fprintf(env.Stderr, "natkit: %s\n", line) },
			}
			return s.Run(cmd.Context())
		},
	}
	where.addFlags(cmd)
	cmd.Flags().BoolVar(&undo, "undo-on-exit", false, "take everything back at the end")
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
