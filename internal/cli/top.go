//go:build linux

package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/tui"
)

// usualInterval is the time between two samples of top.
const usualInterval = 2 * time.Second

// What --once prints is as wide as other reports, and has lines enough for all that
// the panels usually have.
const onceLines = 44

// topVerb is the verb top.
type topVerb struct {
	env      *Env
	target   target
	interval time.Duration
	once     bool
}

func newTop(env *Env) *cobra.Command {
	t := &topVerb{env: env, interval: usualInterval}
	cmd := &cobra.Command{
		Use:   "top",
		Short: "show live how full the connection table is, new flows, drops, ports, top talkers",
		Long: `Show, refreshed every interval: how full the connection table is, and was; new flows
per second with the standard error; entries by TCP state and protocol; the growth of
conntrack's counters; drops by reason; SNAT ports in use; the sources and services
with most entries; and the CPU time of packet work. ? lists the keys.

The cost does not grow with the table: each time an unbiased sample of at most 16,384
entries is read, in half a percent of the time of one CPU. Nothing subscribes to events.

The table and its counters require CAP_NET_ADMIN, drops CAP_BPF and CAP_PERFMON, other
namespaces CAP_SYS_ADMIN. Parts that cannot be read show why, the rest is shown.`,
		Example: `  sudo natkit top
  sudo natkit top --netns gateway --interval 1
  sudo natkit top --pid $(docker inspect -f '{{.State.Pid}}' web)
  sudo natkit top --once                 # one frame, as text, after 2 seconds
  sudo natkit top --once --json          # what is in it, as data`,
		RunE: func(cmd *cobra.Command, _ []string) error { return t.run(cmd) },
	}
	t.target.addFlags(cmd)
	cmd.Flags().Var(period(&t.interval, tui.MinInterval, tui.MaxInterval), "interval", "time between two samples: seconds or 500ms, 1m, …")
	cmd.Flags().BoolVar(&t.once, "once", false, "print one frame after one interval, and end")
	t.env.addJSON(cmd, snapshot.RecordingSchema)
	requires(cmd, "json", "once")
	return cmd
}

// checkTerminal reports what a screen needs and does not have.
func (t *topVerb) checkTerminal() error {
	kind := t.env.Getenv("TERM")
	switch {
	case !t.env.StdoutTerminal:
		return usagef("stdout is not a terminal; use --once to print one frame")
	case !t.env.StdinTerminal:
		return usagef("stdin is not a terminal; use --once to print one frame")
	case kind == "" || kind == "dumb":
		return usagef("TERM=%s: this terminal cannot draw a screen; use --once to print one frame", kind)
	}
	return nil
}

func (t *topVerb) run(cmd *cobra.Command) error {
	if !t.once {
		if err := t.checkTerminal(); err != nil {
			return err
		}
	}
	ns, err := t.target.open(cmd)
	if err != nil {
		return err
	}
	theme := tui.Theme{Style: t.env.style(), ASCII: !isUTF8(t.env.Getenv)}
	opt := tui.Options{Netns: ns, Interval: t.interval, Theme: theme, In: t.env.Stdin, Out: t.env.Stdout, Save: t.save, Names: t.env.hostNames(addressesAge)}
	if t.once {
		return t.print(cmd.Context(), opt)
	}
	files, err := tui.Run(cmd.Context(), opt)
	// The screen that showed them is gone.
	for _, name := range files {
		fmt.Fprintln(t.env.Stdout, "saved "+name)
	}
	return err
}

// print prints one frame.
func (t *topVerb) print(ctx context.Context, opt tui.Options) error {
	sample, err := tui.Once(ctx, opt)
	if err != nil {
		return err
	}
	if t.env.asJSON {
		err = report.JSON(t.env.Stdout, sample.Recording())
	} else {
		frame := tui.New(opt.Theme, t.interval).Resize(report.Width, onceLines).Take(sample).Frame()
		_, err = io.WriteString(t.env.Stdout, frame)
	}
	if err != nil {
		return fmt.Errorf("print the sample: %w", err)
	}
	return nil
}

// save writes what 'natkit snapshot' writes.
func (t *topVerb) save(ctx context.Context, ns *netns.Handle) (name string, err error) {
	name = defaultBundleName(time.Now(), false)
	return name, writeNew(name, 0o600, func(w io.Writer) error {
		_, err := collect.WriteBundle(ctx, w, collect.RecordOptions{
			Options: collect.Options{Netns: ns, Names: t.env.hostNames(time.Second)}, For: 2 * time.Second, Bundle: collect.BundleOptions{Version: t.env.Version},
		})
		return err
	})
}
