package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/gateway"
	gatewaylook "github.com/natkit/natkit/internal/gateway/look"
	"github.com/natkit/natkit/internal/gateway/observe"
	"github.com/natkit/natkit/internal/gateway/store"
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
	asJSON   bool
	top      int
	// topGiven: somebody asked for so many rules, whatever there is room for.
	topGiven bool
}

const gatewayStatusHelp = `For each rule of the file: connections since it was written, connections now with
their packets and bytes, and what is left of the ports that it gives, for the address,
protocol and destination that has least. Besides: what was dropped, whether the table
is as natkit wrote it or somebody changed it, what waits for confirmation, interfaces
and addresses that are not there, connections under an address that is gone.

"new" are the kernel's own counters, of first packets: those of connections that then
find no port count too, each time that they are sent. Where it cannot count within maps
(before Linux 5.7) they are missing for rules that share one. "flows", packets and bytes
are of the connections that there are now, by what they were translated to; packets and
bytes where the kernel counts them ('accounting: on' in the file).

"dropped", with --watch, are first packets that a rule translated and that the kernel
then dropped, as the connection clashed with another one or found no free port, since
the watch began: by an eBPF program that runs for packets that are dropped (CAP_BPF and
CAP_PERFMON; Linux 5.4 with BTF). Without it they are known of the whole namespace alone.

Of a large connection table it reads some 130,000 entries and scales up what it finds
("~"); --all reads them all. It subscribes to nothing. With --watch it looks again every
--interval, and reads less where that would take more than a twentieth of a CPU; with
--json each look is one line. A look that fails is told, and the next one comes; the
fifth in a row ends it.

Connections that began before the rule that is for them pass untranslated as long as they
last: they are counted. Where the host does not forward what the gateway is for, or a
bridge keeps a host from reaching itself by a rule with hairpin, that is told, as are
other programs' rules that translate the same packets first.

Needs CAP_NET_ADMIN. Exit code 3 (not with --watch): somebody changed the table, or
took it away, or the host does not forward.`

func newGatewayStatus(env *Env) *cobra.Command {
	s := &gatewayStatus{env: env}
	cmd := &cobra.Command{
		Use:   "status",
		Short: "see what each rule does: connections, packets, ports left, drops",
		Long:  gatewayStatusHelp,
		Example: `  sudo natkit gateway status
  sudo natkit gateway status --watch --interval 5
  sudo natkit gateway status --netns gateway --json`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return s.run(cmd) },
	}
	f := cmd.Flags()
	s.target.addFlags(cmd)
	f.BoolVar(&s.watch, "watch", false, "go on, and look every --interval, until Ctrl-C")
	s.interval = 2 * time.Second
	f.Var((*seconds)(&s.interval), "interval", "time from one look to the next: seconds or 500ms, 2m, …")
	f.BoolVar(&s.all, "all", false, "read the whole connection table, however large")
	f.IntVar(&s.top, "top", 40, "show the `N` rules with most connections, 0 for all; fewer on a screen that has no room, all in JSON unless it is given")
	addJSON(cmd, &s.asJSON, gatewayStatusSchema)
	completeFlags(cmd, map[string]cobra.CompletionFunc{"interval": cobra.NoFileCompletions, "top": cobra.NoFileCompletions})
	return cmd
}

func (s *gatewayStatus) check(cmd *cobra.Command) error {
	switch {
	case s.top < 0:
		return usagef("--top %d: must not be negative", s.top)
	case cmd.Flags().Changed("interval") && !s.watch:
		return usagef("--interval is the time between the looks of --watch: add --watch")
	case s.interval < minWatch || s.interval > maxWindow:
		return usagef("--interval %s: must be from %s to %s", s.interval, minWatch, maxWindow)
	}
	return nil
}

func (s *gatewayStatus) run(cmd *cobra.Command) error {
	if err := s.check(cmd); err != nil {
		return err
	}
	s.topGiven = cmd.Flags().Changed("top")
	ns, err := s.target.open(cmd)
	if err != nil {
		return err
	}
	defer ns.Close()
	o, err := s.options(ns)
	if err != nil {
		return err
	}
	l := gatewaylook.New(o)
	if s.watch {
		l.CountDrops()
		defer l.Close()
		budget := gatewaylook.Budget{Interval: s.interval, Most: collect.DefaultMaxEntries}
		return s.watchOn(cmd.Context(), func(ctx context.Context) (*observe.Status, error) { return budget.Look(ctx, l, s.all) })
	}
	progress := s.env.progress()
	progress.Update("reading the connection table")
	now, err := l.Look(cmd.Context())
	progress.Clear()
	if err != nil {
		return err
	}
	if err := s.show(now, time.Now()); err != nil {
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
	o := gatewaylook.Options{Netns: ns, Journal: j, Store: store.Beside(j.Dir()), Top: 20}
	if !s.all {
		o.MaxEntries = collect.DefaultMaxEntries
	}
	return o, nil
}

// failedLooks is how many looks in a row may fail before --watch ends: what hinders one
// may be over at the next.
const failedLooks = 5

// watchOn shows one look after the other until ctx ends. Where the first one fails, the
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
			fmt.Fprintf(s.env.Stderr, "natkit: %v; the next look is in %s\n", err, s.interval)
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

// showNext shows a look in the place of the one before, where there is a terminal: in
// one piece, so that nothing flickers.
func (s *gatewayStatus) showNext(now *observe.Status, at time.Time) error {
	if s.asJSON {
		return report.JSONLine(s.env.Stdout, s.document(now, at))
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
	if err := s.text(&frame, now, at, top); err != nil {
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

// gatewayStatusDocument is the JSON form.
type gatewayStatusDocument struct {
	Schema  string          `json:"schema"`
	Version string          `json:"version"`
	TakenAt time.Time       `json:"taken_at"`
	Source  string          `json:"source"`
	Gateway *observe.Status `json:"gateway"`
}

func (s *gatewayStatus) document(now *observe.Status, at time.Time) gatewayStatusDocument {
	if s.topGiven && s.top > 0 {
		now.Rules = observe.Busiest(now.Rules, s.top)
	}
	return gatewayStatusDocument{Schema: gatewayStatusSchema, Version: s.env.Version, TakenAt: at, Source: s.target.name(), Gateway: now}
}

func (s *gatewayStatus) show(now *observe.Status, at time.Time) error {
	if s.asJSON {
		return report.JSON(s.env.Stdout, s.document(now, at))
	}
	return s.text(s.env.Stdout, now, at, s.top)
}

func (s *gatewayStatus) text(w io.Writer, now *observe.Status, at time.Time, top int) error {
	return report.GatewayStatus(w, s.env.style(), report.GatewayView{Source: s.target.name(), Args: s.target.args(), Top: top, At: at, Watch: s.watch}, now)
}
