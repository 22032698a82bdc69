package cli

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/engine"
	gatewaylook "github.com/natkit/natkit/internal/gateway/look"
	"github.com/natkit/natkit/internal/gateway/observe"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/report"
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
}

const gatewayStatusHelp = `For each rule of the file: connections since it was written, current connections with
their packets and bytes, and how many ports are left, for the address, protocol and
destination with the fewest. Also: drops, whether somebody changed the table, what waits
for confirmation, missing interfaces and addresses, connections under a removed address.

"new" are the kernel's own counters of first packets, also of connections that then find
no port, each time that they are sent. Where rules share a map and the kernel cannot
count within maps (before Linux 5.7) they are missing. "flows", packets and bytes are of
the current connections, by their translation; packets and bytes where the kernel counts
them ('accounting: on' in the file).

"dropped", with --watch, are first packets that a rule translated and that the kernel
then dropped because the connection clashed with another one or found no free port,
since the watch began: by an eBPF program that runs for dropped packets (CAP_BPF and
CAP_PERFMON; Linux 5.4 with BTF). Without it they are known for the whole namespace only.

Of a large connection table it reads some 130,000 entries and scales up the result
("~"); --all reads them all. It subscribes to nothing. With --watch it samples every
--interval, and reads less where that would take more than a twentieth of a CPU; with
--json each sample is one line. A sample that fails is reported and the next one follows;
the fifth failure in a row ends it.

Connections that began before their rule pass untranslated until they end: they are
counted. Also reported: a host that does not forward what the gateway is for, a bridge
that keeps a host from reaching itself by a rule with hairpin, and other programs' rules
that translate the same packets first.

Needs CAP_NET_ADMIN. Exit codes: 0 ok, 1 error, 2 usage, 3 (not with --watch) somebody
changed or removed the table, or the host does not forward.`

func newGatewayStatus(env *Env) *cobra.Command {
	s := &gatewayStatus{env: env, interval: 2 * time.Second, top: 40}
	cmd := &cobra.Command{
		Use:   "status",
		Short: "see what each rule does: connections, packets, ports left, drops",
		Long:  gatewayStatusHelp,
		Example: `  sudo natkit gateway status
  sudo natkit gateway status --watch --interval 5
  sudo natkit gateway status --netns gateway --json`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s.topGiven = cmd.Flags().Changed("top")
			return s.target.with(cmd, func(ns *netns.Handle) error { return s.run(cmd.Context(), ns) })
		},
	}
	f := cmd.Flags()
	s.target.addFlags(cmd)
	f.BoolVar(&s.watch, "watch", false, "sample every --interval, until Ctrl-C")
	f.Var(periodBetween(&s.interval, minWatch, maxWindow), "interval", "time between two samples: seconds or 500ms, 2m, …")
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
	if now.Integrity == gateway.RulesChanged || now.Removed != "" || len(now.NotForwarding) > 0 {
		return errFindings
	}
	return nil
}

func (s *gatewayStatus) options(ns *netns.Handle) (gatewaylook.Options, error) {
	j, err := s.env.journal()
	if err != nil {
		return gatewaylook.Options{}, err
	}
	o := gatewaylook.Options{Netns: ns, Journal: j, Store: engine.StoreBeside(j.Dir()), Top: 20}
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
	ticker := time.NewTicker(s.interval)
	defer ticker.Stop()
	for failed := failedLooks - 1; ; {
		now, err := look(ctx)
		if ctx.Err() != nil {
			return nil // Ctrl-C ends it
		}
		switch failed++; {
		case err == nil:
			failed, err = 0, s.showNext(now, time.Now())
		case failed < failedLooks:
			fmt.Fprintf(s.env.Stderr, "natkit: %v; the next sample is in %s\n", err, s.interval)
			err = nil
		}
		if err != nil {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// showNext replaces the former sample on a terminal, in one write, so that nothing flickers.
func (s *gatewayStatus) showNext(now *observe.Status, at time.Time) error {
	if s.env.asJSON {
		return report.JSONLine(s.env.Stdout, s.document(now, at, s.top))
	}
	var frame bytes.Buffer
	if s.env.StdoutTerminal {
		frame.WriteString("\x1b[H\x1b[J")
	}
	fmt.Fprintln(&frame, at.Format(time.TimeOnly))
	top := s.top
	_, rows := s.env.terminalSize()
	if rows > 0 && !s.topGiven {
		top = fitting(rows)
	}
	if err := s.document(now, at, top).Text(&frame, s.env.style()); err != nil {
		return err
	}
	if !s.env.StdoutTerminal {
		fmt.Fprintln(&frame)
	}
	_, err := s.env.Stdout.Write(clipped(frame.Bytes(), rows))
	return err
}

// fitting is how many rules, of two lines each, a screen has room for beside the rest.
func fitting(rows int) int {
	const rest, least = 20, 4
	return max(least, (rows-rest)/2)
}

// clipped is as much of a frame as a screen has room for, with its last row for the
// cursor: more would move the head out of sight. 0 rows are no screen.
func clipped(frame []byte, rows int) []byte {
	lines := bytes.SplitAfter(frame, []byte("\n"))
	if more := len(lines) - rows; rows > 1 && more > 0 {
		return fmt.Appendf(bytes.Join(lines[:rows-2], nil), "… %d more lines in a larger window\n", more+1)
	}
	return frame
}

func (s *gatewayStatus) document(now *observe.Status, at time.Time, top int) report.GatewayStatus {
	if s.env.asJSON && s.topGiven && s.top > 0 {
		now.Rules = observe.Busiest(now.Rules, s.top)
	}
	return report.GatewayStatus{Schema: gatewayStatusSchema, Version: s.env.Version, At: at, Source: s.target.name(), Gateway: now,
		Args: s.target.args(), Top: top, Watch: s.watch}
}
