package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/units"
	"github.com/spf13/cobra"
)

// conntrackWatcher is conntrack events.
type conntrackWatcher struct {
	env      *Env
	target   target
	filter   filterFlags
	form     entryForm
	mask     []string
	duration time.Duration
	max      int64
	remember int
	buffer   int
}

// eventsCost is what a subscriber was measured to cost, on two cores, behind DNAT.
const eventsCost = `one that read everything and did nothing
with it cut a gateway's 175,000 new connections per second to 55,000–61,000, one of
DESTROY alone to 108,000. 'natkit conntrack' and 'natkit top' do without`

// Bounds of the flags of events.
const (
	maxRemember  = 10_000_000
	maxBufferMiB = 1024
)

func newConntrackEvents(env *Env) *cobra.Command {
	w := &conntrackWatcher{env: env}
	cmd := &cobra.Command{
		Use:   "events",
		Short: "show connections as they begin, change and end; this slows the gateway down",
		Long: `Subscribe to the events of the connection table and print each, as 'conntrack -E'
does, as JSON (one document per line) or CSV, until interrupted. The filters are
those of conntrack(8).

A listener slows the gateway down: ` + eventsCost + `.

The namespace must make events: net.netfilter.nf_conntrack_events must be 1 or 2. By 2,
connections that were made before somebody listened have none.

Events that come faster than they are read fill the receive buffer, and then some
are lost. They are counted, and a dump then finds out which connections began and
ended meanwhile: their lines end with [MISSED]. What merely changed is not found. For
this it remembers connections, up to --remember; in larger tables, and without both
NEW and DESTROY in --event-mask, gaps are only said.

It needs CAP_NET_ADMIN. Counts of what was shown and lost come at the end, on stderr.`,
		Example: `  sudo natkit conntrack events -p tcp --for 10s
  sudo natkit conntrack events --netns gateway -e DESTROY --src-nat --json
  sudo natkit conntrack events -e NEW -o timestamp --max 20`,
		Args:              w.filter.args,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return w.run(cmd) },
	}
	w.target.addFlags(cmd)
	addFilterFlags(cmd, &w.filter)
	w.form.addFlags(cmd, "plain")
	w.addOwnFlags(cmd)
	return cmd
}

func (w *conntrackWatcher) addOwnFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringSliceVarP(&w.mask, "event-mask", "e", []string{"ALL"}, "`KINDS` of events, separated by commas: NEW, UPDATES, DESTROY or ALL")
	flags.Var((*seconds)(&w.duration), "for", "end after this time: seconds or 500ms, 2m, … (default: when interrupted)")
	flags.Int64Var(&w.max, "max", 0, "end after `N` events; 0 is no limit")
	flags.IntVar(&w.remember, "remember", 200_000, "remember up to `N` connections, some 250 bytes each, to find out what was lost; 0 for none")
	flags.IntVarP(&w.buffer, "buffer-size", "b", 64, "receive buffer in `MIB`")
	completeFlags(cmd, map[string]cobra.CompletionFunc{
		"event-mask": cobra.FixedCompletions([]string{"NEW", "UPDATES", "DESTROY", "ALL"}, cobra.ShellCompDirectiveNoFileComp),
	})
}

// eventKinds are the words of --event-mask.
var eventKinds = map[string]dump.EventKinds{
	"ALL": dump.AllEvents, "NEW": dump.NewEvents, "UPDATES": dump.UpdateEvents, "UPDATE": dump.UpdateEvents, "DESTROY": dump.DestroyEvents,
}

func (w *conntrackWatcher) options(cmd *cobra.Command) (o dump.WatchOptions, err error) {
	for _, word := range w.mask {
		kind, ok := eventKinds[strings.ToUpper(word)]
		if !ok {
			return o, usagef("--event-mask %q: the words are NEW, UPDATES, DESTROY and ALL", word)
		}
		o.Kinds |= kind
	}
	switch {
	case o.Kinds == 0:
		return o, usagef("--event-mask \"\": it chooses no events")
	case cmd.Flags().Changed("for") && w.duration <= 0:
		return o, usagef("--for %s: must be more than 0", w.duration)
	case w.max < 0:
		return o, usagef("--max %d: must not be negative", w.max)
	case w.remember < 0 || w.remember > maxRemember:
		return o, usagef("--remember %d: must be from 0 to %d", w.remember, maxRemember)
	case w.buffer < 1 || w.buffer > maxBufferMiB:
		return o, usagef("--buffer-size %d: must be from 1 to %d", w.buffer, maxBufferMiB)
	}
	o.Filter, o.Remember, o.Buffer = &w.filter.filter, w.remember, w.buffer<<20
	return o, w.form.check(cmd)
}

