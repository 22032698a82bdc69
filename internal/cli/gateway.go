package cli

import (
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/gateway"
	gwapply "github.com/natkit/natkit/internal/gateway/apply"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/journal"
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

// gatewayDocument is what apply, confirm and undo report.
type gatewayDocument struct {
	Schema string `json:"schema"`
	File   string `json:"file,omitempty"`
	// Digest is of the plan that the file becomes, Before what is in force.
	Digest   string            `json:"digest,omitempty"`
	Before   string            `json:"before,omitempty"`
	Findings []gateway.Finding `json:"findings,omitempty"`
	// Difference is between the rules that are in force and the file's.
	Difference gateway.Diff `json:"difference,omitzero"`
	Plan       *tune.Plan   `json:"plan,omitempty"`
	Already    []string     `json:"already,omitempty"`
	Notes      []string     `json:"notes,omitempty"`
	Confirm    float64      `json:"confirm_seconds,omitempty"`
	Applied    bool         `json:"applied"`
	// Transactions are those that were made, confirmed or undone.
	Transactions []tuneTransaction `json:"transactions"`
	// Stale are connections whose rule went away.
	Stale *gatewayStale `json:"stale,omitempty"`
}

// gatewayStale counts connections that keep a translation that no rule gives; or, where
// Cut, lose it.
type gatewayStale struct {
	Connections int64            `json:"connections"`
	Cut         bool             `json:"cut"`
	ByRule      map[string]int64 `json:"by_rule"`
	// Deleted is 0 without --flush-stale; Offloaded could not be deleted.
	Deleted   int64 `json:"deleted"`
	Offloaded int64 `json:"offloaded"`
}

func (d gatewayDocument) json(env *Env) error {
	d.Schema = gatewayApplySchema
	if d.Transactions == nil {
		d.Transactions = []tuneTransaction{}
	}
	return report.JSON(env.Stdout, d)
}

// forwardingOff says what an undo takes from others that translate here: programs that
// came after natkit found forwarding on, as Docker does, and did not turn it on.
func forwardingOff(h gwapply.Host, tx *journal.Transaction) string {
	var off []string
	for _, c := range tx.Changes {
		forwards := c.Kind == tune.Sysctl && slices.Contains([]string{gwapply.Forward4, gwapply.Forward6}, c.Target)
		if forwards && c.State == journal.Undone && c.Note == "" && c.Before == "0" && c.After != "0" {
			off = append(off, c.Target)
		}
	}
	others, err := h.OthersNAT()
	if err != nil || len(off) == 0 || len(others) == 0 {
		return ""
	}
	return fmt.Sprintf("forwarding is off again, as it was before natkit; there are rules of NAT in %s, which may need it: 'sysctl -w %s=1'",
		report.Clean(strings.Join(others, ", ")), strings.Join(off, "=1 "))
}

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
			s := gwapply.Service{
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
