//go:build linux

package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/record"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/ring"
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
	// from is a recording of 'natkit record' that is played, at where in it.
	from string
	at   moment
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
namespaces CAP_SYS_ADMIN. Parts that cannot be read show why, the rest is shown.

With --from it plays a recording of 'natkit record', from its beginning or --at a time: space
pauses, left and right step, + and - change the speed. That requires no privilege but to read it.`,
		Example: `  sudo natkit top
  sudo natkit top --netns gateway --interval 1
  sudo natkit top --pid $(docker inspect -f '{{.State.Pid}}' web)
  sudo natkit top --once                 # one frame, as text, after 2 seconds
  sudo natkit top --once --json          # what is in it, as data
  natkit top --from /var/lib/natkit/record --at 10:15   # play what 'natkit record' has`,
		RunE: func(cmd *cobra.Command, _ []string) error { return t.run(cmd) },
	}
	t.target.addFlags(cmd)
	cmd.Flags().Var(period(&t.interval, tui.MinInterval, tui.MaxInterval), "interval", "time between two samples: seconds or 500ms, 1m, …")
	cmd.Flags().BoolVar(&t.once, "once", false, "print one frame after one interval, and end")
	t.env.addJSON(cmd, snapshot.RecordingSchema)
	cmd.Flags().Var(into(&t.from, notEmpty("a directory")), "from", "play the recording of 'natkit record' in `DIR`")
	addAt(cmd, &t.at, "with --from: begin at the `TIME` 10:15, 2026-11-20T10:15:00, -2h, …")
	for _, live := range []string{"netns", "pid", "interval"} {
		cmd.MarkFlagsMutuallyExclusive("from", live)
	}
	requires(cmd, "at", "from")
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
	if t.from != "" {
		return t.replay(cmd.Context())
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
	return t.frame(sample, tui.New(opt.Theme, t.interval).Resize(report.Width, onceLines).Take(sample))
}

// frame prints what a model shows of a sample.
func (t *topVerb) frame(sample *tui.Sample, m tui.Model) (err error) {
	if t.env.asJSON {
		err = report.JSON(t.env.Stdout, sample.Recording())
	} else {
		_, err = io.WriteString(t.env.Stdout, m.Frame())
	}
	if err != nil {
		return fmt.Errorf("print the sample: %w", err)
	}
	return nil
}

// tape is a recording in a ring.
type tape struct {
	ring  *ring.Ring
	dir   string
	pairs [][2]*ring.Frame
}

func (t *tape) Len() int { return len(t.pairs) }

func (t *tape) Sample(i int) (*snapshot.Sample, error) {
	s, err := record.Sample(t.ring, t.pairs[i][0], t.pairs[i][1])
	if err != nil {
		return nil, malformed(fmt.Errorf("read the recording in %s: %w", t.dir, err))
	}
	return s, nil
}

// replay plays a recording, or prints one frame of it.
func (t *topVerb) replay(ctx context.Context) error {
	r, err := t.env.openNoted(t.from)
	if err != nil {
		return err
	}
	played := &tape{r, t.from, r.Pairs()}
	if played.Len() == 0 {
		return malformed(fmt.Errorf("read the recording in %s: %w", t.from, ring.ErrTooFew))
	}
	from, err := t.begin(r, played)
	if err != nil {
		return err
	}
	host := played.pairs[from][1].Segment().Host
	theme := tui.Theme{Style: t.env.style(), ASCII: !isUTF8(t.env.Getenv)}
	if t.once {
		s, err := played.Sample(from)
		if err != nil {
			return err
		}
		for _, lost := range s.Lost {
			t.env.note("%s", lost)
		}
		sample := &tui.Sample{Sample: s, Host: host}
		return t.frame(sample, tui.New(theme, t.interval).Resize(report.Width, onceLines).Replay(sample, tui.Place{Number: from + 1, Of: played.Len(), Speed: 1}))
	}
	if lost := record.Lost(r, played.pairs[0][0].Wall, time.Now()); lost != "" { // it is there again when the screen is gone
		t.env.note("%s", lost)
	}
	return tui.Replay(ctx, tui.ReplayOptions{Tape: played, Host: host, From: from, Theme: theme, In: t.env.Stdin, Out: t.env.Stdout})
}

// begin is the number of the sample to begin with.
func (t *topVerb) begin(r *ring.Ring, played *tape) (int, error) {
	at, err := momentIn(r, t.from, t.at)
	if err != nil || at.IsZero() {
		return 0, err
	}
	_, after, err := record.Pair(r, at)
	if err != nil {
		return 0, malformed(fmt.Errorf("read the recording in %s: %w", t.from, err))
	}
	return slices.IndexFunc(played.pairs, func(p [2]*ring.Frame) bool { return p[1] == after }), nil
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