func (w *conntrackWatcher) run(cmd *cobra.Command) error {
	o, err := w.options(cmd)
	if err != nil {
		return err
	}
	ns, err := w.target.open(cmd)
	if err != nil {
		return err
	}
	defer ns.Close()
	ctx := cmd.Context()
	if w.duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, w.duration)
		defer cancel()
	}
	w.env.note("a listener slows the gateway down: %s", strings.ReplaceAll(eventsCost, "\n", " "))
	out := &eventWriter{lines: newLineWriter(w.env.Stdout), form: &w.form, max: w.max}
	out.begin()
	o.Ready = func() { w.env.note("listening") }
	o.Gap, o.Idle = w.gap, out.idle
	done, err := dump.Watch(ctx, ns, o, out.take)
	err = ended(errors.Join(err, out.lines.flush()))
	if err == nil {
		w.sum(done)
	}
	return err
}

// gap says what was lost. Which events were lost in which gap cannot be told where
// they follow each other: the sum comes at the end.
func (w *conntrackWatcher) gap(g dump.Gap) {
	if g.Why != "" {
		w.env.note("the receive buffer was full, events were lost; which, cannot be found out: %s", g.Why)
		return
	}
	w.env.note("the receive buffer was full, events were lost; a dump found %s that no event had told of",
		units.Plural(g.Missed, "beginning or end", "beginnings and ends"))
}

func (w *conntrackWatcher) sum(d dump.Watched) {
	text := units.Plural(d.Events, "event", "events")
	if d.Gaps > 0 {
		text += fmt.Sprintf(", %s of them found out afterwards; %s lost in %s", units.Count(d.Missed),
			units.Count(d.Lost), units.Plural(d.Gaps, "gap", "gaps"))
	} else {
		text += ", none was lost"
	}
	w.env.note("%s", text)
}

// flushEvery is how long a line may wait for others.
const flushEvery = 100 * time.Millisecond

// eventWriter writes events as they come.
type eventWriter struct {
	lines   *lineWriter
	form    *entryForm
	max, n  int64
	flushed time.Time
}

// begin writes what comes before the first event.
func (w *eventWriter) begin() {
	if w.form.csv {
		w.lines.buf = append(w.lines.buf, "event,time,missed,"...)
	}
	w.form.begin(w.lines)
}

// eventNames are those of conntrack -E, and how it sets them.
var eventNames = map[dump.EventKinds]struct{ name, line string }{
	dump.NewEvents:     {"NEW", "    [NEW] "},
	dump.UpdateEvents:  {"UPDATE", " [UPDATE] "},
	dump.DestroyEvents: {"DESTROY", "[DESTROY] "},
}

func (w *eventWriter) take(e dump.Event) error {
	now := time.Now()
	w.form.now(now)
	w.lines.buf = w.append(w.lines.buf, e, now)
	if err := w.lines.endLine(); err != nil {
		return err
	}
	if w.n++; w.n == w.max {
		return dump.ErrStop
	}
	if now.Sub(w.flushed) < flushEvery {
		return nil
	}
	w.flushed = now
	return w.lines.flush()
}

// idle writes what waits while nothing comes.
func (w *eventWriter) idle() error { return w.lines.flush() }

func (w *eventWriter) append(b []byte, e dump.Event, now time.Time) []byte {
	names := eventNames[e.Kind]
	switch {
	case w.form.json:
		b = fmt.Appendf(b, `{"event":%q,"time":%q,`, names.name, now.UTC().Format(time.RFC3339Nano))
		if e.Missed {
			b = append(b, `"missed":true,`...)
		}
		at := len(b)
		b = w.form.append(b, e.Entry)
		return append(b[:at], b[at+1:]...) // its own brace
	case w.form.csv:
		b = fmt.Appendf(b, "%s,%s,%t,", names.name, now.UTC().Format(time.RFC3339Nano), e.Missed)
		return w.form.append(b, e.Entry)
	}
	if w.form.timestamped {
		b = fmt.Appendf(b, "[%-8d.%-6d]\t", now.Unix(), now.Nanosecond()/1000)
	}
	b = w.form.append(append(b, names.line...), e.Entry)
	if e.Missed {
		b = append(b, " [MISSED]"...)
	}
	return b
}
